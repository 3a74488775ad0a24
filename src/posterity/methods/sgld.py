"""Sampling the posterior by the path of a noisy SGD: SGLD, its preconditioned form, and SGHMC.

With g the minibatch gradient of −mean log p(y | f_w(x)) − log p(w)/N, and ξ ~ N(0, I),

    SGLD    w ← w − lr g + √(2 lr T/N) ξ
    PSGLD   w ← w − lr G g + √(2 lr G T/N) ξ,     G = 1/(ε + √V),  V a running mean of squared gradients
    SGHMC   v ← (1 − friction) v − lr g + √(2 friction lr T/N) ξ,     w ← w + v

(``posterity.optim.sgmcmc`` has the whole account). The first ``burn_in`` steps are thrown away, then the weights are
kept after every ``thin`` steps; the posterior is equal weight on those kept.

    p(w | D) ≈ 1/S Σ_s δ(w − w_s)

``lr`` is in mean-loss units (it does not change with the size of the data set) and constant unless ``lr_schedule`` says
otherwise; temperature 1 is the Bayes posterior, below it colder, 0 plain SGD. Several chains: ``members=4``;
``posterity.evaluation.diagnostics`` says whether they agree.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

import torch
from torch import nn

from posterity.methods.base import Method, lr_given_once, ridge_precision, trainable
from posterity.methods.chain import Chain
from posterity.methods.collect import Times
from posterity.optim import sgmcmc
from posterity.optim.schedules import Pace, Schedule, schedule
from posterity.posteriors import Empirical
from posterity.probability.correlated import Correlated
from posterity.probability.likelihoods import Likelihood
from posterity.probability.priors import Normal
from posterity.random import RandomStreams
from posterity.run import Run
from posterity.types import Batch, Plan, PosterityError, check_positive_if_given

__all__ = ["PSGLD", "SGHMC", "SGLD", "Sampler"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Sampler(Method):
    """What the samplers share.

    Attributes:
        lr: Step in mean-loss units; None takes the one of the training config, or the sampler's default.
        burn_in: Steps thrown away (an int), ``"epoch"`` for one epoch, or a fraction of the run (a float).
        thin: Steps from one sample to the next, or ``"epoch"``; None is an epoch, or less where a short run would give
            fewer than 30 samples.
        temperature: 1 for the Bayes posterior.
        lr_schedule: How the step changes over the run.
        folder: Where to keep the samples on disk, when they are too many for memory.
    """

    lr: float | None = None
    burn_in: int | float | str = 0.5
    thin: int | str | None = None
    temperature: float = 1.0
    lr_schedule: str | Schedule = "constant"
    folder: str | Path | None = None

    def __post_init__(self) -> None:
        check_positive_if_given(lr=self.lr)
        if not self.temperature >= 0:  # NaN would pass for a chain without noise
            raise PosterityError(f"temperature must not be negative, got {self.temperature!r}")
        schedule(self.lr_schedule)

    def base_lr(self, plan: Plan) -> float:
        """The learning rate, from the sampler or from the training config, but not both."""
        return lr_given_once(self.lr, plan, self.default_lr, "sampler")

    def schedule(self, plan: Plan) -> Pace:
        """The step's schedule at a constant temperature."""
        chosen = schedule(self.lr_schedule)
        return Pace(lambda step: chosen.factor(step, plan), lambda step: self.temperature)

    def check_steps(self, module: nn.Module, plan: Plan, most: float) -> None:
        """Refuse a Normal prior so narrow that it alone drives steps of this size apart: lr/(N std²) above ``most``."""
        if not isinstance(self.prior, Normal | Correlated):
            return
        lr, prior = self.base_lr(plan), self.prior.independent()
        each = ((name, prior.at(name, p.shape).std) for name, p in trainable(module).items())
        std, name = min((float(torch.as_tensor(own).min()), name) for name, own in each)
        largest = most * plan.num_data * std**2
        if lr > largest:
            raise PosterityError(
                f"the prior holds weights of {name} to a std of {std:.2g}, where steps of lr={lr:g} diverge: take an "
                f"lr below {largest:.2g}, or a method whose steps follow the prior, such as VOGN or MeanField"
            )

    def times(self, plan: Plan) -> Times:
        """When samples are kept."""
        burn_in = plan.count(self.burn_in, "burn_in") if isinstance(self.burn_in, str) else self.burn_in
        return Times.of(plan, burn_in, self.thin, wanted=30, names=("burn_in", "thin"))

    def collector(self, module: nn.Module, plan: Plan) -> Chain:
        """The chain after burn-in, thinned."""
        times = self.times(plan)
        return Chain(module, times, times.count(plan.steps), self.folder)

    def posterior(self, run: Run, likelihood: Likelihood, batches: Iterable[Batch]) -> Empirical:
        """Equal weight on every sample."""
        return cast(Chain, run.collector).posterior(run.module, likelihood, batches)

    def symptoms(self, run: Run) -> Iterator[str]:
        """Too few samples, or a training loss that still falls."""
        count = cast(Chain, run.collector).count
        if count < 10:
            yield f"the chain gave {count} samples only: lower thin or burn_in, or train longer"
        kept = self.times(run.plan).start / run.plan.steps_per_epoch
        drift = _drift([figures["loss"] for figures in run.history if figures["epoch"] > kept + 1])
        if drift is not None:
            yield f"the chain has not settled: its training loss fell {drift} while samples were kept; raise burn_in"


@dataclass(frozen=True, kw_only=True, repr=False)
class SGLD(Sampler):
    """Stochastic-gradient Langevin dynamics (Welling & Teh 2011)."""

    default_lr: ClassVar[float] = 0.1

    def optimizer(self, module: nn.Module, plan: Plan, streams: RandomStreams) -> sgmcmc.SGLD:
        """Langevin steps."""
        self.check_steps(module, plan, 2.0)
        return sgmcmc.SGLD(
            module.parameters(),
            self.base_lr(plan),
            plan.num_data,
            temperature=self.temperature,
            weight_decay=ridge_precision(self.prior) / plan.num_data,
            generator=streams.shared,
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class PSGLD(Sampler):
    """SGLD with the preconditioner of RMSprop (Li et al. 2016, 1512.07666).

    Attributes:
        beta: Decay of the mean squared gradient.
        eps: Keeps the preconditioner finite.
    """

    default_lr: ClassVar[float] = 1e-3

    beta: float = 0.99
    eps: float = 1e-5

    def optimizer(self, module: nn.Module, plan: Plan, streams: RandomStreams) -> sgmcmc.PSGLD:
        """Preconditioned Langevin steps."""
        return sgmcmc.PSGLD(
            module.parameters(),
            self.base_lr(plan),
            plan.num_data,
            temperature=self.temperature,
            weight_decay=ridge_precision(self.prior) / plan.num_data,
            beta=self.beta,
            eps=self.eps,
            generator=streams.shared,
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class SGHMC(Sampler):
    """Stochastic-gradient Hamiltonian Monte Carlo (Chen et al. 2014, 1402.4102).

    Attributes:
        friction: The share of the velocity lost at each step; momentum is 1 − friction.
    """

    default_lr: ClassVar[float] = 0.02

    friction: float = 0.1

    def optimizer(self, module: nn.Module, plan: Plan, streams: RandomStreams) -> sgmcmc.SGHMC:
        """Steps with momentum."""
        self.check_steps(module, plan, 2 * (2 - self.friction))
        return sgmcmc.SGHMC(
            module.parameters(),
            self.base_lr(plan),
            plan.num_data,
            temperature=self.temperature,
            weight_decay=ridge_precision(self.prior) / plan.num_data,
            friction=self.friction,
            generator=streams.shared,
        )


def _drift(losses: list[float]) -> str | None:
    """From where to where the loss fell, if its halves lie two standard deviations apart (a plain trend: 3.5).

    Standard deviations, not standard errors: the losses of a chain are not independent.
    """
    half = len(losses) // 2
    if half < 3:
        return None
    first, second = losses[:half], losses[-half:]
    spread = (statistics.variance(first) + statistics.variance(second)) / 2
    before, after = statistics.mean(first), statistics.mean(second)
    return f"from {before:.4g} to {after:.4g}" if before - after > 2 * spread**0.5 else None
