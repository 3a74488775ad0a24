"""How targets arise from network outputs: p(y | f).

``log_prob(outputs, targets)`` is one number an example, summed over whatever the example holds (pixels, tokens). A
likelihood also says what a prediction is made of (``probs`` for classes, ``mean``, ``variance`` and ``cdf`` for
numbers), and gives the Gauss–Newton matrix −∂² log p/∂f² that curvature needs (``hessian``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posterity.probability.simplex import softmax
from posterity.types import PosterityError, check_positive

__all__ = [
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
class Likelihood:
    """What every likelihood offers."""

    classifies: ClassVar[bool] = False

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """log p(y | f) of each example, [batch]."""
        raise NotImplementedError

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """−log p(y | f), the mean over examples: what training lowers; one fused call where torch has it."""
        return -self.log_prob(outputs, targets).mean()

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Refuse targets that do not fit the outputs: called once, on the first batch."""
        raise NotImplementedError

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Targets drawn from p(y | f)."""
        raise NotImplementedError

    def hessian(self, outputs: Tensor) -> Tensor:
        """−∂² log p(y | f)/∂f², [batch, outputs, outputs]; free of y for every likelihood here."""
        raise NotImplementedError

    def probs(self, outputs: Tensor) -> Tensor:
        """Class probabilities; only where ``classifies``."""
        raise PosterityError(f"{type(self).__name__} has no class probabilities")

    def mean(self, outputs: Tensor) -> Tensor:
        """E[y | f]; only for numbers."""
        raise PosterityError(f"{type(self).__name__} has no mean: use probs")

    def variance(self, outputs: Tensor) -> Tensor:
        """Var[y | f]: the noise that more data cannot take away."""
        raise PosterityError(f"{type(self).__name__} has no variance: use probs")

    def cdf(self, outputs: Tensor, values: Tensor) -> Tensor:
        """P(y ≤ value | f)."""
        raise PosterityError(f"{type(self).__name__} has no distribution function")

    def trainable(self) -> nn.Module | None:
        """A module with the likelihood's own parameters and ``log_prob``, where it learns any."""
        return None


@dataclass(frozen=True)
class Categorical(Likelihood):
    """One of C classes; outputs are logits [..., C], targets integers 0 … C−1.

    ``temperature`` divides the logits: above 1 it makes every prediction less sure (``posterity.temper`` finds it).

    ``frequencies`` are for training data in which some classes are rare: how often each class occurs there (counts will
    do, ``targets.bincount()``). Then f stands for log p(x | y), and (Menon et al. 2021, 2007.07314)

        p(y | f) ∝ frequency_y e^{f_y}   of the data: ``log_prob``, ``loss``, ``hessian``, ``sample``
        p(y | f) ∝ e^{f_y}               of a world where classes are equally frequent: ``probs``, all predictions
    """

    classifies: ClassVar[bool] = True

    temperature: float = 1.0
    frequencies: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_positive(temperature=self.temperature)
        frequencies = torch.as_tensor(self.frequencies, dtype=torch.float64)
        if frequencies.ndim != 1 or not (frequencies > 0).all() or not frequencies.isfinite().all():
            raise PosterityError(f"frequencies need a positive number for each class, got {self.frequencies}")
        object.__setattr__(self, "frequencies", tuple(frequencies.tolist()))

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Log softmax at the target, summed over positions."""
        losses = F.cross_entropy(self._observed(outputs).flatten(0, -2), targets.reshape(-1), reduction="none")
        return -_per_example(losses.view(targets.shape))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Torch's own cross-entropy, where an example is one class."""
        if targets.ndim > 1:
            return super().loss(outputs, targets)
        return F.cross_entropy(self._observed(outputs), targets)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Integer targets within the number of logits."""
        if self.frequencies and len(self.frequencies) != outputs.shape[-1]:
            raise PosterityError(
                f"there are {len(self.frequencies)} class frequencies, but the network has {outputs.shape[-1]} outputs"
            )
        if targets.is_floating_point() or targets.dtype == torch.bool:
            raise PosterityError(f"Categorical needs integer class targets, got {targets.dtype}")
        if outputs.ndim < 2 or outputs.shape[:-1] != targets.shape:
            raise PosterityError(
                f"logits {tuple(outputs.shape)} do not fit targets {tuple(targets.shape)}: one row of logits a target"
            )
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= outputs.shape[-1]:
            raise PosterityError(
                f"class targets run from {low} to {high}, but the network has {outputs.shape[-1]} outputs"
            )

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A class for each row of logits."""
        flat = softmax(self._observed(outputs)).flatten(0, -2)
        return torch.multinomial(flat, 1, generator=generator).view(outputs.shape[:-1])

    def hessian(self, outputs: Tensor) -> Tensor:
        """(diag p − p pᵀ)/temperature²."""
        p = softmax(self._observed(outputs))
        return (torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)) / self.temperature**2

    def probs(self, outputs: Tensor) -> Tensor:
        """Softmax."""
        return softmax(self._logits(outputs))

    def _logits(self, outputs: Tensor) -> Tensor:
        return outputs if self.temperature == 1 else outputs / self.temperature

    def _observed(self, outputs: Tensor) -> Tensor:
        """Logits of the data's own class frequencies."""
        logits = self._logits(outputs)
        return logits + logits.new_tensor(self.frequencies).log() if self.frequencies else logits


@dataclass(frozen=True)
class MultiHead(Categorical):
    """One of C classes where it is known which of several heads (groups of classes) is asked.

    p(y | f) is a softmax over the logits of one head: ``head`` itself, or in training the target's own, so that one
    batch may hold examples of several tasks. Without a head a prediction is over all classes.
    """

    heads: tuple[tuple[int, ...], ...] = ()
    head: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "heads", tuple(tuple(head) for head in self.heads))  # a file has lists
        classes = [c for head in self.heads for c in head]
        if not classes or len(set(classes)) < len(classes):
            raise PosterityError(f"heads must be groups of classes that do not overlap, got {self.heads}")
        if self.head is not None and not 0 <= self.head < len(self.heads):
            raise PosterityError(f"head {self.head} was asked for, but there are {len(self.heads)}")

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Targets that a head has."""
        super().check(outputs, targets)
        known = self.heads[self.head] if self.head is not None else [c for head in self.heads for c in head]
        strange = sorted(set(targets.unique().tolist()) - set(known))
        if strange:
            raise PosterityError(f"class {strange[0]} belongs to no head: expected one of {sorted(known)}")

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Log softmax over the head's logits at the target."""
        return super().log_prob(self._own(outputs, targets), targets)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy over the head's logits."""
        return super().loss(self._own(outputs, targets), targets)

    def hessian(self, outputs: Tensor) -> Tensor:
        """That of the head's logits; zero elsewhere."""
        if self.head is None:
            raise PosterityError("the curvature of several heads depends on which one is asked: give one by head=")
        return super().hessian(outputs)

    def _own(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.head is not None:
            return outputs
        return outputs.masked_fill(_other_heads(self.heads, outputs.shape[-1], outputs.device)[targets], -math.inf)

    def _logits(self, outputs: Tensor) -> Tensor:
        logits = super()._logits(outputs)
        if self.head is None:
            return logits
        first = self.heads[self.head][0]
        return logits.masked_fill(_other_heads(self.heads, outputs.shape[-1], outputs.device)[first], -math.inf)


@lru_cache(maxsize=32)
def _other_heads(heads: tuple[tuple[int, ...], ...], classes: int, device: torch.device) -> Tensor:
    """[classes, classes]: whether the second class is in another head than the first."""
    of = torch.full((classes,), -1)
    for number, head in enumerate(heads):
        of[list(head)] = number
    return (of[:, None] != of).to(device)


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Yes or no; outputs are one logit [B] or [B, 1], targets 0 or 1; ``temperature`` divides the logit."""

    classifies: ClassVar[bool] = True

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_positive(temperature=self.temperature)

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Log sigmoid of the logit with the target's sign."""
        logits = _aligned(outputs, targets) / self.temperature
        return -_per_example(F.binary_cross_entropy_with_logits(logits, targets.to(logits), reduction="none"))

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Targets of 0 and 1 only, one logit each."""
        _check_shape(outputs, targets)
        if not ((targets == 0) | (targets == 1)).all():
            raise PosterityError(
                f"Bernoulli needs targets of 0 and 1, got values from {targets.min().item()} to {targets.max().item()}"
            )

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """0 or 1 for each logit."""
        return torch.bernoulli((outputs / self.temperature).sigmoid(), generator=generator)

    def hessian(self, outputs: Tensor) -> Tensor:
        """p(1 − p)/temperature², one logit an example."""
        logits = outputs / self.temperature
        p = logits.sigmoid().flatten(1) if outputs.ndim > 1 else logits.sigmoid()[:, None]
        return torch.diag_embed(p * (1 - p)) / self.temperature**2

    def probs(self, outputs: Tensor) -> Tensor:
        """[1 − p, p]."""
        logits = outputs.squeeze(-1) if outputs.ndim > 1 and outputs.shape[-1] == 1 else outputs
        p = (logits / self.temperature).sigmoid()
        return torch.stack([1 - p, p], -1)


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """y = f + noise; ``std`` is the noise's standard deviation, learned when it is None."""

    std: float | None = None

    def __post_init__(self) -> None:
        if self.std is not None:
            check_positive(std=self.std)

    @property
    def _std(self) -> float:
        if self.std is None:
            raise PosterityError("this Gaussian likelihood has no std yet: give one, or let fit learn it")
        return self.std

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """−(y − f)²/(2 std²) − log std − ½ log 2π, summed over what an example holds."""
        z = (targets - _aligned(outputs, targets)) / self._std
        return _per_example(-0.5 * z.square() - math.log(self._std) - 0.5 * _LOG_TWO_PI)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Finite real targets of the outputs' shape."""
        _check_real(outputs, targets, "Gaussian")

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """f + std·z."""
        return outputs + self._std * torch.randn(
            outputs.shape, generator=generator, dtype=outputs.dtype, device=outputs.device
        )

    def hessian(self, outputs: Tensor) -> Tensor:
        """I / std²."""
        return torch.diag_embed(
            torch.full_like(outputs.flatten(1) if outputs.ndim > 1 else outputs[:, None], self._std**-2)
        )

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
        z = (targets - _aligned(outputs, targets)) * torch.exp(-self.log_std)
        return _per_example(-0.5 * z.square() - self.log_std - 0.5 * _LOG_TWO_PI)

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
        mean, std = _aligned(mean, targets), _aligned(std, targets)
        return _per_example(-0.5 * ((targets - mean) / std).square() - std.log() - 0.5 * _LOG_TWO_PI)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Finite real targets, half as many as outputs."""
        _check_real(self._split(outputs)[0], targets, "HeteroscedasticGaussian")

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

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """y f − exp f − log y!."""
        log_rate = _aligned(outputs, targets)
        counts = targets.to(log_rate)
        return _per_example(counts * log_rate - log_rate.exp() - torch.lgamma(counts + 1))

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Counts: whole numbers from 0."""
        _check_shape(outputs, targets)
        if (targets < 0).any() or (targets != targets.round()).any():
            raise PosterityError("Poisson needs counts (whole numbers from 0) as targets")

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Counts with rate exp f."""
        return torch.poisson(outputs.exp(), generator=generator)

    def hessian(self, outputs: Tensor) -> Tensor:
        """exp f."""
        return torch.diag_embed(outputs.exp().flatten(1) if outputs.ndim > 1 else outputs.exp()[:, None])

    def mean(self, outputs: Tensor) -> Tensor:
        """exp f."""
        return outputs.exp()

    def variance(self, outputs: Tensor) -> Tensor:
        """exp f."""
        return outputs.exp()

    def cdf(self, outputs: Tensor, values: Tensor) -> Tensor:
        """P(y ≤ v) = Q(⌊v⌋ + 1, rate)."""
        counts = values.floor()
        return torch.where(
            counts < 0, 0.0, torch.special.gammaincc((counts + 1).clamp_min(1), outputs.exp().expand_as(counts))
        )


def infer(targets: Tensor) -> Likelihood:
    """Categorical for integer targets, Gaussian with learned noise for real ones."""
    return Gaussian() if targets.is_floating_point() else Categorical()


def pooled(members: Sequence[Likelihood]) -> Likelihood:
    """One likelihood for several members: where each learned its own noise, the root mean square of their stds."""
    stds = [member.std for member in members if isinstance(member, Gaussian) and member.std is not None]
    return Gaussian(math.sqrt(sum(std**2 for std in stds) / len(stds))) if stds else members[0]


_LIKELIHOODS = {
    cls.__name__: cls for cls in (Categorical, MultiHead, Bernoulli, Gaussian, HeteroscedasticGaussian, Poisson)
}


def by_name(name: str, **fields: Any) -> Likelihood:
    """The likelihood that a file names."""
    if name not in _LIKELIHOODS:
        raise PosterityError(f"unknown likelihood {name!r}; there are {', '.join(_LIKELIHOODS)}")
    return _LIKELIHOODS[name](**fields)


def _per_example(values: Tensor) -> Tensor:
    return values.flatten(1).sum(1) if values.ndim > 1 else values


def _aligned(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs [B, 1] beside targets [B] mean the same thing; anything else was checked at the border."""
    return outputs.view(targets.shape) if outputs.ndim != targets.ndim else outputs


def _check_shape(outputs: Tensor, targets: Tensor) -> None:
    if outputs.shape != targets.shape and not (
        outputs.shape == (*targets.shape, 1) or targets.shape == (*outputs.shape, 1)
    ):
        raise PosterityError(f"network outputs {tuple(outputs.shape)} do not fit targets {tuple(targets.shape)}")


def _check_real(outputs: Tensor, targets: Tensor, name: str) -> None:
    _check_shape(outputs, targets)
    if not targets.is_floating_point():
        raise PosterityError(f"{name} needs real targets, got {targets.dtype}")
    if not targets.isfinite().all():
        raise PosterityError("the targets hold NaN or infinite values")
