"""How much the KL weighs at each step of a fit, as small frozen objects: ``weight(step, plan)``.

With t = step/steps, M steps an epoch and i = 1 … M the step within it:

    ConstantKL   1
    LinearKL     rises from 0 to 1 over ``fraction`` of the run, after ``delay`` of it
    CyclicalKL   ``cycles`` times: rises from 0 to 1 over ``ramp`` of the cycle, then stays 1     (Fu et al. 2019)
    BlundellKL   M·2^(M−i)/(2^M − 1): early batches of every epoch weigh more                     (Blundell et al. 2015)

Blundell's own weights sum to 1 over an epoch, for a likelihood that is the sum over a batch. Here the likelihood is a
mean over examples and the KL is divided by N at every step, so the weights are M times theirs: on average 1, like the
others once their rise is over. A weight is the temperature of that step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import SupportsIndex

from posterity.types import Plan, PosterityError, check_fraction

__all__ = ["BlundellKL", "ConstantKL", "CyclicalKL", "KLSchedule", "LinearKL", "kl_schedule", "stair"]


@dataclass(frozen=True)
class KLSchedule:
    """A weight of the KL by step."""

    def weight(self, step: int, plan: Plan) -> float:
        """What the KL is multiplied by at this step."""
        raise NotImplementedError


@dataclass(frozen=True)
class ConstantKL(KLSchedule):
    """The whole KL from the first step."""

    def weight(self, step: int, plan: Plan) -> float:
        """1."""
        return 1.0


@dataclass(frozen=True)
class LinearKL(KLSchedule):
    """A warm-up, so that weights learn something before they are pulled to the prior.

    Attributes:
        fraction: The share of the run that the rise takes.
        delay: The share of the run before it, without any KL.
    """

    fraction: float = 0.25
    delay: float = 0.0

    def __post_init__(self) -> None:
        check_fraction(fraction=self.fraction, delay=self.delay)
        if self.delay + self.fraction > 1 + 1e-9:
            raise PosterityError(
                f"delay={self.delay!r} and fraction={self.fraction!r} exceed the run: the KL would never be whole"
            )

    def weight(self, step: int, plan: Plan) -> float:
        """From 0 to 1 in a straight line of stairs."""
        past = step - self.delay * plan.steps
        return stair(past / max(1.0, self.fraction * plan.steps))


@dataclass(frozen=True)
class CyclicalKL(KLSchedule):
    """Several warm-ups."""

    cycles: int = 4
    ramp: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.cycles, SupportsIndex) or self.cycles < 1:
            raise PosterityError(f"cycles must be a positive number, got {self.cycles!r}")
        check_fraction(ramp=self.ramp)

    def weight(self, step: int, plan: Plan) -> float:
        """From 0 to 1 over the first part of every cycle."""
        length = plan.steps / self.cycles
        return stair((step % length) / max(1.0, self.ramp * length))


@dataclass(frozen=True)
class BlundellKL(KLSchedule):
    """Weights that halve from batch to batch and start over with every epoch."""

    def weight(self, step: int, plan: Plan) -> float:
        """M·2^(M−i)/(2^M − 1), written so that it cannot overflow."""
        count, index = plan.steps_per_epoch, step % plan.steps_per_epoch + 1
        return count * 2.0**-index / (1 - 2.0**-count)


_STAIRS = 20


def stair(risen: float) -> float:
    """The part risen, in [0, 1], rounded down to twentieths: a recorded step on a GPU is recorded anew at each."""
    return min(1.0, max(0.0, math.floor(_STAIRS * risen + 1e-9) / _STAIRS))


_BY_NAME: dict[str, KLSchedule] = {
    "constant": ConstantKL(),
    "linear": LinearKL(),
    "cyclical": CyclicalKL(),
    "blundell": BlundellKL(),
}


def kl_schedule(spec: str | KLSchedule) -> KLSchedule:
    """The schedule of this name, or the given one."""
    if isinstance(spec, KLSchedule):
        return spec
    if spec not in _BY_NAME:
        raise PosterityError(f"unknown KL schedule {spec!r}; there are {', '.join(_BY_NAME)}")
    return _BY_NAME[spec]
