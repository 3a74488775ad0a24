"""A Gaussian prior whose weights are correlated: what a full posterior becomes when it is carried on.

    log p(w) = −½ (w − mean)ᵀ Λ (w − mean) + ½ log det Λ − ½ d log 2π,     Λ = (L Lᵀ)⁻¹

over the parameters that the posterior covers; all others are independent, by a base prior. Fitted to a flat vector
(``flat``) it is the marginal of the parameters asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from posterity.flat import Layout
from posterity.probability.gaussians import DiagonalNormal, FullNormal, LowRankNormal
from posterity.probability.hyper import like
from posterity.probability.kl import register_kl
from posterity.probability.priors import Normal, Prior, check_proper, check_temperature
from posterity.types import Params

__all__ = ["Correlated"]


@dataclass(frozen=True, eq=False, repr=False)
class Correlated(Prior):
    """w ~ N(mean, L Lᵀ).

    Attributes:
        mean: [weights], in the order of ``layout``.
        scale_tril: L, [weights, weights].
        layout: The parameters that it covers.
        base: The prior of every other parameter.
    """

    mean: Tensor
    scale_tril: Tensor
    layout: Layout
    base: Normal = Normal()

    def __repr__(self) -> str:
        return f"Correlated({len(self.mean)} weights, mean {float(self.mean.double().mean()):.9g})"

    @cached_property
    def precision(self) -> Tensor:
        """Λ."""
        return torch.cholesky_inverse(self.scale_tril)

    @property
    def covariance(self) -> Tensor:
        """L Lᵀ."""
        return self.scale_tril @ self.scale_tril.T

    def log_density(self, weights: Tensor) -> Tensor:
        """log p of a whole vector."""
        return FullNormal(self.mean.to(weights), self.scale_tril.to(weights)).log_prob(weights)

    def log_prob(self, params: Params) -> Tensor:
        """log p(w), summed over all weights."""
        covered = torch.cat([params[name].reshape(-1) for name in self.layout.names])
        others = {name: w for name, w in params.items() if name not in self.layout.names}
        density = self.log_density(covered)
        return density + self.base.log_prob(others) if others else density

    def independent(self) -> Normal:
        """The marginal of every weight, for methods whose weights are independent."""
        std = self.layout.unflatten(FullNormal(self.mean, self.scale_tril).variance().sqrt())
        return Normal(
            _with_default(std, self.base.std), _with_default(self.layout.unflatten(self.mean), self.base.mean)
        )

    def at(self, name: str, shape: Sequence[int] | None = None) -> Any:
        """The marginal of one parameter."""
        return self.independent().at(name, shape)

    def flat(self, layout: Layout) -> Correlated:
        """The marginal of these parameters, in their order."""
        if layout == self.layout:
            return self
        base = self.base.flat(layout)
        places = self.layout.unflatten(torch.arange(self.layout.total, device=self.mean.device))
        chosen = [
            places[name].reshape(-1) if name in places else self.mean.new_full((size,), -1, dtype=torch.int64)
            for name, size in zip(layout.names, layout.sizes, strict=True)
        ]
        index = torch.cat(chosen)
        unknown = index < 0
        mean = torch.where(unknown, like(base.mean, self.mean), self.mean[index])
        return Correlated(mean, self._scale(self.covariance[index][:, index], unknown, base), layout, self.base)

    def tempered(self, base: Normal | Correlated, temperature: float) -> Correlated:
        """base·(self/base)^(1/temperature): what this prior knows beyond ``base``, to a part."""
        check_temperature(temperature)
        flat = base.flat(self.layout)
        start = _matrix(flat.precision, self.mean)
        center = start @ like(flat.mean, self.mean).expand_as(self.mean)
        precision = start + (self.precision - start) / temperature
        check_proper(torch.linalg.eigvalsh(precision), temperature)
        pull = center + (self.precision @ self.mean - center) / temperature
        covariance = torch.linalg.inv(precision)
        others = base.base if isinstance(base, Correlated) else base
        return Correlated(covariance @ pull, torch.linalg.cholesky(covariance), self.layout, others)

    def renewed(self, where: Params, base: Normal) -> Correlated:
        """The same, but with ``base``, and no correlation, for the marked weights."""
        unmarked = {name: torch.zeros(shape) for name, shape in zip(self.layout.names, self.layout.shapes, strict=True)}
        marked = self.layout.flatten({**unmarked, **where}).bool().to(self.mean.device)
        flat = base.flat(self.layout)
        mean = torch.where(marked, like(flat.mean, self.mean), self.mean)
        return Correlated(mean, self._scale(self.covariance, marked, flat), self.layout, self.base)

    def _scale(self, covariance: Tensor, marked: Tensor, base: Normal) -> Tensor:
        """The factor of a covariance in which the marked weights are independent, with the variance of ``base``."""
        kept = ~marked
        variance = like(base.std, covariance).expand(len(covariance)).square()
        mixed = covariance * kept[:, None] * kept + torch.where(marked, variance, 0.0).diag()
        return torch.linalg.cholesky(mixed)


def _matrix(precision: Any, weights: Tensor) -> Tensor:
    """A precision that is one number, one of each weight, or a matrix already, as a matrix."""
    own = like(precision, weights)
    return own if own.ndim == 2 else own.expand_as(weights).diag()


def _with_default(known: Params, default: Any) -> dict[str, Any]:
    """By name, with the base's own for every other parameter."""
    return {**known, **(default if isinstance(default, dict) else {"*": default})}


@register_kl(FullNormal, Correlated)
def _full(q: FullNormal, p: Correlated) -> Tensor:
    trace = (q.scale_tril * (p.precision @ q.scale_tril)).sum()
    return _kl(q, trace, p)


@register_kl(DiagonalNormal, Correlated)
def _diagonal(q: DiagonalNormal, p: Correlated) -> Tensor:
    return _kl(q, (p.precision.diagonal() * q.variance()).sum(), p)


@register_kl(LowRankNormal, Correlated)
def _low_rank(q: LowRankNormal, p: Correlated) -> Tensor:
    directions = q.deviations * q.scale
    trace = (p.precision.diagonal() * q.std.square()).sum() + (directions * (directions @ p.precision)).sum()
    return _kl(q, trace, p)


def _kl(q: DiagonalNormal | FullNormal | LowRankNormal, trace: Tensor, p: Correlated) -> Tensor:
    """½ [tr(Λ Σ) + (μ − m)ᵀ Λ (μ − m) − d − log det Λ − log det Σ]."""
    offset = q.mean - p.mean
    prior_log_det = FullNormal(p.mean, p.scale_tril).log_det()
    return 0.5 * (trace + offset @ p.precision @ offset - len(q.mean) + prior_log_det - q.log_det())
