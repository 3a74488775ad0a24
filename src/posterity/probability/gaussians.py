"""Gaussians over one flat vector of weights: how to draw, the moments, the determinant, the density.

DiagonalNormal   N(mean, diag std²)
FullNormal       N(mean, L Lᵀ)
LowRankNormal    N(mean, diag std² + s² F Fᵀ),  F the transposed ``deviations`` [rank, d]
                 draw = mean + std ⊙ z₁ + s Fz₂ with ONE z₂ for the whole network, so that layers stay correlated
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.types import PosterityError

__all__ = ["DiagonalNormal", "FullNormal", "LowRankNormal"]


def standard_normal(like: Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """z ~ N(0, I) with the type and device of ``like``; a generator on another device draws there."""
    device = like.device if generator is None else generator.device
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=device).to(like.device)


@dataclass(frozen=True)
class DiagonalNormal:
    """Independent weights. ``mean`` and ``std`` have the same shape."""

    mean: Tensor
    std: Tensor

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One draw: mean + std ⊙ z."""
        return torch.addcmul(self.mean, self.std, standard_normal(self.mean, tuple(self.mean.shape), generator))

    def variance(self) -> Tensor:
        """std²."""
        return self.std.square()

    def log_det(self) -> Tensor:
        """The log determinant of the covariance."""
        return 2 * self.std.log().sum()

    def log_prob(self, weights: Tensor) -> Tensor:
        """Log density of a whole vector (a weight of std 0 is left out: it has no density)."""
        live = self.std > 0
        z = (weights - self.mean)[live] / self.std[live]
        return -0.5 * z.square().sum() - self.std[live].log().sum() - 0.5 * math.log(2 * math.pi) * live.sum().to(z)


@dataclass(frozen=True)
class FullNormal:
    """Every weight correlated with every other; for small networks and last layers."""

    mean: Tensor
    scale_tril: Tensor

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One draw: mean + L z."""
        return self.mean + self.scale_tril @ standard_normal(self.mean, tuple(self.mean.shape), generator)

    def variance(self) -> Tensor:
        """The diagonal of L Lᵀ."""
        return self.scale_tril.square().sum(-1)

    def log_det(self) -> Tensor:
        """The log determinant of the covariance."""
        return 2 * self.scale_tril.diagonal().log().sum()

    def log_prob(self, weights: Tensor) -> Tensor:
        """Log density of a whole vector."""
        z = torch.linalg.solve_triangular(self.scale_tril, (weights - self.mean)[:, None], upper=False)
        return -0.5 * (z.square().sum() + self.log_det() + len(self.mean) * math.log(2 * math.pi))


@dataclass(frozen=True)
class LowRankNormal:
    """A diagonal plus few directions in which the whole network moves together."""

    mean: Tensor
    std: Tensor
    deviations: Tensor
    scale: float = 1.0

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One draw: mean + std ⊙ z₁ + scale · deviationsᵀ z₂."""
        draw = torch.addcmul(self.mean, self.std, standard_normal(self.mean, tuple(self.mean.shape), generator))
        z = standard_normal(self.mean, (len(self.deviations),), generator).to(
            self.deviations.device, self.deviations.dtype
        )
        if self.deviations.dtype == draw.dtype and self.deviations.device == draw.device:
            return draw.addmv_(self.deviations.T, z, alpha=self.scale)
        return draw.add_((self.deviations.T @ z).to(draw), alpha=self.scale)

    def variance(self) -> Tensor:
        """The diagonal of the covariance."""
        return self.std.square() + self.scale**2 * self.deviations.to(self.mean).square().sum(0)

    def log_det(self) -> Tensor:
        """The log determinant of the covariance: det(D + FFᵀ) = det D · det(I + FᵀD⁻¹F)."""
        factor = self.deviations.to(self.mean) * self.scale / self.std
        inner = torch.eye(len(factor), dtype=factor.dtype, device=factor.device) + factor @ factor.T
        return 2 * self.std.log().sum() + torch.linalg.slogdet(inner).logabsdet

    def log_prob(self, weights: Tensor) -> Tensor:
        """Log density of a whole vector (without weights of variance 0), by the determinant and inversion lemmas."""
        live = self.variance() > 0
        diagonal, factor = self.std[live].square(), self.deviations.to(self.mean).T[live] * self.scale
        if not bool((diagonal > 0).all()):
            raise PosterityError("weights that vary in the low-rank directions alone have no density")
        q = torch.distributions.LowRankMultivariateNormal(self.mean[live], factor, diagonal)
        return q.log_prob(weights[live])
