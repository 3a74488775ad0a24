import copy
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
from posterity.report.standing import standings
from posterity.report.verdict import label
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


def of(results, method, name):
    """This detail of every finished run of a method."""
    return [r["scores"]["details"][name] for r in results["runs"] if r["method"] == method]


def test_open_boxes_reach_from_accuracy_to_confidence(digits):
    accuracy, sure = (mean([s[key] for s in of(digits, "map", "reliability")]) for key in ("accuracy", "confidence"))
    boxes = plots.reliability(digits, ["map"]).axes[0].patches[len(accuracy) : 2 * len(accuracy)]
    tops = [box.get_y() + box.get_height() for box in boxes]
    assert tops == pytest.approx(np.nan_to_num(sure).tolist())


def test_lines_and_steps_of_a_classifier_are_its_figures(digits):
    (line,) = plots.coverage(digits, ["swag"]).axes[0].lines
    assert line.get_ydata() == pytest.approx(np.mean([s["accuracy"] for s in of(digits, "swag", "coverage")], 0))
    steps = plots.entropies(digits, ["swag"]).axes[0].patches[1].get_data()  # the outline of the known ones
    assert steps.values == pytest.approx(np.mean([s["test"] for s in of(digits, "swag", "entropy")], 0))
    assert steps.edges[-1] == pytest.approx(np.log(10))
    (line,) = plots.training(digits, ["swag"]).axes[0].lines
    runs = [run for run in digits["runs"] if run["method"] == "swag"]
    assert line.get_ydata() == pytest.approx(np.mean([[e["loss"] for e in run["history"]] for run in runs], 0))
    _, before, after = plots.temperature(digits, ["swag"], figure="nll").axes[0].lines
    assert before.get_xdata() == pytest.approx(np.mean([run["scores"]["figures"]["nll"] for run in runs]))
    assert after.get_xdata() == pytest.approx(np.mean([run["figures"]["nll_tempered"] for run in runs]))


def test_the_error_of_a_class_is_that_of_its_bins_by_their_examples(digits):
    """Gaps of 0.1 on three examples and −0.2 on one are 0.125; an empty bin has none."""
    run = copy.deepcopy(digits["runs"][0])
    run["scores"]["details"]["classes"] = {"gap": [[0.1, -0.2, None]] * 2, "count": [[3, 1, 0], [0, 1, 0]]}
    ax = plots.classes({**digits, "runs": [run], "classes": ["a", "b"]}, ["map"]).axes[0]
    assert ax.images[0].get_array().tolist() == [pytest.approx([12.5, 20.0])]


def test_costs_lie_at_their_time_with_two_standard_errors(digits):
    found = standings(digits, ["nll", "train_time"])
    ax = plots.cost(digits).axes[0]
    for line in found:
        (bar,) = [c for c in ax.containers if c.get_label() == label(line.name)]
        point, _, (reach,) = bar.lines
        time, nll = line.cells["train_time"].value, line.cells["nll"]
        assert [*point.get_xdata(), *point.get_ydata()] == pytest.approx([time, nll.value])
        assert np.ptp(reach.get_segments()[0][:, 1]) == pytest.approx(4 * nll.error)


def test_bands_are_the_interval_and_the_epistemic_part_of_it(sine):
    (found,) = of(sine, "swag", "band")
    ax = plots.band(sine, ["swag"]).axes[0]
    count, middle, reach = len(found["mean"]), np.array(found["mean"]), 1.96 * np.array(found["epistemic"])
    wide, narrow = (area.get_paths()[0].vertices[:, 1] for area in ax.collections)
    for drawn, low, high in ((wide, found["low"], found["high"]), (narrow, middle - reach, middle + reach)):
        assert drawn[1 : count + 1] == pytest.approx(low)
        assert drawn[count + 2 : -1][::-1] == pytest.approx(high)
    assert [line.get_ydata().tolist() for line in ax.lines] == [found["mean"], found["target"]]


def test_intervals_hold_the_middle_of_the_quantiles(sine):
    """Of quantiles with shares 0.1, 0.2, 0.3 and 0.4 the inner half holds 0.5; densities are four times that."""
    run = copy.deepcopy(next(run for run in sine["runs"] if run["method"] == "map"))
    run["scores"]["details"]["pit"] = [0.1, 0.2, 0.3, 0.4]
    made = {**sine, "runs": [run]}
    line = plots.intervals(made, ["map"]).axes[0].lines[1]
    assert line.get_xydata().tolist() == [pytest.approx(pair) for pair in ([0, 0], [0.5, 0.5], [1, 1])]
    (steps,) = plots.pit(made, ["map"]).axes[0].patches
    assert steps.get_data().values == pytest.approx([0.4, 0.8, 1.2, 1.6])


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
    *bars, aleatoric, epistemic = made.axes[0].patches[:12]  # of the first example: ten classes, then the strip
    assert [bar.get_height() for bar in bars] == pytest.approx([0.33 * p for p in example["probs"]])
    found = run["scores"]["details"]["examples"]
    wide = 0.9 / max(e["aleatoric"] + e["epistemic"] for e in found)
    assert aleatoric.get_width() == pytest.approx(wide * example["aleatoric"])
    assert epistemic.get_width() == pytest.approx(wide * example["epistemic"])
    assert epistemic.get_x() == pytest.approx(aleatoric.get_x() + aleatoric.get_width())


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
