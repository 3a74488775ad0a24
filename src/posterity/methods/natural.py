"""What VOGN, OGN, IVON and the K-FAC methods share: an optimizer that holds the prior and collects its own statistics.

The loop's hooks pass straight to the optimizer (``posterity.optim.sampled``): ``perturb`` samples its weights, and
``statistics`` are its averages over draws and micro-batches. In a fit every rank draws its own noise, since the
statistics are averaged with it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from posterity.calling import call, map_batch
from posterity.curvature.kfac import KroneckerCapture
from posterity.curvature.squared import SquareCapture
from posterity.methods.base import Method, lr_given_once
from posterity.methods.tempering import stair
from posterity.networks import differentiable, duplicate
from posterity.optim.flat_group import PerWeight
from posterity.optim.sampled import SampledOptimizer
from posterity.optim.schedules import Pace
from posterity.posteriors import WeightPosterior
from posterity.probability.likelihood import Likelihood, before_training
from posterity.probability.priors import Normal
from posterity.run import Run
from posterity.types import (
    Batch,
    Params,
    Plan,
    PosterityError,
    PosterityWarning,
    check_fraction,
    check_positive,
    check_positive_if_given,
    check_whole,
)

__all__ = ["NaturalGradient", "watch_two"]


@dataclass(frozen=True, kw_only=True, repr=False)
class NaturalGradient(Method):
    """What the natural-gradient methods share.

    Attributes:
        prior: A Normal, by parameter if it is to carry an earlier posterior.
        lr: Learning rate; None takes the one of the training config, or the method's own.
        mc_samples: Draws averaged at every step.
        temperature: 1 for the Bayes posterior, below it a cold one.
        warmup: The share of the run over which the temperature rises to its value.
        warmup_start: The share of the temperature that it starts from.
    """

    lr: float | None = None
    mc_samples: int = 1
    temperature: float = 1.0
    warmup: float = 0.0
    warmup_start: float = 0.1

    def __post_init__(self) -> None:
        check_whole(mc_samples=self.mc_samples)
        check_positive(mc_samples=self.mc_samples, temperature=self.temperature, warmup_start=self.warmup_start)
        check_fraction(warmup=self.warmup)
        check_positive_if_given(lr=self.lr)
        if not isinstance(self.prior, Normal):
            raise PosterityError(f"{type(self).__name__} needs a Normal prior, got {self.prior!r}")

    def carrying(self, prior: Any, std: Params | None = None) -> Self:
        """With the prior's marginals: the weights of these methods are independent."""
        return replace(self, prior=prior.independent())

    def base_lr(self, plan: Plan) -> float:
        """The learning rate, from the method or from the training config, but not both."""
        return lr_given_once(self.lr, plan, self.default_lr, "method")

    def schedule(self, plan: Plan) -> Pace:
        """The temperature's rise, in stairs; the learning rate is left to ``Training``."""

        def temperature(step: int) -> float:
            risen = stair(step / max(1.0, self.warmup * plan.steps))
            return self.temperature * (self.warmup_start + (1 - self.warmup_start) * risen if self.warmup else 1.0)

        return Pace(temperature=temperature)

    def prior_terms(self, module: nn.Module) -> tuple[PerWeight, PerWeight]:
        """The prior's precision and mean: a number where all weights share it, else by parameter."""
        prior = cast(Normal, self.prior)
        each = {name: prior.at(name, p.shape) for name, p in module.named_parameters()}
        precision = {name: own.precision for name, own in each.items()}
        mean = {name: own.mean for name, own in each.items()}
        return precision if _differs(prior.std) else prior.precision, mean if _differs(prior.mean) else prior.mean

    def perturb(self, optimizer: Optimizer, weight: float) -> AbstractContextManager[None]:
        """A draw of the weights; OGN and K-FAC stay at the mean, and only watch the layers."""
        return cast(SampledOptimizer, optimizer).sampled_weights(weight)

    def penalty(self, module: nn.Module, temperature: float) -> float:
        """0: the update holds the prior."""
        return 0.0

    def statistics(self, run: Run) -> list[Tensor]:
        """The optimizer's own averages."""
        return cast(SampledOptimizer, run.optimizer).statistics(run.entries)

    def posterior(self, run: Run, likelihood: Likelihood, batches: Iterable[Batch]) -> WeightPosterior:
        """Read off the optimizer."""
        return cast(SampledOptimizer, run.optimizer).posterior(run.module, likelihood)

    def moments(self, run: Run) -> tuple[Params, Params]:
        """Mean and variance of every parameter, for wrappers such as HWA."""
        return cast(SampledOptimizer, run.optimizer).moments(run.module)


def _differs(hyper: Any) -> bool:
    """Whether a hyper-parameter is given by parameter or by weight, rather than as one number for all."""
    return isinstance(hyper, Mapping | Tensor)


def watch_two(
    capture: Callable[[nn.Module], SquareCapture | KroneckerCapture],
    module: nn.Module,
    likelihood: Likelihood,
    batch: Batch,
) -> None:
    """Refuse a network that does not keep examples first, by a look at two of them alone.

    A whole batch may not show it: sequences may have as many positions as the batch has examples.
    """
    network = duplicate(module).eval()
    params = [p for p in network.parameters() if p.requires_grad]
    two = map_batch(batch, lambda t: t[:2].to(params[0].device))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PosterityWarning)  # the optimizer will say it
        watch = capture(network)
    with differentiable(network), torch.enable_grad(), watch.on():
        loss = before_training(likelihood).loss(call(network, two.inputs), two.targets)
        found = torch.autograd.grad(loss, params, allow_unused=True)
    watch.check_complete([p for p, gradient in zip(params, found, strict=True) if gradient is not None])
