"""What a comparison compares, and the function that follows how it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from posterity.types import PosterityError

__all__ = ["Contest", "Watch"]

Watch = Callable[[str, int, str, dict[str, Any]], None]
"""Called at every step: method, seed, status (``choosing``, ``training``, ``done``, ``failed``, ``kept``), record."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """What is compared, on what.

    Attributes:
        data: A data set's name, an .npz or .csv file, or ``package.module:function``.
        model: A network's name, ``package.module:function``, or nothing for the usual one of the data.
        methods: Methods by their names in the shell, ``core`` or ``all``.
        seeds: How many repetitions.
        epochs: Passes over the data; 0 for what suits its size.
        ood: Names of out-of-distribution sets, beside the foreign inputs that are made on the spot.
        budget: The same epochs for every method, or as many as fit in the time that MAP takes for them.
        task: ``classification`` or ``regression``, where the data do not say it.
        target: The column to predict, of a .csv file.
        draws: Networks averaged in predictions.
        shift: Follow the figures of the first seed along corruptions: thirty further test sets.
        tune: Choose settings on the validation part; if not, each method's first.
    """

    data: str = "digits"
    model: str = ""
    methods: tuple[str, ...] = ("core",)
    seeds: int = 3
    epochs: int = 0
    ood: tuple[str, ...] = ()
    budget: Literal["equal-epochs", "equal-time"] = "equal-epochs"
    task: str | None = None
    target: str | None = None
    draws: int = 32
    shift: bool = True
    tune: bool = True

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.draws < 1:
            raise PosterityError(f"seeds and draws must be positive, got {self.seeds} and {self.draws}")
        if self.epochs < 0:
            raise PosterityError(f"epochs must be positive, or 0 for what suits the data, got {self.epochs}")
        if not self.methods:
            raise PosterityError("no method was named")
        if self.budget not in ("equal-epochs", "equal-time"):
            raise PosterityError(f"the budget is equal-epochs or equal-time, got {self.budget!r}")
