import inspect
import io
import sys
import xml.etree.ElementTree as ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from posterity.report import plots, sparsity, style
from posterity.report.plots.examples import picture
from posterity.report.plots.select import mean
from posterity.types import PosterityError

CLASSES = ["reliability", "coverage", "entropies", "classes", "shift", "draws", "training", "cost", "temperature"]


@pytest.mark.parametrize("name", CLASSES)
def test_every_figure_of_a_classifier(digits, name):
    made = getattr(plots, name)(digits)
    assert isinstance(made, Figure)
    ElementTree.fromstring(style.svg(made, name))
    ElementTree.fromstring(style.inline(style.svg(made, name), "what <it> shows"))
    assert Image.open(io.BytesIO(style.png(made, 40))).width > 50


@pytest.mark.parametrize("name", ["band", "intervals", "pit", "shift", "draws", "training", "cost"])
def test_every_figure_of_a_regression(sine, name):
    ElementTree.fromstring(style.inline(style.svg(getattr(plots, name)(sine), name), name))


def test_nothing_global_changes(digits):
    before = dict(matplotlib.rcParams)
    style.png(plots.coverage(digits))
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_reliability_bars_are_the_accuracies(digits):
    seeds = [r["scores"]["details"]["reliability"] for r in digits["runs"] if r["method"] == "map"]
    accuracy = np.nan_to_num(mean([s["accuracy"] for s in seeds]))
    ax = plots.reliability(digits, ["map"]).axes[0]
    heights = [bar.get_height() for bar in ax.patches[: len(accuracy)]]
    assert heights == pytest.approx(accuracy.tolist())
    assert ax.get_title() == "MAP"


def test_lines_are_the_means_over_seeds(digits):
    ax = plots.draws(digits, ["swag"], figures=["nll"]).axes[0]
    seeds = [r["scores"]["details"]["draws"]["nll"] for r in digits["runs"] if r["method"] == "swag"]
    assert ax.lines[0].get_ydata() == pytest.approx(np.mean(seeds, 0))
    shifted = plots.shift(digits, ["map"], figures=["accuracy"], corruption="noise").axes[0]
    runs = [r["scores"]["details"] for r in digits["runs"] if r["method"] == "map"]
    assert [("shift" in details) for details in runs] == [True, False]  # the first seed only
    assert shifted.lines[0].get_ydata() == pytest.approx(runs[0]["shift"]["noise"]["accuracy"])


def test_temperature_scaling_leads_from_the_full_to_the_open_mark(digits):
    """A line: the head of an arrow shorter than itself would point the other way."""
    ax = plots.temperature(digits, ["map"], figure="nll").axes[0]
    way, before, after = ax.lines
    assert way.get_xdata().tolist() == [*before.get_xdata(), *after.get_xdata()] and not ax.texts


def test_a_method_keeps_its_colour(digits):
    alone = plots.coverage(digits, ["swag"]).axes[0].lines[0]
    among = plots.coverage(digits).axes[0].lines[digits["methods"].index("swag")]
    assert alone.get_color() == among.get_color()


def test_pictures_are_the_test_examples(digits):
    from posterity import data

    run = next(r for r in digits["runs"] if r["method"] == "swag")
    example = run["scores"]["details"]["examples"][0]
    original = data.load("digits")
    raw = original.standardiser.invert(original.test[0])[example["index"], 0]
    assert np.abs(picture(example) / 255 - raw.numpy()).max() < 0.01
    made = plots.examples(digits, "swag")
    titles = [text.get_text() for text in made.axes[0].texts]
    names = digits["classes"]
    truth = "" if example["label"] == example["target"] else f" (is {names[example['target']]})"
    assert f"{names[example['label']]}{truth}" in titles
    assert len(made.axes[0].images) == 12


def test_the_heat_map_of_a_single_method_can_be_read(moons):
    made = plots.classes(moons, ["map"])  # of two classes the errors are equal: as bright as the colours get
    assert {text.get_color() for text in made.axes[0].texts} == {"#000000"}
    made.canvas.draw()
    label = made.axes[1].yaxis.label.get_window_extent()
    assert label.y0 >= 0 and label.y1 <= made.bbox.y1


def test_surfaces_of_a_plane(moons):
    made = plots.surfaces(moons)
    assert len(made.axes) == 2 * 4  # two methods: mean, draws, entropy and its scale
    found = moons["runs"][0]["scores"]["details"]["surface"]
    assert np.array(found["probability"]).shape == (50, 50) and len(found["draws"]) == 1
    assert np.min(found["entropy"]) >= 0 and np.max(found["entropy"]) <= np.log(2) + 1e-3


def test_an_even_axis_text_keeps_its_digits(digits):
    made = plots.coverage(digits)
    made.axes[0].set_title("exactly 0.12345")
    assert "exactly 0.12345" in style.inline(style.svg(made, "x"), "")


def test_bad_input(digits, sine):
    with pytest.raises(PosterityError, match="no method 'swga': did you mean 'swag'"):
        plots.reliability(digits, ["swga"])
    for of_classes in (plots.reliability, plots.classes, plots.coverage, plots.entropies, plots.temperature):
        with pytest.raises(PosterityError, match="nothing to plot"):
            of_classes(sine)
    with pytest.raises(PosterityError, match="hold no 'surface'"):
        plots.surfaces(digits, ["map"])
    failed = {**digits, "runs": [{"method": "map", "seed": 0, "status": "failed", "reason": "x"}]}
    with pytest.raises(PosterityError, match="no finished run to plot"):
        plots.coverage(failed, ["map"])


def test_names_of_classes_are_no_formulas_and_stay_below_their_columns(digits):
    names = ["$1-$5", "$^$", "x" * 60, *"defghij"]
    (ax, _) = plots.classes({**digits, "classes": names}).axes
    assert [tick.get_text() for tick in ax.get_xticklabels()][:3] == [r"\$1-\$5", r"\$^\$", "x" * 23 + "…"]
    assert all(tick.get_ha() == "right" for tick in ax.get_xticklabels())


def test_of_many_classes_some_are_named_and_all_are_shown(digits):
    runs = []
    for run in digits["runs"]:
        details = run["scores"]["details"]
        many = {key: values * 10 for key, values in details["classes"].items()}
        runs.append({**run, "scores": {**run["scores"], "details": {**details, "classes": many}}})
    made = plots.classes({**digits, "runs": runs, "classes": [f"class {i}" for i in range(100)]})
    ax = made.axes[0]
    assert [tick.get_text() for tick in ax.get_xticklabels()][:3] == ["class 0", "class 5", "class 10"]
    assert ax.images[0].get_array().shape[1] == 100 and made.get_figwidth() < 12


def test_many_methods_can_be_told_apart_and_leave_room_for_the_plot(digits):
    names = [f"method {i}" for i in range(26)]
    runs = [digits["runs"][0], *({**digits["runs"][1], "method": name} for name in names)]
    made = plots.cost({**digits, "methods": ["map", *names], "runs": runs})
    box = made.axes[0].get_position()
    assert box.height * made.get_figheight() > 1.5  # inches
    looks = [(style.colour(i), style.marker(i)) for i in range(27)]
    assert len(set(looks)) == 27


def test_a_plot_is_known_by_its_own_parameters():
    """``help`` and editors show them, and not those of the function that sets the style."""
    assert list(inspect.signature(sparsity.film_strip).parameters) == ["frames", "count"]
    assert sparsity.film_strip.__module__ == "posterity.report.sparsity"
