"""Learning-rate factors over a run, as small frozen objects: ``factor(step, plan)`` multiplies the base rate.

With t = step/steps in [0, 1), and cycles of L = ⌈steps/cycles⌉ steps:

    Constant        1
    Linear          1 → end
    Cosine          end + (1 − end)·½(1 + cos πt)
    OneCycle        up from 1/25 to 1 over ``warmup`` of the run, then down a cosine to 0
    MultiStep       × gamma at each milestone (a fraction of the run)
    CyclicalCosine  ½(1 + cos(π·mod(step, L)/L)): back to 1 at every cycle's start
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from posterity.types import Plan, PosterityError, check_positive, check_whole

__all__ = [
    "ByStep",
    "Constant",
    "Cosine",
    "CyclicalCosine",
    "Linear",
    "MultiStep",
    "OneCycle",
    "Pace",
    "Schedule",
    "schedule",
]


@dataclass(frozen=True)
class Schedule:
    """A learning-rate factor by step."""

    def factor(self, step: int, plan: Plan) -> float:
        """What the base learning rate is multiplied by at this step."""
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Schedule):
    """The base rate throughout."""

    def factor(self, step: int, plan: Plan) -> float:
        """1."""
        return 1.0


@dataclass(frozen=True)
class Linear(Schedule):
    """A straight line down to ``end``."""

    end: float = 0.0

    def factor(self, step: int, plan: Plan) -> float:
        """1 + (end − 1)·t."""
        return 1 + (self.end - 1) * step / plan.steps


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine down to ``end``."""

    end: float = 0.0

    def factor(self, step: int, plan: Plan) -> float:
        """end + (1 − end)·½(1 + cos πt)."""
        return self.end + (1 - self.end) * 0.5 * (1 + math.cos(math.pi * step / plan.steps))


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Up a line, down a cosine."""

    warmup: float = 0.3

    def factor(self, step: int, plan: Plan) -> float:
        """1/25 → 1 → 0."""
        peak = max(1, round(self.warmup * plan.steps))
        if step < peak:
            return 1 / 25 + (1 - 1 / 25) * step / peak
        return 0.5 * (1 + math.cos(math.pi * (step - peak) / max(1, plan.steps - peak)))


@dataclass(frozen=True)
class MultiStep(Schedule):
    """Drops by ``gamma`` at fractions of the run, after an optional linear warm-up."""

    milestones: tuple[float, ...] = (0.5, 0.75)
    gamma: float = 0.1
    warmup: float = 0.0

    def factor(self, step: int, plan: Plan) -> float:
        """gamma to the number of milestones passed."""
        rise = min(1.0, (step + 1) / max(1, round(self.warmup * plan.steps)))
        return rise * self.gamma ** sum(step >= m * plan.steps for m in self.milestones)


@dataclass(frozen=True)
class CyclicalCosine(Schedule):
    """Warm restarts: every cycle begins at the base rate and ends near 0."""

    cycles: int = 4

    def __post_init__(self) -> None:
        check_whole(cycles=self.cycles)
        check_positive(cycles=self.cycles)

    def position(self, step: int, plan: Plan) -> float:
        """Where in its cycle a step lies, in [0, 1)."""
        length = math.ceil(plan.steps / self.cycles)
        return (step % length) / length

    def factor(self, step: int, plan: Plan) -> float:
        """½(1 + cos π·position)."""
        return 0.5 * (1 + math.cos(math.pi * self.position(step, plan)))


def whole(step: int) -> float:
    """The temperature of the Bayes posterior, 1, at every step."""
    return 1.0


ByStep = tuple[Callable[[int], float], Callable[[int], float]]
"""The learning-rate factor and the temperature of each step."""


@dataclass(frozen=True)
class Pace:
    """What a method that owns its schedule sets at each step.

    Attributes:
        lr: The factor of the learning rate; None leaves it to ``Training(schedule=...)``.
        temperature: The temperature.
    """

    lr: Callable[[int], float] | None = None
    temperature: Callable[[int], float] = whole

    def by_step(self, chosen: Schedule, plan: Plan) -> ByStep:
        """Learning-rate factor and temperature; the factor is that of ``chosen`` where the method leaves it open."""
        return self.lr or (lambda step: chosen.factor(step, plan)), self.temperature


_BY_NAME: dict[str, Schedule] = {
    "constant": Constant(),
    "linear": Linear(),
    "cosine": Cosine(),
    "one-cycle": OneCycle(),
    "multi-step": MultiStep(),
    "cyclical": CyclicalCosine(),
}


def schedule(spec: str | Schedule) -> Schedule:
    """The schedule of this name, or the given one."""
    if isinstance(spec, Schedule):
        return spec
    if spec not in _BY_NAME:
        raise PosterityError(f"unknown schedule {spec!r}; there are {', '.join(_BY_NAME)}")
    return _BY_NAME[spec]
