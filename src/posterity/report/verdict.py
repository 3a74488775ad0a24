"""Which method to pick and why, in two sentences made from the figures alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from posterity.evaluation.metrics import metric
from posterity.report.standing import RANKS, Standing, standings

__all__ = ["label", "listed", "verdict"]

_NAMES = {
    "map": "MAP",
    "dropout": "MC dropout",
    "ensemble": "deep ensemble",
    "mean-field": "mean-field VI",
    "swa": "SWA",
    "swag": "SWAG",
    "multi-swag": "MultiSWAG",
    "ivon": "IVON",
    "vogn": "VOGN",
    "ogn": "OGN",
    "laplace": "Laplace",
    "sgld": "SGLD",
    "psgld": "pSGLD",
    "sghmc": "SGHMC",
    "multi-sghmc": "SGHMC in 3 chains",
    "cyclical": "cyclical SG-MCMC",
    "hwa": "HWA",
    "mnf": "MNF",
    "kfac": "K-FAC",
    "noisy-kfac": "noisy K-FAC",
    "sparse-vd": "sparse VD",
    "ard": "ARD",
}


def label(method: str) -> str:
    """What a method is called in tables and figures."""
    return _NAMES.get(method, method)


def verdict(results: Mapping[str, Any]) -> str:
    """Two sentences; one if nothing could be compared."""
    lines = [line for line in standings(results) if line.cells]
    ranked = [line for line in lines if RANKS in line.cells]
    if not ranked:
        missing = f"has a number as its {metric(RANKS).label}" if lines else "finished"
        return f"No method {missing}, so there is nothing to recommend."
    return f"{_first(ranked, len(lines))} {_second(results, lines, ranked[0])}"


def _first(lines: Sequence[Standing], finished: int) -> str:
    """The best by the figure that ranks, what it costs, and who cannot be told from it."""
    best, what = lines[0], metric(RANKS).label
    cell = best.cells[RANKS]
    value = f"{cell.value:.3f}" + ("" if math.isnan(cell.error) else f" ± {cell.error:.3f}")
    if len(lines) == 1:
        alone = "has finished" if finished == 1 else f"has a number as its {what}"
        return f"Only {label(best.name)} {alone}: its {what} is {value}."
    start = f"Pick {label(best.name)}: it has the best {what} ({value}){_paid(best)}"
    if not cell.tied:  # without resamples, as of one test example, nobody knows who is tied with whom
        return f"{start}; on these test data no difference can be told from chance."
    tied = [line for line in lines[1:] if line.cells[RANKS].tied]
    if not tied:
        return f"{start}, and no other method is statistically tied with it."
    verb = "is" if len(tied) == 1 else "are"
    cheapest = min(tied, key=_cost)
    who = f" {label(cheapest.name)}" if len(tied) > 1 else ""
    cheaper = f",{who} for less training time" if _cost(cheapest) < 0.95 * _cost(best) else ""
    return f"{start}; {listed(label(line.name) for line in tied)} {verb} statistically tied with it{cheaper}."


def _paid(line: Standing) -> str:
    cost = _cost(line)
    return "" if math.isnan(cost) or line.name == "map" else f" at {cost:.1f} times the training time of MAP"


def _second(results: Mapping[str, Any], lines: Sequence[Standing], chosen: Standing) -> str:
    """What its confidence is worth, and who is better where it is not the best."""
    said = _confidence(results, chosen)
    if len(lines) == 1 or not chosen.cells[RANKS].tied:
        return f"{said}."
    losing = [
        (name, cell)
        for name, cell in chosen.cells.items()
        if metric(name).better and not cell.tied and any(line.cells[name].tied for line in lines if name in line.cells)
    ]
    if not losing:
        return f"{said}, and no other method is significantly better in any figure of quality."
    name, _ = losing[0]
    winner = next(line for line in lines if name in line.cells and line.cells[name].best)
    if name.endswith("auroc") and winner.cells[name].value < 0.5:
        best = f"the best {metric(name).label} is {winner.cells[name].value:.3f}, of {label(winner.name)}"
        return f"{said}; but beware, no method is any good at {_matter(name)}: {best}."
    gain = f"{metric(name).label} {winner.cells[name].value:.3f} against {chosen.cells[name].value:.3f}"
    return f"{said}; if {_matter(name)} matters most, take {label(winner.name)} ({gain})."


def _confidence(results: Mapping[str, Any], chosen: Standing) -> str:
    cells = chosen.cells
    if results["task"] == "regression":
        return f"Its 90% intervals hold {100 * cells['coverage_90'].value:.0f}% of the test targets"
    share = f"It is right in {100 * cells['accuracy'].value:.1f}% of the test examples"
    return f"{share}, with a confidence that is off by {100 * cells['ece'].value:.1f} points on average"


def _matter(name: str) -> str:
    return {
        "accuracy": "being right",
        "ece": "calibration",
        "misclassification_auroc": "knowing one's own errors",
        "ood_auroc": "noticing foreign inputs",
        "rmse": "the mean",
    }.get(name, metric(name).label)


def listed(names: Iterable[str]) -> str:
    """Names as a sentence lists them: a, b and c."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _cost(line: Standing) -> float:
    return line.cells["train_time"].value if "train_time" in line.cells else math.nan
