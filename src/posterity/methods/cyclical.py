"""Cyclical SG-MCMC (Zhang et al. 2020, 1902.03932): a sampler that leaves a mode to look for the next.

With cycles of L steps and pos = (step mod L)/L in [0, 1),

    lr(step)          = lr · ½(cos(π pos) + 1)               a large step as a cycle begins, almost none at its end
    temperature(step) = 0 while pos < explore, then T        first explore without noise, then sample

and each cycle gives ``samples`` sets of weights, evenly spaced over its sampling part, the last at its end.

Without noise it is an older idea. One snapshot at the end of each cycle is a snapshot ensemble (Huang et al. 2017,
1704.00109). A long first cycle and short low ones after it are a fast geometric ensemble (Garipov et al. 2018,
1802.10026): the path stays in one basin and collects the networks along it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from posterity.methods.base import Method, share_prior
from posterity.methods.chain import Chain
from posterity.methods.sgld import SGHMC, Sampler
from posterity.optim.schedules import Pace
from posterity.posteriors import Empirical
from posterity.probability.likelihoods import Likelihood
from posterity.random import RandomStreams
from posterity.run import Run
from posterity.types import Batch, Plan, PosterityError, check_fraction, check_positive, check_whole

__all__ = ["Cyclical", "FastGeometric", "Snapshot"]

_SPREAD = "how far networks without noise lie apart is no variance of their weights"


@dataclass(frozen=True)
class Cycles:
    """A first long cycle of ``first`` steps (0 for none) and then cycles of one length, give or take a step."""

    first: int
    steps: int
    cycles: int

    @property
    def shortest(self) -> int:
        """Steps of the shortest cycle that is sampled from."""
        return (self.steps - self.first) // self.cycles

    def begin(self, cycle: int) -> int:
        """The first step of a cycle, counted from 0 after the long one."""
        return self.first + cycle * (self.steps - self.first) // self.cycles

    def position(self, step: int) -> float:
        """Where in its cycle a step lies, in [0, 1)."""
        if step < self.first:
            return step / self.first
        cycle = ((step - self.first + 1) * self.cycles - 1) // (self.steps - self.first)
        begin = self.begin(cycle)
        return (step - begin) / (self.begin(cycle + 1) - begin)

    def sampled(self, explore: float, samples: int) -> frozenset[int]:
        """After which steps weights are kept: evenly over each cycle's sampling part, the last at its end."""
        kept = set()
        for cycle in range(self.cycles):
            begin, end = self.begin(cycle), self.begin(cycle + 1)
            apart = (1 - explore) * (end - begin) / samples
            kept |= {end - int(apart * i + 1e-9) for i in range(samples)}  # 1 - 0.9 is a little less than 0.1
        return frozenset(kept)


@dataclass(frozen=True, kw_only=True, repr=False)
class Cyclical(Method):
    """A sampler under a cyclical step size.

    Attributes:
        of: The sampler, which brings learning rate, temperature and prior; it has no burn-in or thinning of its own.
        cycles: How many.
        explore: The part of each cycle without noise.
        samples: Sets of weights kept from each cycle.
        start: A first long cycle of which nothing is kept: its length as a step or a fraction of the run.
        peak: What the step is multiplied by at the start of each cycle after the first long one.
    """

    of: Sampler = SGHMC()
    cycles: int = 4
    explore: float = 0.9
    samples: int = 3
    start: int | float = 0
    peak: float = 1.0

    def __post_init__(self) -> None:
        check_whole(cycles=self.cycles, samples=self.samples)
        check_positive(cycles=self.cycles, samples=self.samples, peak=self.peak)
        check_fraction(explore=self.explore)
        if not isinstance(self.of, Sampler):
            raise PosterityError(f"Cyclical needs a sampler such as SGLD() or SGHMC(), got {self.of!r}")
        plain = type(self.of)()
        if (self.of.burn_in, self.of.thin, self.of.lr_schedule) != (plain.burn_in, plain.thin, plain.lr_schedule):
            raise PosterityError("Cyclical has its own schedule and samples: leave burn_in, thin and lr_schedule out")
        share_prior(self)

    def timetable(self, plan: Plan) -> Cycles:
        """The cycles of a run; refused where one would be too short to give its samples."""
        times = Cycles(plan.at(self.start), plan.steps, self.cycles)
        if (1 - self.explore) * times.shortest < self.samples - 1e-9:
            raise PosterityError(
                f"a cycle of {times.shortest} steps of which {self.explore:.0%} explore is too short for {self.samples}"
                " samples: train longer, or lower cycles, explore or samples"
            )
        return times

    def schedule(self, plan: Plan) -> Pace:
        """Half a cosine in each cycle, and noise in its last part."""
        times = self.timetable(plan)

        def factor(step: int) -> float:
            height = 1.0 if step < times.first else self.peak
            return height * 0.5 * (math.cos(math.pi * times.position(step)) + 1)

        def temperature(step: int) -> float:
            return self.of.temperature if step >= times.first and times.position(step) >= self.explore else 0.0

        return Pace(factor, temperature)

    def optimizer(self, module: nn.Module, plan: Plan, streams: RandomStreams) -> Optimizer:
        """The sampler's."""
        return self.of.optimizer(module, plan, streams)

    def penalty(self, module: nn.Module, temperature: float) -> Tensor | float:
        """The sampler's."""
        return self.of.penalty(module, temperature)

    def collector(self, module: nn.Module, plan: Plan) -> Chain:
        """The samples of all cycles."""
        kept = self.timetable(plan).sampled(self.explore, self.samples)
        return Chain(module, kept.__contains__, len(kept), self.of.folder)

    def posterior(self, run: Run, likelihood: Likelihood, batches: Iterable[Batch]) -> Empirical:
        """Equal weight on every sample of every cycle."""
        return self.of.posterior(run, likelihood, batches)


@dataclass(frozen=True, kw_only=True, repr=False)
class Snapshot(Cyclical):
    """Snapshot ensemble: plain SGD with momentum under warm restarts, one network from the end of each cycle."""

    uncarried: ClassVar[str] = _SPREAD

    of: Sampler = SGHMC(temperature=0.0)
    cycles: int = 5
    explore: float = 0.0
    samples: int = 1


@dataclass(frozen=True, kw_only=True, repr=False)
class FastGeometric(Cyclical):
    """Fast geometric ensemble: one long cycle, then short low ones around the basin that it found."""

    uncarried: ClassVar[str] = _SPREAD

    of: Sampler = SGHMC(temperature=0.0)
    cycles: int = 10
    explore: float = 0.0
    samples: int = 1
    start: int | float = 0.75
    peak: float = 0.2
