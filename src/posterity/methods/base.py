"""What a method is: frozen hyper-parameters and the hooks by which the one training loop calls on it.

The loop (``posterity.training.loop``) does, at every step, for each of ``mc_samples`` draws and each micro-batch,

    with method.perturb(optimizer, weight):
        loss = −mean log p(y | f(x)) + method.penalty(module, temperature)/num_data
        (weight · loss).backward()

then averages ``method.statistics(run)`` over ranks, and steps. The defaults here are those of MAP.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from posterity.networks import duplicate
from posterity.optim.schedules import Pace
from posterity.posteriors.base import Posterior
from posterity.probability.likelihoods import Likelihood
from posterity.probability.priors import Normal, Prior
from posterity.random import RandomStreams
from posterity.run import Collector, NoCollector, Run
from posterity.types import Batch, Params, Plan, PosterityError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["POINT", "Method", "check_precision", "lr_given_once", "plain_parameters", "share_prior", "trainable"]

POINT = "one point has no variances"
"""Why a method that ends in one is ``uncarried``."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """How to get a posterior.

    Attributes:
        prior: p(w).
    """

    prior: Prior = Normal(1.0)

    @property
    def mc_samples(self) -> int:
        """Draws of the weights averaged at every step; 1 where the method draws none."""
        return 1

    @property
    def default_lr(self) -> float:
        """The learning rate where none is given."""
        return 1e-3

    @property
    def vectorises(self) -> bool:
        """Whether several members can be trained as one stacked network: every hook works element by element."""
        return False

    @property
    def squares(self) -> bool:
        """Whether it squares the gradients of single examples: their weights would be squared with them."""
        return False

    @property
    def uncarried(self) -> str:
        """Why its posterior cannot be the prior of its own next task; empty where it can."""
        return ""

    def prepare(self, module: nn.Module) -> nn.Module:
        """The network that is trained: ALWAYS a copy, with layers swapped or not."""
        return duplicate(module)

    def check(self, module: nn.Module, likelihood: Likelihood, batch: Batch) -> None:
        """Refuse, before training, a network whose posterior could not be made; ``batch`` is the first."""

    def schedule(self, plan: Plan) -> Pace:
        """Learning-rate factor and temperature by step, where the method owns them."""
        return Pace()

    def base_lr(self, plan: Plan) -> float:
        """The learning rate that the schedule's factors multiply."""
        return plan.lr or self.default_lr

    def optimizer(self, module: nn.Module, plan: Plan, streams: RandomStreams) -> Optimizer:
        """What updates the network: the plain optimizer asked for, with a ridge prior as its weight decay."""
        decay = ridge_precision(self.prior) / plan.num_data
        return plan.algorithm.build(module.parameters(), self.base_lr(plan), decay)

    def perturb(self, optimizer: Optimizer, weight: float) -> AbstractContextManager[None]:
        """Weight noise around one forward and backward; ``weight`` is what the loss was multiplied by."""
        return nullcontext()

    def penalty(self, module: nn.Module, temperature: float) -> Tensor | float:
        """−log p(w) or temperature·KL(q‖p): SUMMED, unscaled; 0 where the update itself holds the prior."""
        if ridge_precision(self.prior):
            return 0.0
        return -self.prior.log_prob(plain_parameters(module))

    def statistics(self, run: Run) -> list[Tensor]:
        """The tensors to average over ranks, already averaged over this rank's draws and micro-batches."""
        gradients = [p.grad for p in run.trained if p.grad is not None]
        if run.entries > 1:
            torch._foreach_mul_(gradients, 1 / run.entries)
        return gradients

    def collector(self, module: nn.Module, plan: Plan) -> Collector:
        """What watches the trajectory."""
        return NoCollector()

    def posterior(self, run: Run, likelihood: Likelihood, batches: Iterable[Batch]) -> Posterior:
        """Read the posterior off the finished run, or fit it post hoc on ``batches`` (one pass over training data)."""
        raise NotImplementedError

    def carrying(self, prior: Prior, std: Params | None = None) -> Self:
        """This method for one of a stream of tasks.

        Args:
            prior: What the tasks before have left, or the base prior of the first.
            std: The standard deviations to start from, for methods that learn them; zero where there is none.
        """
        return replace(self, prior=prior)

    def measures(self, run: Run) -> dict[str, float]:
        """Figures of this method for the progress bar and the history, once an epoch."""
        return {}

    def symptoms(self, run: Run) -> Iterator[str]:
        """What the doctor should warn of at the end of the run: one plain line each, with what to do."""
        return iter(())

    def __repr__(self) -> str:
        # Compared as shown: of priors with tensors inside, == would ask whether each number is the same.
        shown = {f.name: repr(getattr(self, f.name)) for f in fields(self)}
        given = [f"{f.name}={shown[f.name]}" for f in fields(self) if shown[f.name] != repr(f.default)]
        return f"{type(self).__name__}({', '.join(given)})"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"


def plain_parameters(module: nn.Module) -> Params:
    """Parameters by name, as the prior sees them."""
    return dict(module.named_parameters())


def trainable(module: nn.Module) -> Params:
    """The parameters that training moves, by name."""
    params: Params = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not params:
        raise PosterityError("the network has no parameter to train")
    return params


def share_prior(wrapper: Any) -> None:
    """Let a method and the one that it wraps (``of``) have one prior: that given to the wrapper, else the wrapped's."""
    if repr(wrapper.prior) != repr(Method().prior):  # as shown: tensors inside would answer number by number
        object.__setattr__(wrapper, "of", replace(wrapper.of, prior=wrapper.prior))
    object.__setattr__(wrapper, "prior", wrapper.of.prior)


def lr_given_once(own: float | None, plan: Plan, default: float, owner: str) -> float:
    """The learning rate, from the method itself or from the training config, but not both; else its default."""
    if own is not None and plan.lr is not None and own != plan.lr:
        raise PosterityError(f"the {owner} has lr={own} and the training config lr={plan.lr}: give one")
    return own or plan.lr or default


def check_precision(method: Method, module: nn.Module) -> None:
    """Refuse a network in half precision, before it is trained, for methods whose posterior needs more."""
    half = [p.dtype for p in module.parameters() if p.dtype in (torch.float16, torch.bfloat16)]
    if half:
        raise PosterityError(
            f"{type(method).__name__} needs a network in single or double precision, got {half[0]}: use float32, and "
            "Training(autocast=True) for bfloat16 products"
        )


def ridge_precision(prior: Prior) -> float:
    """1/std² of a zero-mean Normal with one std for all weights, which weight decay holds exactly; else 0."""
    match prior:
        case Normal(std=float() | int() as std, mean=0 | 0.0):
            return 1 / std**2
    return 0.0
