"""The outcome of learning a stream of tasks: the accuracy matrix, and the figures read off it.

R(t, k) is the accuracy on task k after task t; b(k) that of the network before any (Lopez-Paz and Ranzato 1706.08840,
Chaudhry et al. 1801.10112). With T tasks, of which those without a test (None in the matrix) are left out of the means,

    average accuracy     mean over k ≤ t of R(t, k)
    forgetting           mean over k < T of  max over k ≤ t < T of R(t, k) − R(T, k)
    backward transfer    mean over k < T of  R(T, k) − R(k, k)
    forward transfer     mean over k > 1 of  R(k − 1, k) − b(k)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from posterity.posteriors import Posterior, WeightPosterior
from posterity.types import PosterityError

__all__ = ["Learned", "average", "backward_transfer", "forgetting", "forward_transfer"]

Figure = float | None
"""None where a task has no test."""

Matrix = Sequence[Sequence[Figure]]


def average(matrix: Matrix) -> list[float]:
    """The mean over the tasks learned so far, after each task."""
    return [_mean(row[: t + 1]) for t, row in enumerate(matrix)]


def forgetting(matrix: Matrix) -> float:
    """How far each task has fallen from its best, the mean over all but the last."""
    last, before = matrix[-1], len(matrix) - 1
    if before < 1:
        return 0.0
    best = [max((row[k] for row in matrix[k:-1]), key=lambda v: -math.inf if v is None else v) for k in range(before)]
    return _mean(map(_less, best, last))


def backward_transfer(matrix: Matrix) -> float:
    """How each task has changed since it was learned, the mean over all but the last; below 0 is forgetting."""
    last, before = matrix[-1], len(matrix) - 1
    return _mean(_less(last[k], matrix[k][k]) for k in range(before)) if before >= 1 else 0.0


def forward_transfer(matrix: Matrix, start: Sequence[Figure]) -> float | None:
    """What each task gains from those before it, before it is learned; None where later tasks were not known."""
    later = range(1, len(matrix))
    if not later or any(len(matrix[k - 1]) <= k for k in later):
        return None
    return _mean(_less(matrix[k - 1][k], start[k]) for k in later)


def _less(first: Figure, second: Figure) -> Figure:
    return None if first is None or second is None else first - second


def _mean(values: Iterable[Figure]) -> float:
    """Of the tasks that have a test."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


@dataclass
class Learned:
    """The outcome of ``learn``, growing task by task.

    Attributes:
        strategy: What it was learned by, as text.
        settings: What else must agree between the run that began and the run that goes on.
        tasks: The names of the tasks learned so far.
        rows: After each task, by figure (``accuracy``, ``nll``, ``ece``; ``rmse``, ``nll`` for numbers), one value a
            task (None where it has no test): also tasks yet to come, where they were known.
        start: The same before the first task.
        seconds: What learning each task took.
        posterior: What is carried on to the next task.
        predictive: What predictions are made with; mostly the same.
    """

    strategy: str
    settings: dict[str, Any] = field(default_factory=dict)
    tasks: list[str] = field(default_factory=list)
    rows: list[dict[str, list[Figure]]] = field(default_factory=list)
    start: dict[str, list[Figure]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    posterior: WeightPosterior | None = None
    predictive: Posterior | None = None

    def matrix(self, figure: str = "accuracy") -> list[list[Figure]]:
        """R(t, k) of a figure: a row for every t."""
        if not self.rows or figure not in self.rows[-1]:
            known = ", ".join(self.rows[-1]) if self.rows else "none, as no task has been learned"
            raise PosterityError(f"there is no figure {figure!r}; there are {known}")
        return [row.get(figure, [None] * (t + 1)) for t, row in enumerate(self.rows)]

    @property
    def accuracy(self) -> float:
        """The average accuracy after the last task."""
        return average(self.matrix())[-1]

    def figures(self) -> dict[str, float]:
        """Every summary by name: averages after the last task, forgetting and transfers."""
        found = {name: average(self.matrix(name))[-1] for name in (self.rows[-1] if self.rows else ())}
        if "accuracy" in found:
            matrix = self.matrix()
            found |= {"forgetting": forgetting(matrix), "backward_transfer": backward_transfer(matrix)}
            forward = forward_transfer(matrix, self.start.get("accuracy", ()))
            found |= {} if forward is None else {"forward_transfer": forward}
        return found | {"seconds": sum(self.seconds)}

    def record(self) -> dict[str, Any]:
        """All of it but the posteriors, as plain values."""
        return {
            "strategy": self.strategy,
            "settings": self.settings,
            "tasks": self.tasks,
            "rows": self.rows,
            "start": self.start,
            "seconds": self.seconds,
            "figures": self.figures() if self.rows else {},
        }
