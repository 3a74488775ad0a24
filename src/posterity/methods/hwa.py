"""HWA: averaging the variational parameters along the path of a Gaussian method (Karimi & Li, AABI 2021).

A method whose posterior is Gaussian (MeanField, VOGN, IVON) is trained under a cyclical learning rate; at the end of
each cycle its means μₖ and variances σₖ² are collected, as a shadow that never touches the training itself. After n
snapshots, with the running moments of ``posterity.methods.collect``,

    mean      m = mean_k μₖ
    moments       v = mean_k (μₖ − m)²        what the means did along the path: the paper's intent
    variational   mean_k σₖ²                  what the method itself believes
    mixture       mean_k σₖ² + v              the variance of the equal mixture of all N(μₖ, σₖ²), by the law of total
                                              variance

and ``spread`` says which is the posterior's variance, diag. With ``rank`` ≥ 2 the last r deviations D of a mean from
the running mean make q(w) = N(m, ½ diag + D Dᵀ/(2(r − 1))), as in SWAG; else q(w) = N(m, diag).

The recursion printed in the paper, σ ← (n σ + μ²)/(n + 1) − m², puts a variance where a second moment belongs. For
independent snapshots of mean a it gives −(n − 1) a²/2 on average, whatever their variance: negative from the second
snapshot on. The moments above are what it means to say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol, Self, cast, runtime_checkable

from torch import Tensor, nn
from torch.optim import Optimizer

from posterity.layers.variational import Variational
from posterity.methods.base import Method, check_precision, plain_parameters, share_prior
from posterity.methods.collect import Snapshots, Times, check_rank
from posterity.methods.mean_field import MeanField
from posterity.methods.swa import WANTED, path_of, trajectory_of
from posterity.methods.swag import with_deviations
from posterity.optim.schedules import Pace
from posterity.posteriors import WeightPosterior
from posterity.probability.likelihoods import Likelihood
from posterity.probability.priors import Prior
from posterity.random import RandomStreams
from posterity.run import Run
from posterity.types import Batch, Params, Plan, PosterityError, check_fraction, check_positive_if_given

__all__ = ["HWA"]

SPREADS = ("moments", "variational", "mixture")


@runtime_checkable
class HasMoments(Protocol):
    """A method whose current posterior is a Gaussian over the plain network's parameters."""

    def moments(self, run: Run) -> tuple[Params, Params]:
        """Mean and variance of every parameter."""
        ...


@dataclass(frozen=True, kw_only=True, repr=False)
class HWA(Method):
    """Hyper-parameter weight averaging around a Gaussian method.

    Attributes:
        of: The method whose means and variances are averaged; it brings prior, estimator and temperature.
        start: When averaging starts: a step (int) or a fraction of the run (float).
        every: Steps of a cycle, or ``"epoch"``; None is an epoch, or less where a short run would give few snapshots.
        rank: Deviations kept for a low-rank covariance; 0 for a diagonal one.
        spread: Whose variance the posterior has: ``"mixture"``, ``"moments"`` or ``"variational"``.
        decay: 0 weighs all snapshots alike; above, older ones fade by this factor with each new one.
        lr: Learning rate at the beginning of a cycle; None takes half the base rate.
        end_lr: Learning rate at its end; None takes a tenth of that.
    """

    of: Method = MeanField()
    start: int | float = 0.5
    every: int | str | None = None
    rank: int = 0
    spread: str = "mixture"
    decay: float = 0.0
    lr: float | None = None
    end_lr: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.of, HasMoments):
            raise PosterityError(f"HWA needs a Gaussian method such as MeanField(), got {self.of!r}")
        if self.spread not in SPREADS:
            raise PosterityError(f"spread must be one of {', '.join(SPREADS)}, got {self.spread!r}")
        check_rank(self.rank)
        check_fraction(decay=self.decay)
        check_positive_if_given(lr=self.lr, end_lr=self.end_lr)
        share_prior(self)

    def carrying(self, prior: Prior, std: Params | None = None) -> Self:
        """Around the wrapped method with that prior."""
        of = self.of.carrying(prior, std)
        return replace(self, of=of, prior=of.prior)

    @property
    def mc_samples(self) -> int:
        """The wrapped method's."""
        return self.of.mc_samples

    @property
    def default_lr(self) -> float:
        """The wrapped method's."""
        return self.of.default_lr

    @property
    def squares(self) -> bool:
        """The wrapped method's."""
        return self.of.squares

    def times(self, plan: Plan) -> Times:
        """When snapshots are taken; refused where too few would come."""
        times, least = Times.of(plan, self.start, self.every, max(WANTED, self.rank)), max(2, self.rank)
        if times.count(plan.steps) < least:
            raise PosterityError(
                f"{times.count(plan.steps)} snapshots would come, but at least {least} are needed: start earlier, "
                "lower every, or train longer"
            )
        return times

    def schedule(self, plan: Plan) -> Pace:
        """A cosine down to the cycles' top, then cycles; the temperature is the wrapped method's."""
        own = self.of.schedule(plan)
        if own.lr is not None:
            raise PosterityError(f"{type(self.of).__name__} has a learning-rate schedule of its own, and so has HWA")
        times, base = self.times(plan), self.of.base_lr(plan)
        high = 0.5 if self.lr is None else self.lr / base
        low = 0.1 * high if self.end_lr is None else self.end_lr / base

        def factor(step: int) -> float:
            if step < times.start:
                return high + (1 - high) * 0.5 * (1 + math.cos(math.pi * step / times.start))
            position = (step - times.start) % times.every / max(1, times.every - 1)
            return low + (high - low) * 0.5 * (1 + math.cos(math.pi * position))

        return Pace(factor, own.temperature)

    def collector(self, module: nn.Module, plan: Plan) -> Snapshots:
        """Running moments of the means, the mean of the variances, and the last deviations."""
        params = module.mean() if isinstance(module, Variational) else plain_parameters(module)
        path = path_of(params, self.rank, decay=self.decay, within=True)
        return Snapshots(path, self.times(plan), cast(HasMoments, self.of).moments)

    def posterior(self, run: Run, likelihood: Likelihood, batches: Iterable[Batch]) -> WeightPosterior:
        """The Gaussian of the averages, over the plain network."""
        path = trajectory_of(run)
        mean, between, within = path.mean, path.variance, path.within
        plain = self.of.posterior(run, likelihood, batches).module.to(mean.dtype)
        variance = {"moments": between, "variational": within, "mixture": between + within}[self.spread]
        return with_deviations(plain, likelihood, path.named(mean), variance, path)

    def prepare(self, module: nn.Module) -> nn.Module:
        """The wrapped method's."""
        check_precision(self, module)
        return self.of.prepare(module)

    def check(self, module: nn.Module, likelihood: Likelihood, batch: Batch) -> None:
        """The wrapped method's."""
        self.of.check(module, likelihood, batch)

    def optimizer(self, module: nn.Module, plan: Plan, streams: RandomStreams) -> Optimizer:
        """The wrapped method's."""
        return self.of.optimizer(module, plan, streams)

    def perturb(self, optimizer: Optimizer, weight: float) -> AbstractContextManager[None]:
        """The wrapped method's."""
        return self.of.perturb(optimizer, weight)

    def penalty(self, module: nn.Module, temperature: float) -> Tensor | float:
        """The wrapped method's."""
        return self.of.penalty(module, temperature)

    def statistics(self, run: Run) -> list[Tensor]:
        """The wrapped method's."""
        return self.of.statistics(run)

    def measures(self, run: Run) -> dict[str, float]:
        """The wrapped method's."""
        return self.of.measures(run)

    def symptoms(self, run: Run) -> Iterator[str]:
        """The wrapped method's."""
        return self.of.symptoms(run)
