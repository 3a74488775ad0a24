"""Which method to pick and why, in two sentences made from the figures alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from posterity.evaluation.metrics import metric
from posterity.report.standing import Standing, rank_by, standings

__all__ = ["label", "pick", "verdict"]

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


def pick(lines: Sequence[Standing], key: str) -> Standing:
    """The cheapest to train among those that cannot be told from the best."""
    tied = [line for line in lines if key in line.cells and line.cells[key].tied]
    return min(tied, key=lambda line: _cost(line))


def verdict(results: Mapping[str, Any]) -> str:
    """Two sentences; one if nothing could be compared."""
    lines = [line for line in standings(results) if line.cells]
    if not lines:
        return "No method finished, so there is nothing to recommend."
    key = rank_by(results)
    chosen = pick(lines, key)
    return f"{_first(lines, chosen, key)} {_second(results, lines, chosen)}"


def _first(lines: Sequence[Standing], chosen: Standing, key: str) -> str:
    """What to pick, by the figure that ranks."""
    name, cell, what = label(chosen.name), chosen.cells[key], metric(key).label
    others = [line for line in lines if line is not chosen and line.cells[key].tied]
    value = f"{cell.value:.3f}" + ("" if math.isnan(cell.error) else f" ± {cell.error:.3f}")
    cost = _cost(chosen)
    paid = "" if math.isnan(cost) or chosen.name == "map" else f", at {cost:.1f} times the training time of MAP"
    if not others:
        rest = f" of the {len(lines)} methods" if len(lines) > 1 else ""
        return f"Pick {name}: its {what} of {value} is clearly the best{rest}{paid}."
    if cell.best:
        start = f"Pick {name}: it has the best {what} ({value}), and of what is statistically tied with it"
        return f"{start} ({_listed(others)}) nothing is cheaper to train{paid}."
    leader = next(line for line in lines if line.cells[key].best)
    ahead = f"{label(leader.name)} with {leader.cells[key].value:.3f}"
    start = f"Pick {name}: its {what} of {value} is statistically tied with the best ({ahead})"
    return f"{start}, and it is the cheapest to train of the {len(others) + 1} that are{paid}."


def _second(results: Mapping[str, Any], lines: Sequence[Standing], chosen: Standing) -> str:
    """What its confidence is worth, and who is better where it is not the best."""
    said = _confidence(results, chosen)
    losing = [
        (name, cell)
        for name, cell in chosen.cells.items()
        if metric(name).better and not cell.tied and any(line.cells[name].tied for line in lines if name in line.cells)
    ]
    if not losing:
        return f"{said}, and no other method is significantly better in any figure of quality."
    name, _ = losing[0]
    winner = next(line for line in lines if name in line.cells and line.cells[name].best)
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


def _listed(lines: Sequence[Standing]) -> str:
    names = [label(line.name) for line in lines]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _cost(line: Standing) -> float:
    return line.cells["train_time"].value if "train_time" in line.cells else math.nan
