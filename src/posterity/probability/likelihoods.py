"""How targets arise from network outputs, p(y | f): all likelihoods by name; those of classes are in ``classes``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posterity.calling import is_one_hot
from posterity.probability.classes import Categorical, MultiHead
from posterity.probability.likelihood import Likelihood, aligned, check_real, check_shape, per_example
from posterity.types import PosterityError, check_positive, check_positive_if_given

__all__ = [
    "KNOWN",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "MultiHead",
    "Poisson",
    "by_name",
    "infer",
    "pooled",
]

_LOG_TWO_PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Yes or no; outputs are one logit [B] or [B, 1], targets 0 or 1; ``temperature`` divides the logit."""

    classifies: ClassVar[bool] = True

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_positive(temperature=self.temperature)

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Log sigmoid of the logit with the target's sign."""
        logits = aligned(outputs, targets) / self.temperature
        return -per_example(F.binary_cross_entropy_with_logits(logits, targets.to(logits), reduction="none"))

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Targets of 0 and 1 only, one logit each."""
        check_shape(outputs, targets)
        if not ((targets == 0) | (targets == 1)).all():
            raise PosterityError(
                f"Bernoulli needs targets of 0 and 1, got values from {targets.min().item()} to {targets.max().item()}"
            )

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """0 or 1 for each logit."""
        return torch.bernoulli((outputs / self.temperature).sigmoid(), generator=generator)

    def hessian(self, outputs: Tensor) -> Tensor:
        """p(1 − p)/temperature², one logit an example."""
        p = (outputs / self.temperature).sigmoid().reshape(len(outputs), -1)
        return torch.diag_embed(p * (1 - p)) / self.temperature**2

    def probs(self, outputs: Tensor) -> Tensor:
        """[1 − p, p]."""
        logits = outputs.squeeze(-1) if outputs.ndim > 1 and outputs.shape[-1] == 1 else outputs
        logits = logits / self.temperature
        return torch.stack([-logits, logits], -1).sigmoid()  # 1 − p has no digits left where p is near 1


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """y = f + noise; ``std`` is the noise's standard deviation, learned when it is None."""

    std: float | None = None

    def __post_init__(self) -> None:
        check_positive_if_given(std=self.std)

    @property
    def _std(self) -> float:
        if self.std is None:
            raise PosterityError("this Gaussian likelihood has no std yet: give one, or let fit learn it")
        return self.std

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """−(y − f)²/(2 std²) − log std − ½ log 2π, summed over what an example holds."""
        z = (targets - aligned(outputs, targets)) / self._std
        return per_example(-0.5 * z.square() - math.log(self._std) - 0.5 * _LOG_TWO_PI)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Finite real targets of the outputs' shape."""
        check_real(outputs, targets, "Gaussian")

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """f + std·z."""
        return outputs + self._std * torch.randn(
            outputs.shape, generator=generator, dtype=outputs.dtype, device=outputs.device
        )

    def hessian(self, outputs: Tensor) -> Tensor:
        """I / std²."""
        return torch.diag_embed(torch.full_like(outputs.reshape(len(outputs), -1), self._std**-2))

    def mean(self, outputs: Tensor) -> Tensor:
        """The output itself."""
        return outputs

    def variance(self, outputs: Tensor) -> Tensor:
        """std²."""
        return torch.full_like(outputs, self._std**2)

    def cdf(self, outputs: Tensor, values: Tensor) -> Tensor:
        """The Normal's distribution function."""
        return torch.special.ndtr((values - outputs) / self._std)

    def trainable(self) -> nn.Module | None:
        """The noise as a parameter, when it is to be learned."""
        return LearnedNoise() if self.std is None else None


class LearnedNoise(nn.Module):
    """A Gaussian likelihood while its noise is being learned."""

    def __init__(self) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.zeros(()))

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """As ``Gaussian.log_prob``, differentiable in the noise."""
        z = (targets - aligned(outputs, targets)) * torch.exp(-self.log_std)
        return per_example(-0.5 * z.square() - self.log_std - 0.5 * _LOG_TWO_PI)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """−log p(y | f), the mean over examples."""
        return -self.log_prob(outputs, targets).mean()

    def frozen(self) -> Gaussian:
        """The likelihood with the noise found."""
        return Gaussian(float(self.log_std.detach().exp()))


@dataclass(frozen=True)
class HeteroscedasticGaussian(Likelihood):
    """y = mean(x) + std(x)·noise; outputs are [mean, raw std] side by side, std = softplus(raw) + 1e-4."""

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        if outputs.shape[-1] % 2:
            raise PosterityError(
                f"HeteroscedasticGaussian needs means and raw stds, an even number of outputs, got {outputs.shape[-1]}"
            )
        mean, raw = outputs.chunk(2, -1)
        return mean, F.softplus(raw) + 1e-4

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The Normal's log density with each example's own std."""
        mean, std = self._split(outputs)
        mean, std = aligned(mean, targets), aligned(std, targets)
        return per_example(-0.5 * ((targets - mean) / std).square() - std.log() - 0.5 * _LOG_TWO_PI)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Finite real targets, half as many as outputs."""
        check_real(self._split(outputs)[0], targets, "HeteroscedasticGaussian")

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """mean + std·z."""
        mean, std = self._split(outputs)
        return mean + std * torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)

    def hessian(self, outputs: Tensor) -> Tensor:
        """The Fisher matrix: 1/std² for the mean, 2/std² · (∂std/∂raw)² for the raw std."""
        std = self._split(outputs)[1]
        slope = torch.sigmoid(outputs.chunk(2, -1)[1])
        return torch.diag_embed(torch.cat([std**-2, 2 * (slope / std) ** 2], -1))

    def mean(self, outputs: Tensor) -> Tensor:
        """The first half of the outputs."""
        return self._split(outputs)[0]

    def variance(self, outputs: Tensor) -> Tensor:
        """std(x)²."""
        return self._split(outputs)[1].square()

    def cdf(self, outputs: Tensor, values: Tensor) -> Tensor:
        """The Normal's distribution function."""
        mean, std = self._split(outputs)
        return torch.special.ndtr((values - mean) / std)


@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts; the output is the log of the rate."""

    counts: ClassVar[bool] = True

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """y f − exp f − log y!."""
        log_rate = aligned(outputs, targets)
        counts = targets.to(log_rate)
        return per_example(counts * log_rate - log_rate.exp() - torch.lgamma(counts + 1))

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Counts: whole numbers from 0."""
        check_shape(outputs, targets)
        if (targets < 0).any() or (targets != targets.round()).any():
            raise PosterityError("Poisson needs counts (whole numbers from 0) as targets")

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Counts with rate exp f."""
        return torch.poisson(outputs.exp(), generator=generator)

    def hessian(self, outputs: Tensor) -> Tensor:
        """exp f."""
        return torch.diag_embed(outputs.exp().reshape(len(outputs), -1))

    def mean(self, outputs: Tensor) -> Tensor:
        """exp f."""
        return outputs.exp()

    def variance(self, outputs: Tensor) -> Tensor:
        """exp f."""
        return outputs.exp()

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Those of a log-normal rate: E = exp(m + v/2), twice, and E² (exp v − 1)."""
        rate = (mean + variance / 2).exp()
        return rate, rate, rate.square() * variance.expm1()

    def cdf(self, outputs: Tensor, values: Tensor) -> Tensor:
        """P(y ≤ v) = Q(⌊v⌋ + 1, rate)."""
        counts, rate = torch.broadcast_tensors(values.floor(), outputs.exp())
        return torch.where(counts < 0, 0.0, torch.special.gammaincc((counts + 1).clamp_min(1), rate))


def infer(targets: Tensor) -> Likelihood:
    """Categorical for integer targets, Gaussian with learned noise for real ones; one-hot targets are neither."""
    if targets.is_floating_point() and is_one_hot(targets):
        raise PosterityError(
            "the targets are one-hot rows, which stand for classes: give their numbers, targets.argmax(1), or say what "
            "they are with likelihood="
        )
    return Gaussian() if targets.is_floating_point() else Categorical()


def pooled(members: Sequence[Likelihood]) -> Likelihood:
    """One likelihood for several members: where each learned its own noise, the root mean square of their stds."""
    stds = [member.std for member in members if isinstance(member, Gaussian) and member.std is not None]
    return Gaussian(math.sqrt(sum(std**2 for std in stds) / len(stds))) if stds else members[0]


KNOWN = {cls.__name__: cls for cls in (Categorical, MultiHead, Bernoulli, Gaussian, HeteroscedasticGaussian, Poisson)}
"""The likelihoods that a file can name."""


def by_name(name: str, **fields: Any) -> Likelihood:
    """The likelihood that a file names."""
    if name not in KNOWN:
        raise PosterityError(f"unknown likelihood {name!r}; there are {', '.join(KNOWN)}")
    return KNOWN[name](**fields)
