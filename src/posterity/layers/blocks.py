"""Distributions over some parameters of a network, as modules that an optimizer can train.

A block owns the variational parameters of one flat vector of weights and knows four things: what to put into the
network for a noisy pass, the mean of the vector, its standard deviation, and KL(q‖p).

    Diagonal   N(mean, diag exp(log_std)²): Sampled, Local or Flipout by its estimator
    Full       N(mean, L Lᵀ), L lower triangular with diagonal exp(log_diagonal)
    LowRank    N(mean, diag exp(log_std)² + Fᵀ F), F [rank, weights]; one z for the whole vector
    Radial     mean + exp(log_std) ⊙ r ε/‖ε‖ with r ~ N(0, 1), one r for each parameter     (Farquhar et al. 1907.00865)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from posterity.layers.divergence import diagonal_kl, draw_with_kl, moments_with_kl
from posterity.layers.estimators import deviation
from posterity.layers.slots import Slots
from posterity.probability.gaussians import FullNormal, LowRankNormal
from posterity.probability.kl import kl_divergence
from posterity.probability.priors import Normal, Prior

__all__ = ["Block", "Diagonal", "Flipout", "Full", "Local", "LowRank", "Radial", "Sampled"]


class Block(nn.Module):
    """Some parameters of a network and the distribution over them.

    Attributes:
        slots: Where the network uses them.
        prior: Their prior, fitted to the flat vector.
        fixed: Entries that keep their mean (the padding row of an embedding), or None.
    """

    beside: ClassVar[tuple[str, ...]] = ()
    """Names of what stands beside the parameters during a noisy pass."""

    fixed: Tensor | None

    def __init__(self, slots: Slots, mean: Tensor, prior: Prior, fixed: Tensor | None = None) -> None:
        super().__init__()
        self.slots = slots
        self.mean = nn.Parameter(mean)
        self.prior = _mapped(prior.flat(slots.layout), lambda t: t.to(mean))
        self.register_buffer("fixed", None if fixed is None else fixed.to(mean.device), persistent=False)

    def noisy(self) -> dict[str, Tensor]:
        """What a training pass puts into the network: flat vectors by suffix."""
        return {"": self.sample()}

    def sample(self) -> Tensor:
        """One draw of the vector, its fixed entries at their means."""
        draw = self.draw()
        return draw if self.fixed is None else torch.where(self.fixed, self.mean, draw)

    def draw(self) -> Tensor:
        """One draw of the whole vector, differentiable."""
        raise NotImplementedError

    def center(self) -> Tensor:
        """The mean of the vector."""
        return self.mean

    def std(self) -> Tensor:
        """Marginal standard deviations."""
        raise NotImplementedError

    def kl(self) -> Tensor:
        """KL(q‖p), summed."""
        raise NotImplementedError

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Device and type moves take the prior along."""
        super()._apply(fn, recurse)
        self.prior = _mapped(self.prior, fn)
        return self

    def _held(self) -> Tensor:
        """The mean as the KL sees it: a fixed entry, which no prior may move, counts as zero."""
        return self.mean if self.fixed is None else self.mean.masked_fill(self.fixed, 0.0)

    def _prior(self) -> Prior:
        """The prior, with scales of its own choice where it is an empirical one."""
        return self.prior.fitted(self._moments, self.slots.layout)

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and std as the KL sees them; fixed entries have a std there, too, which comes to be the prior's."""
        return self.center(), self.std()


class Diagonal(Block):
    """Independent weights; how their noise enters a pass is the estimator's matter.

    On a CPU, with a Normal prior, a noisy pass brings the KL with it. That KL is handed out once, and only while the
    parameters are still those of the pass. On a GPU the passes over the weights that this saves cost next to nothing.
    """

    _ready: tuple[tuple[float, ...], Tensor] | None = None

    def __init__(self, slots: Slots, mean: Tensor, std: Tensor, prior: Prior, fixed: Tensor | None = None) -> None:
        super().__init__(slots, mean, prior, fixed)
        self.log_std = nn.Parameter(std.log())

    def draw(self) -> Tensor:
        """mean + std ⊙ ε."""
        return self.mean + deviation(self.log_std)

    def std(self) -> Tensor:
        """exp(log_std), zero where the weight is fixed."""
        std = self.log_std.exp()
        return std if self.fixed is None else std.masked_fill(self.fixed, 0.0)

    def kl(self) -> Tensor:
        """KL(q‖p), summed."""
        ready, self._ready = self._ready, None
        spent = ready and getattr(ready[1].grad_fn, "spent", False)  # by the likelihood's own backward
        if ready and not spent and ready[1].requires_grad == torch.is_grad_enabled() and ready[0] == self._stamp():
            return ready[1]
        return diagonal_kl(self._held(), self.log_std, self._prior())

    def kl_each(self) -> Tensor:
        """KL(q‖p) of every parameter by itself, [parameters]."""
        prior, sizes = self._prior(), self.slots.layout.sizes
        each, start = [], 0
        for mean, log_std in zip(self._held().split(sizes), self.log_std.split(sizes), strict=True):
            part = slice(start, start := start + len(mean))
            each.append(diagonal_kl(mean, log_std, _mapped(prior, operator.itemgetter(part))))
        return torch.stack(each)

    def _moments(self) -> tuple[Tensor, Tensor]:
        return self._held(), self.log_std.exp()

    def _fused_prior(self) -> Normal | None:
        """The prior, where the KL is to be made together with a pass."""
        prior = self._prior()
        cpu = self.mean.device.type == "cpu" and not torch.compiler.is_compiling()
        return prior if cpu and isinstance(prior, Normal) else None

    def _stamp(self) -> tuple[float, ...]:
        """Changes with the parameters; fused optimizers count no versions, so some numbers are compared, too."""
        ends = (p.detach()[i].item() for p in (self.mean, self.log_std) for i in (0, -1))
        return self.mean._version, self.log_std._version, *ends

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_ready": None}


class Sampled(Diagonal):
    """Reparameterised: one draw of the weights for the whole batch."""

    def draw(self) -> Tensor:
        """mean + std ⊙ ε."""
        prior = self._fused_prior()
        if prior is None:
            return super().draw()
        weights, divergence = draw_with_kl(self._held(), self.log_std, prior)
        self._ready = self._stamp(), divergence
        return weights


class Local(Diagonal):
    """Noise in the activations of every example: layers get means and variances."""

    beside = ("_mean", "_variance", "_drawn")  # the last by layers that draw their weights themselves

    def noisy(self) -> dict[str, Tensor]:
        """Means and variances."""
        prior = self._fused_prior()
        if prior is None:
            return {"_mean": self.mean, "_variance": (2 * self.log_std).exp()}
        mean, variance, divergence = moments_with_kl(self._held(), self.log_std, prior)
        self._ready = self._stamp(), divergence
        return {"_mean": mean, "_variance": variance}


class Flipout(Diagonal):
    """One deviation of the weights with random signs for every example: layers get means and deviations."""

    beside = ("_mean", "_deviation")

    def noisy(self) -> dict[str, Tensor]:
        """Means and one deviation."""
        return {"_mean": self.mean, "_deviation": deviation(self.log_std)}


class Full(Block):
    """Every weight correlated with every other: for last layers and small modules."""

    def __init__(self, slots: Slots, mean: Tensor, std: Tensor, prior: Prior, fixed: Tensor | None = None) -> None:
        super().__init__(slots, mean, prior, fixed)
        self.log_diagonal = nn.Parameter(std.log())
        self.below = nn.Parameter(mean.new_zeros(len(mean), len(mean)))

    def family(self) -> FullNormal:
        """The distribution as it is now."""
        return FullNormal(self.mean, self.below.tril(-1) + torch.diag(self.log_diagonal.exp()))

    def draw(self) -> Tensor:
        """mean + L z."""
        return self.family().sample()

    def std(self) -> Tensor:
        """Square roots of the covariance's diagonal."""
        return self.family().variance().sqrt()

    def kl(self) -> Tensor:
        """KL(q‖p), summed."""
        return kl_divergence(self.family(), self._prior())


class LowRank(Block):
    """A diagonal and a few directions in which all weights move together."""

    def __init__(
        self, slots: Slots, mean: Tensor, std: Tensor, prior: Prior, fixed: Tensor | None = None, rank: int = 4
    ) -> None:
        super().__init__(slots, mean, prior, fixed)
        self.log_std = nn.Parameter(std.log())
        # Zero directions would have zero gradients: start small, and with ranks that differ.
        self.directions = nn.Parameter(0.1 * std * mean.new_empty(rank, len(mean)).normal_())

    def family(self) -> LowRankNormal:
        """The distribution as the KL sees it."""
        return LowRankNormal(self._held(), self.log_std.exp(), self.directions)

    def trained(self) -> LowRankNormal:
        """The distribution without noise in fixed entries."""
        if self.fixed is None:
            return self.family()
        free = (~self.fixed).to(self.mean)
        return LowRankNormal(self.mean, self.log_std.exp() * free, self.directions * free)

    def draw(self) -> Tensor:
        """mean + std ⊙ z₁ + Fᵀ z₂."""
        z = self.directions.new_empty(len(self.directions)).normal_()
        return self.mean + deviation(self.log_std) + z @ self.directions

    def std(self) -> Tensor:
        """Square roots of the covariance's diagonal."""
        return self.trained().variance().sqrt()

    def kl(self) -> Tensor:
        """KL(q‖p), summed."""
        return kl_divergence(self.family(), self._prior())

    def _moments(self) -> tuple[Tensor, Tensor]:
        return self._held(), self.family().variance().sqrt()


class Radial(Diagonal):
    """Noise whose length does not grow with the number of weights."""

    def draw(self) -> Tensor:
        """mean + std ⊙ r ε/‖ε‖, one r for each parameter."""
        parts = [_radial(self.mean.new_empty(size).normal_()) for size in self.slots.layout.sizes]
        return self._held() + self.log_std.exp() * torch.cat(parts)

    def std(self) -> Tensor:
        """exp(log_std)/√d: each coordinate of r ε/‖ε‖ has variance 1/d."""
        return super().std() * self._shares()

    def _moments(self) -> tuple[Tensor, Tensor]:
        return self._held(), self.log_std.exp() * self._shares()

    def _shares(self) -> Tensor:
        return torch.cat([self.mean.new_full((n,), n**-0.5) for n in self.slots.layout.sizes])

    def kl(self) -> Tensor:
        """−entropy − E log p, the second by one draw."""
        entropy = self.log_std.sum() + sum(radial_entropy(n) for n in self.slots.layout.sizes)
        return -entropy - self._prior().log_density(self.draw()).sum()


def _radial(noise: Tensor) -> Tensor:
    return noise * (noise.new_empty(()).normal_() / noise.norm())


def radial_entropy(d: int) -> float:
    """Entropy of r ε/‖ε‖ in d dimensions, r ~ N(0, 1): its density at u is 2φ(‖u‖)/(surface · ‖u‖^(d−1)).

    E log|r| = −(γ + log 2)/2, and the unit sphere's surface is 2π^(d/2)/Γ(d/2).
    """
    log_surface = math.log(2) + 0.5 * d * math.log(math.pi) - math.lgamma(0.5 * d)
    expected_log_length = -0.5 * (0.5772156649015329 + math.log(2))
    return -math.log(2) + 0.5 * math.log(2 * math.pi) + 0.5 + log_surface + (d - 1) * expected_log_length


def _mapped(prior: Prior, fn: Callable[[Tensor], Tensor]) -> Prior:
    """The prior with its tensors on another device or in another precision."""
    tensors = {f.name: getattr(prior, f.name) for f in fields(prior)}
    return replace(prior, **{name: fn(value) for name, value in tensors.items() if isinstance(value, Tensor)})
