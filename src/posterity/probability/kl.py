"""KL(q‖p), summed over weights: closed forms by pair, and documented Monte Carlo where there is none.

The direction is always posterior first. With d weights, prior N(m, s²) and q = N(μ, Σ):

    KL = ½ Σ_i [ (Σ_ii + (μ_i − m_i)²)/s_i² − 1 + log s_i² ] − ½ log det Σ

Pairs are registered; a pair that is not is an error that names both, never a silent guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posterity.probability.gaussians import DiagonalNormal, FullNormal, LowRankNormal
from posterity.probability.hyper import log
from posterity.probability.priors import Laplace, LogUniform, Normal, Prior, ScaleMixture, StudentT
from posterity.types import PosterityError

__all__ = ["kl_divergence", "monte_carlo_kl", "register_kl"]

ClosedForm = Callable[[Any, Any], Tensor]
_CLOSED_FORMS: dict[tuple[type, type], ClosedForm] = {}
_MONTE_CARLO = (
    (DiagonalNormal, ScaleMixture),
    (DiagonalNormal, StudentT),
    (FullNormal, ScaleMixture),
    (LowRankNormal, ScaleMixture),
    (FullNormal, StudentT),
    (LowRankNormal, StudentT),
    (FullNormal, Laplace),
    (LowRankNormal, Laplace),
)

LOG_UNIFORM_FIT = 0.63576, 1.87320, 1.48695
"""k₁, k₂, k₃ of Molchanov et al.'s fit to the KL against a log-uniform prior."""


def register_kl(family: type, prior: type) -> Callable[[ClosedForm], ClosedForm]:
    """Register a closed form for one pair."""

    def register(function: ClosedForm) -> ClosedForm:
        _CLOSED_FORMS[family, prior] = function
        return function

    return register


def kl_divergence(q: Any, prior: Prior, generator: torch.Generator | None = None, samples: int = 1) -> Tensor:
    """KL(q‖p) as a sum over weights.

    Args:
        q: A family over a tensor of weights, such as ``DiagonalNormal``.
        prior: A prior whose hyper-parameters fit that tensor (``prior.at(name)`` or ``prior.flat(layout)``).
        generator: Noise for pairs without a closed form.
        samples: Monte Carlo draws for those pairs; the estimate is unbiased for any number.
    """
    pair = (type(q), type(prior))
    if pair in _CLOSED_FORMS:
        return _CLOSED_FORMS[pair](q, prior)
    if pair in _MONTE_CARLO:
        return monte_carlo_kl(q, prior, generator, samples)
    known = ", ".join(f"{a.__name__}‖{b.__name__}" for a, b in [*_CLOSED_FORMS, *_MONTE_CARLO])
    names = f"{pair[0].__name__}‖{pair[1].__name__}"
    register = f"register_kl({pair[0].__name__}, {pair[1].__name__})(monte_carlo_kl)"
    raise PosterityError(
        f"no KL is known for {names}; known are {known}; your own gets one by {register} of posterity.probability.kl"
    )


def monte_carlo_kl(q: Any, prior: Prior, generator: torch.Generator | None = None, samples: int = 1) -> Tensor:
    """−H(q) − E_q[log p(w)] with ``samples`` reparameterised draws for the second term; its error falls as 1/√samples.

    The entropy H of a Gaussian is known, and its gradient is the same as that of the drawn log q(w).
    """
    entropy = 0.5 * (q.log_det() + q.mean.numel() * math.log(2 * math.pi * math.e))
    return -entropy - sum(prior.log_density(q.sample(generator)).sum() for _ in range(samples)) / samples


@register_kl(DiagonalNormal, Normal)
def _diagonal_normal(q: DiagonalNormal, p: Normal) -> Tensor:
    ratio = (q.std / p.std).square()
    return 0.5 * (ratio + ((q.mean - p.mean) / p.std).square() - 1 - ratio.log()).sum()


@register_kl(FullNormal, Normal)
@register_kl(LowRankNormal, Normal)
def _correlated_normal(q: FullNormal | LowRankNormal, p: Normal) -> Tensor:
    log_prior_det = 2 * (torch.zeros_like(q.mean) + p.std).log().sum()  # one std for all counts for each
    spread = ((q.variance() + (q.mean - p.mean).square()) / p.std**2).sum()  # type: ignore[operator]
    return 0.5 * (spread - len(q.mean) + log_prior_det - q.log_det())


@register_kl(DiagonalNormal, Laplace)
def _diagonal_laplace(q: DiagonalNormal, p: Laplace) -> Tensor:
    z = q.mean / q.std
    expected_abs = q.std * math.sqrt(2 / math.pi) * torch.exp(-0.5 * z.square()) + q.mean * torch.erf(z / math.sqrt(2))
    entropy = q.std.log() + 0.5 * math.log(2 * math.pi * math.e)
    return (expected_abs / p.scale + log(p.scale) + math.log(2.0) - entropy).sum()


@register_kl(DiagonalNormal, LogUniform)
def _diagonal_log_uniform(q: DiagonalNormal, p: LogUniform) -> Tensor:
    """Molchanov et al.'s fit in log α = log std²/mean²; within 0.01 nat, zero as α → ∞."""
    log_alpha = 2 * (q.std.log() - q.mean.abs().clamp_min(1e-12).log())
    k1, k2, k3 = LOG_UNIFORM_FIT
    bump = k1 * torch.sigmoid(-(k2 + k3 * log_alpha))
    return (0.5 * torch.nn.functional.softplus(-log_alpha) + bump).sum()
