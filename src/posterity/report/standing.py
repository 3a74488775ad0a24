"""Who is how good: means over seeds, what is best, and what is statistically tied with the best.

Of two methods with K seeds each, the difference of their means has the variance

    Var_boot[mean_s a_s − mean_s b_s]  +  (Var_seeds[a] + Var_seeds[b])/K

the first from resampled test sets, the same for both (paired), the second from the seeds. Within two standard errors
they are tied. Figures without resamples (times, sizes) are not contested.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from posterity.evaluation.metrics import metric
from posterity.types import PosterityError, hint

__all__ = ["RANKS", "Cell", "Standing", "columns", "contested", "done", "standings"]

RANKS = "nll"
"""The figure that ranks: the NLL, which judges every stated probability and is proper."""

_CLASSES = (
    "accuracy",
    "nll",
    "ece",
    "misclassification_auroc",
    "ood_auroc",
    "train_time",
    "predict_time",
    "memory_mb",
    "stored",
)
_NUMBERS = ("rmse", "nll", "crps", "coverage_90", "width_90", "train_time", "predict_time", "memory_mb", "stored")


@dataclass(frozen=True)
class Cell:
    """One figure of one method.

    Attributes:
        value: The mean over seeds.
        error: Its standard error over seeds; of the bootstrap where there is one seed; nan where there is neither.
        best: Whether no method has a better mean.
        tied: Whether it is the best, or cannot be told from it.
    """

    value: float
    error: float
    best: bool = False
    tied: bool = False


@dataclass(frozen=True)
class Standing:
    """One line of the ranked table; ``reason`` says why a method has no figures."""

    name: str
    cells: Mapping[str, Cell]
    seeds: int
    reason: str = ""


def columns(results: Mapping[str, Any]) -> list[str]:
    """The figures of the ranked table that there are, in order."""
    wanted = _CLASSES if results["task"] == "classification" else _NUMBERS
    present = {name for run in done(results) for name in _figures(results, run)}
    return [name for name in wanted if name in present]


def done(results: Mapping[str, Any], method: str | None = None) -> list[Mapping[str, Any]]:
    """The finished runs, of one method or of all."""
    if method is not None and method not in results["methods"]:
        raise PosterityError(f"the results have no method {method!r}: {hint(method, results['methods'])}")
    return [run for run in results["runs"] if run["status"] == "done" and method in (None, run["method"])]


def standings(results: Mapping[str, Any], names: Sequence[str] | None = None) -> list[Standing]:
    """All methods, the best first; those without the figure that ranks behind them, failed ones last."""
    names = list(names or columns(results))
    each = {method: done(results, method) for method in results["methods"]}
    finished = [method for method, runs in each.items() if runs]
    cells = {name: contested(results, name, {m: each[m] for m in finished}) for name in names}
    lines = [
        Standing(method, {name: cells[name][method] for name in names if method in cells[name]}, len(each[method]))
        for method in finished
    ]
    order = contested(results, RANKS, {m: each[m] for m in finished})
    lines.sort(key=lambda line: -metric(RANKS).better * order[line.name].value if line.name in order else math.inf)
    failed = [Standing(method, {}, 0, _reason(results, method)) for method, runs in each.items() if not runs]
    return lines + failed


def contested(results: Mapping[str, Any], name: str, each: Mapping[str, Sequence[Any]]) -> dict[str, Cell]:
    """One figure of every method, with the best and the tied marked."""
    values = {m: [_figures(results, run).get(name, math.nan) for run in runs] for m, runs in each.items()}
    values = {m: v for m, v in values.items() if not any(math.isnan(x) for x in v)}
    better = metric(name).better
    replicates = {m: [run["scores"]["replicates"].get(name, []) for run in each[m]] for m in values}
    fought = better != 0 and bool(values) and all(r and all(r) for r in replicates.values())
    if not fought:
        return {m: Cell(float(np.mean(v)), _seed_error(v)) for m, v in values.items()}
    means = {m: float(np.mean(v)) for m, v in values.items()}
    best = max(means, key=lambda m: better * means[m])
    cells = {}
    for m in values:
        behind = abs(means[m] - means[best])
        error = difference_error(values[m], values[best], replicates[m], replicates[best])
        own = _seed_error(values[m])
        own = _spread(np.mean(np.array(replicates[m], dtype=float), 0)) if math.isnan(own) else own
        cells[m] = Cell(means[m], own, means[m] == means[best], m == best or behind <= 2 * error)
    return cells


def difference_error(
    first: Sequence[float],
    second: Sequence[float],
    first_replicates: Sequence[Sequence[float]],
    second_replicates: Sequence[Sequence[float]],
) -> float:
    """Standard error of the difference of two methods' means: see the top of this file."""
    a, b = (np.mean(np.array(r, dtype=float), 0) for r in (first_replicates, second_replicates))
    paired = _spread(a - b) if a.shape == b.shape else math.hypot(_spread(a), _spread(b))
    seeds = [0.0 if math.isnan(error) else error for error in (_seed_error(first), _seed_error(second))]
    return math.sqrt(paired**2 + seeds[0] ** 2 + seeds[1] ** 2)


def _figures(results: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, float]:
    """All figures of a run; times also relative to MAP's mean."""
    figures = {k: math.nan if v is None else v for k, v in (run["scores"]["figures"] | run["figures"]).items()}
    for name, source in (("train_time", "train_seconds"), ("predict_time", "predict_ms")):
        base = [r["figures"][source] for r in results["runs"] if r["status"] == "done" and r["method"] == "map"]
        if base:
            figures[name] = figures[source] / (sum(base) / len(base))
    return figures


def _seed_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def _spread(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.std(known, ddof=1)) if len(known) > 1 else 0.0


def _reason(results: Mapping[str, Any], method: str) -> str:
    reasons = [run.get("reason", "") for run in results["runs"] if run["method"] == method]
    return next((reason for reason in reasons if reason), "not run yet")
