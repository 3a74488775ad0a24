"""What every likelihood p(y | f) offers, and the checks that several share.

``log_prob(outputs, targets)`` is one number an example, summed over whatever the example holds (pixels, tokens). A
likelihood also says what a prediction is made of (``probs`` for classes, ``mean``, ``variance`` and ``cdf`` for
numbers), and gives the Gauss–Newton matrix −∂² log p/∂f² that curvature needs (``hessian``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from posterity.types import PosterityError

__all__ = ["Likelihood", "aligned", "before_training", "check_likelihood", "check_real", "check_shape", "per_example"]


@dataclass(frozen=True)
class Likelihood:
    """What every likelihood offers."""

    classifies: ClassVar[bool] = False
    counts: ClassVar[bool] = False  # whether y is a whole number, so that its distribution function has steps

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """log p(y | f) of each example, [batch]."""
        raise PosterityError(f"{type(self).__name__} has no log_prob(outputs, targets), which training needs")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """−log p(y | f), the mean over examples: what training lowers; one fused call where torch has it."""
        return -self.log_prob(outputs, targets).mean()

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Refuse targets that do not fit the outputs: called once, on the first batch."""
        raise PosterityError(f"{type(self).__name__} has no check(outputs, targets), which a fit begins with")

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Targets drawn from p(y | f)."""
        raise PosterityError(f"{type(self).__name__} has no sample(outputs, generator), which the Fisher matrix needs")

    def hessian(self, outputs: Tensor) -> Tensor:
        """−∂² log p(y | f)/∂f², [batch, outputs, outputs]; its mean over y ~ p(y | f) where it depends on y."""
        raise PosterityError(f"{type(self).__name__} has no hessian(outputs), which the Gauss-Newton matrix needs")

    def probs(self, outputs: Tensor) -> Tensor:
        """Class probabilities; only where ``classifies``."""
        raise PosterityError(f"{type(self).__name__} has no class probabilities")

    def label(self, outputs: Tensor) -> Tensor:
        """The most probable class; only where ``classifies``."""
        return self.probs(outputs).argmax(-1)

    def mean(self, outputs: Tensor) -> Tensor:
        """E[y | f]; only for numbers."""
        raise PosterityError(f"{type(self).__name__} has no mean: use probs")

    def variance(self, outputs: Tensor) -> Tensor:
        """Var[y | f]: the noise that more data cannot take away."""
        raise PosterityError(f"{type(self).__name__} has no variance: use probs")

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """E[y], E[Var[y | f]] and Var[E[y | f]] under a Gaussian f; None where points stand for f well enough."""
        return None

    def cdf(self, outputs: Tensor, values: Tensor) -> Tensor:
        """P(y ≤ value | f)."""
        raise PosterityError(f"{type(self).__name__} has no cdf(outputs, values), which quantiles and intervals need")

    def trainable(self) -> nn.Module | None:
        """Where the likelihood learns parameters of its own, a module that holds them while a fit goes on.

        It has ``log_prob`` and ``loss`` as a likelihood has; ``frozen()`` gives the likelihood with what was learned.
        """
        return None


def check_likelihood(likelihood: object) -> None:
    """Refuse what is no likelihood, such as the class of one, or a loader where two arguments were exchanged."""
    if not isinstance(likelihood, Likelihood):
        raise PosterityError(f"the likelihood must be one such as likelihoods.Categorical(), got {likelihood!r}")


def before_training(likelihood: Likelihood) -> Likelihood:
    """The likelihood with the noise that training starts from, where it learns any; else itself."""
    noise = likelihood.trainable()
    return likelihood if noise is None else noise.frozen()  # type: ignore[operator]


def per_example(values: Tensor) -> Tensor:
    """Summed over whatever an example holds, [batch]."""
    return values.flatten(1).sum(1) if values.ndim > 1 else values


def aligned(outputs: Tensor, targets: Tensor) -> Tensor:
    """The outputs in the shape of the targets: [B, 1] beside [B] means the same; ``check`` has refused all else."""
    return outputs.view(targets.shape) if outputs.ndim != targets.ndim else outputs


def check_shape(outputs: Tensor, targets: Tensor) -> None:
    """Refuse targets of another shape than the outputs."""
    if outputs.shape != targets.shape and not (
        outputs.shape == (*targets.shape, 1) or targets.shape == (*outputs.shape, 1)
    ):
        raise PosterityError(f"network outputs {tuple(outputs.shape)} do not fit targets {tuple(targets.shape)}")


def check_real(outputs: Tensor, targets: Tensor, name: str) -> None:
    """Refuse targets that are no real numbers, or of another shape than the outputs."""
    check_shape(outputs, targets)
    if not targets.is_floating_point():
        raise PosterityError(f"{name} needs real targets, got {targets.dtype}")
    if not targets.isfinite().all():
        raise PosterityError("the targets hold NaN or infinite values")
