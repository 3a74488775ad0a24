import copy
import csv
import io
import math

import numpy as np
import pytest
from rich.console import Console

from posterity.report.plots.curves import cost
from posterity.report.standing import Cell, columns, contested, difference_error, done, standings
from posterity.report.tables import as_csv, as_markdown, as_rich, mark, shown
from posterity.report.verdict import label, verdict
from posterity.types import PosterityError


def run(method, seed, nll, spread=0.01, noise=0, **figures):
    """A run whose resampled NLLs share their noise with every run of the same ``noise``: a paired test set."""
    z = np.random.default_rng(noise).standard_normal(400)
    z = (z - z.mean()) / z.std(ddof=1)
    known = {"accuracy": 0.9, "nll": nll, "ece": 0.02, **figures}
    replicates = {name: (value + (spread if name == "nll" else 0.001) * z).tolist() for name, value in known.items()}
    return {
        "method": method,
        "seed": seed,
        "status": "done",
        "scores": {"figures": known, "replicates": replicates, "details": {}},
        "figures": {
            "train_seconds": 2.0 if method != "map" else 1.0,
            "predict_ms": 3.0,
            "memory_mb": 1,
            "stored": 1500,
        },
        "history": [],
    }


def results(*runs, **more):
    methods = list(dict.fromkeys(r["method"] for r in runs))
    return {"title": "made up", "task": "classification", "classes": [], "methods": methods, "runs": list(runs), **more}


def test_ranked_by_nll_with_times_relative_to_map():
    found = standings(results(run("map", 0, 0.5), run("swag", 0, 0.3)))
    assert [line.name for line in found] == ["swag", "map"]
    assert found[0].cells["train_time"].value == 2.0 and found[1].cells["train_time"].value == 1.0
    assert math.isnan(found[0].cells["train_time"].error) or not found[0].cells["train_time"].tied


def test_times_are_relative_to_the_mean_of_map_over_its_seeds():
    runs = [run("map", 0, 0.5), run("map", 1, 0.5), run("swag", 0, 0.3)]
    runs[1]["figures"]["train_seconds"] = 3.0  # the first took one second, SWAG two
    times = {line.name: line.cells["train_time"].value for line in standings(results(*runs))}
    assert times == {"map": 1.0, "swag": 1.0}


def test_a_method_whose_nll_is_no_number_stands_behind_the_others():
    strange = run("swag", 0, 0.3, accuracy=0.95)
    strange["scores"]["figures"]["nll"], strange["scores"]["replicates"]["nll"] = None, [None] * 400  # NaN, as in JSON
    made = results(strange, run("map", 0, 0.5), run("ivon", 0, 0.4))
    assert [line.name for line in standings(made)] == ["ivon", "map", "swag"]
    assert "nll" not in standings(made)[-1].cells and standings(made)[-1].cells["accuracy"].value == 0.95
    assert verdict(made).startswith("Pick IVON") and "swag" in as_markdown(made).lower()
    shown_there = cost(made).axes[0].get_legend_handles_labels()[1]
    assert sorted(shown_there) == ["IVON", "MAP"]


def test_shared_noise_makes_small_differences_count():
    """Both vary by 0.01 over test sets, but together: their difference hardly varies at all."""
    paired = standings(results(run("map", 0, 0.305), run("swag", 0, 0.3)))
    assert [line.cells["nll"].tied for line in paired] == [True, False]
    apart = standings(results(run("map", 0, 0.305, noise=1), run("swag", 0, 0.3)))
    assert [line.cells["nll"].tied for line in apart] == [True, True]


def test_two_standard_errors_decide():
    """Independent noise of 0.01 each: the difference has the error 0.0141, so 0.027 is tied and 0.031 is not."""
    for gap, tied in ((0.025, True), (0.034, False)):
        found = standings(results(run("map", 0, 0.3 + gap, noise=1), run("swag", 0, 0.3)))
        assert found[1].cells["nll"].tied is tied


def test_seeds_add_to_the_error_of_a_difference():
    first, second = [0.3, 0.32, 0.34], [0.5, 0.5, 0.5]
    silent = [[v] * 10 for v in first], [[v] * 10 for v in second]
    assert difference_error(first, second, *silent) == pytest.approx(0.02 / math.sqrt(3))
    assert difference_error(second, first, *silent) == pytest.approx(0.02 / math.sqrt(3))
    found = contested(
        results(*[run("swag", s, v) for s, v in enumerate(first)]),
        "nll",
        {"swag": [run("swag", s, v) for s, v in enumerate(first)]},
    )
    assert found["swag"].value == pytest.approx(0.32)
    assert found["swag"].error == pytest.approx(0.02 / math.sqrt(3))


def test_figures_are_shown_in_the_digits_they_deserve():
    nan = math.nan
    for name, value, error, text in (
        ("accuracy", 0.9012, 0.0123, "90.1% ± 1.2"),
        ("nll", 0.30049, 0.0101, "0.300 ± 0.010"),
        ("coverage_90", 0.885, nan, "88.5%"),
        ("train_time", 2.34, nan, "2.3×"),
        ("predict_time", 12.34, nan, "12×"),
        ("memory_mb", 99.96, nan, "100.0"),
        ("memory_mb", 123.4, nan, "123"),
        ("stored", 999, nan, "999"),
        ("stored", 17_640, nan, "17.6k"),
        ("stored", 1_234_567, nan, "1.23M"),
    ):
        assert shown(name, Cell(value, error)) == text
    best, tied, behind = Cell(0.3, nan, best=True, tied=True), Cell(0.31, nan, tied=True), Cell(0.5, nan)
    assert [mark(cell) for cell in (best, tied, behind)] == ["★", "●", ""]


def test_costs_are_not_contested():
    found = standings(results(run("map", 0, 0.5), run("swag", 0, 0.3)))
    assert not any(line.cells[name].tied for line in found for name in ("train_time", "memory_mb", "stored"))


def test_failed_methods_come_last_with_their_reason():
    failed = {"method": "ivon", "seed": 0, "status": "failed", "reason": "the loss became nan"}
    found = results(run("map", 0, 0.5), failed)
    assert [(line.name, line.reason) for line in standings(found)] == [("map", ""), ("ivon", "the loss became nan")]
    assert "IVON failed: the loss became nan" in str(as_rich(found).caption)
    assert "failed: the loss became nan" in as_markdown(found)


def test_names_can_stand_in_a_list():
    """``SGHMC, SGHMC, 3 chains and SGLD are tied`` would be four methods."""
    assert label("multi-sghmc") == "SGHMC in 3 chains"


def test_unknown_method():
    with pytest.raises(PosterityError, match="no method 'swg': did you mean 'swag'"):
        done(results(run("map", 0, 0.5), run("swag", 0, 0.3)), "swg")


def test_verdict_names_the_best_and_what_is_tied():
    text = verdict(results(run("map", 0, 0.31, noise=1), run("swag", 0, 0.3)))
    assert text.startswith("Pick SWAG: it has the best NLL (0.300 ± 0.010) at 2.0 times the training time of MAP;")
    assert "MAP is statistically tied with it, for less training time." in text
    alone = verdict(results(run("map", 0, 0.5), run("swag", 0, 0.3)))
    assert "no other method is statistically tied with it" in alone
    assert text.count(". ") == 1 and text.endswith(".")  # two sentences


def test_a_verdict_on_numbers_is_of_their_intervals():
    made = results(run("map", 0, 0.5, coverage_90=0.95), run("swag", 0, 0.3, coverage_90=0.85), task="regression")
    assert "Its 90% intervals hold 85% of the test targets" in verdict(made)


def test_verdict_without_resamples_claims_no_significance():
    made = results(run("map", 0, 0.5), run("swag", 0, 0.3))
    for one in made["runs"]:
        one["scores"]["replicates"] = {}
    text = verdict(made)
    assert "Pick SWAG" in text and "no difference can be told from chance" in text
    assert "no other method" not in text and text.count(". ") == 1


def test_verdict_says_who_is_better_elsewhere():
    found = results(run("map", 0, 0.5, ece=0.01), run("swag", 0, 0.3, ece=0.05))
    assert "if calibration matters most, take MAP (ECE 0.010 against 0.050)" in verdict(found)
    blind = results(run("map", 0, 0.3, ood_auroc=0.1), run("swag", 0, 0.5, ood_auroc=0.3))
    assert "no method is any good at noticing foreign inputs" in verdict(blind)
    assert verdict(results(run("map", 0, 0.5))).startswith("Only MAP has finished: its NLL is 0.500")
    nothing, finished = run("map", 0, math.nan), run("swag", 0, 0.3)
    assert verdict(results(nothing, finished)).startswith("Only SWAG has a number as its NLL: its NLL is 0.300")
    assert verdict(results(nothing)) == "No method has a number as its NLL, so there is nothing to recommend."
    assert verdict(results()) == "No method finished, so there is nothing to recommend."


def test_tables_of_a_real_comparison(digits):
    names = columns(digits)
    assert names[:3] == ["accuracy", "nll", "ece"] and "ood_auroc" in names and names[-1] == "stored"
    text = as_markdown(digits)
    assert text.count("\n") == 4 and "**" in text
    rows = list(csv.DictReader(io.StringIO(as_csv(digits))))
    best = standings(digits)[0]
    assert rows[0]["method"] == best.name
    assert float(rows[0]["nll"]) == pytest.approx(best.cells["nll"].value)
    table = as_rich(digits)
    assert table.row_count == 3 and len(table.columns) == len(names) + 1


def test_a_narrow_terminal_loses_no_name_and_no_figure(digits):
    console = Console(width=80, file=io.StringIO())
    console.print(as_rich(digits))
    text = console.file.getvalue()
    for line in standings(digits):
        assert label(line.name) in text
        assert all(word in text for name, cell in line.cells.items() for word in shown(name, cell).split())
    assert "…" not in text


@pytest.mark.parametrize("width", [60, 80])
def test_no_figure_is_broken_in_two(width):
    more = {"misclassification_auroc": 0.9, "ood_auroc": 0.8}
    made = results(run("map", 0, -0.525, **more), run("ensemble", 0, -0.148, **more), run("swag", 0, -10.123, **more))
    console = Console(width=width, file=io.StringIO())
    console.print(as_rich(made), crop=False)
    words = console.file.getvalue().replace("★", "").replace("●", "").split()
    assert {"-0.525", "-0.148", "-10.123"} <= set(words)


def test_digits_of_figures():
    from posterity.report.standing import Cell

    assert shown("accuracy", Cell(0.9731, 0.0021)) == "97.3% ± 0.2"
    assert shown("train_time", Cell(12.3, math.nan)) == "12×"
    assert shown("stored", Cell(17610, math.nan)) == "17.6k"
    assert shown("nll", Cell(0.0912, math.nan)) == "0.091"


def test_missing_figures_are_left_out(digits):
    changed = copy.deepcopy(digits)
    for one in changed["runs"]:
        if one["method"] == "map":
            one["scores"]["figures"].pop("misclassification_auroc", None)
    line = next(line for line in standings(changed) if line.name == "map")
    assert "misclassification_auroc" not in line.cells
    assert "–" in as_markdown(changed)


def test_reasons_and_titles_are_no_markup():
    reason = "expected [batch, classes] | got [/tmp/x]\nor less"
    failed = {"method": "ivon", "seed": 0, "status": "failed", "reason": reason}
    made = results(run("map", 0, 0.3), failed) | {"title": "data [old]"}
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(as_rich(made))
    text = console.export_text()
    assert "data [old]" in text and "expected [batch, classes] | got [/tmp/x]" in text
    last = as_markdown(made).splitlines()[-1]
    assert last.startswith("| IVON | failed: expected [batch, classes] \\| got [/tmp/x] or less |")
