"""Draws and moments of a diagonal Gaussian together with its KL against a Normal prior, gradients in closed form.

For w ~ N(mean, exp(log_std)²) and prior N(m, s²), over all weights at once:

    w            = mean + exp(log_std) ⊙ ε
    KL           = Σ ½(exp(2 log_std) + (mean − m)²)/s² − ½ − log_std + log s
    ∂KL/∂mean    = (mean − m)/s²
    ∂KL/∂log_std = exp(2 log_std)/s² − 1

On a CPU a step of a small network is bound by passes over its weights. So the KL is made together with what a pass puts
into the network: the exponential is taken once, and backward adds the two gradients as it writes them.

Against the log-uniform prior p(w) ∝ 1/|w| the KL depends on log α = log exp(2 log_std)/mean² alone. With the fit of
Molchanov et al. 2017 (1701.05369), within 0.01 nat of the truth, shifted to be 0 at α = ∞:

    KL           = Σ ½ log(1 + 1/α) + k₁ sigmoid(−k₂ − k₃ log α),    k = 0.63576, 1.87320, 1.48695

Beyond log α = 8 a weight is noise, and there is no slope that would drive it on. At the other end there must be one:
published code keeps log α in [−8, 8], and what starts below, a large weight or a scale of 1 with a std of 0.01, never
feels the prior.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from posterity.devices import number
from posterity.probability.gaussians import DiagonalNormal
from posterity.probability.kl import LOG_UNIFORM_FIT, kl_divergence
from posterity.probability.priors import LogUniform, Normal, Prior
from posterity.random import normal_like

__all__ = ["diagonal_kl", "draw_with_kl", "moments_with_kl"]

Hyper = float | Tensor

_K1, _K2, _K3 = LOG_UNIFORM_FIT
_HIGHEST = 8.0
_FLATTEST = 1.72e-4  # |∂KL/∂log α| where log α is 8, and a little for rounding: it is smaller nowhere else


def diagonal_kl(mean: Tensor, log_std: Tensor, prior: Prior) -> Tensor:
    """KL(q‖p) summed, for a prior that fits the vector (``prior.flat``).

    Priors without a closed form are estimated with one fresh draw, which is unbiased.
    """
    match prior:
        case Normal():
            return moments_with_kl(mean, log_std, prior)[-1]
        case LogUniform():
            return _LogUniformKL.apply(mean, log_std)
    return kl_divergence(DiagonalNormal(mean, log_std.exp()), prior)


def draw_with_kl(mean: Tensor, log_std: Tensor, prior: Normal) -> tuple[Tensor, Tensor]:
    """One draw of the weights, and KL(q‖p)."""
    return _Draw.apply(mean, log_std, prior.mean, prior.precision, prior.log_scale)


def moments_with_kl(mean: Tensor, log_std: Tensor, prior: Normal) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the weights, and KL(q‖p)."""
    return _Moments.apply(mean, log_std, prior.mean, prior.precision, prior.log_scale)


class _Draw(torch.autograd.Function):
    """∂draw/∂log_std is the deviation itself."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, log_std: Tensor, center: Hyper, precision: Hyper, log_scale: Hyper
    ) -> tuple[Tensor, Tensor]:
        offset, std = _offset(mean, center), log_std.exp()
        deviation = normal_like(mean).mul_(std)
        differs = isinstance(precision, Tensor) and precision.ndim > 0
        pull, narrow = (offset * precision, std * precision) if differs else (offset, std)
        ctx.factor = 1.0 if differs else precision
        ctx.save_for_backward(pull, std, narrow, deviation)
        spread = (torch.dot(offset, pull) + torch.dot(std, narrow)) * ctx.factor
        return mean + deviation, _value(spread, log_std, log_scale if differs else len(mean) * log_scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_kl: Tensor) -> tuple[Tensor | None, ...]:
        pull, std, narrow, deviation = ctx.saved_tensors
        ctx.spent = True
        grad_kl = number(grad_kl)
        factor = grad_kl * ctx.factor
        grad_log_std = _add_product_(deviation * grad, std, narrow, factor).sub_(grad_kl)
        return _add_scaled(grad, pull, factor), grad_log_std, None, None, None


class _Moments(torch.autograd.Function):
    """∂variance/∂log_std is twice the variance."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, log_std: Tensor, center: Hyper, precision: Hyper, log_scale: Hyper
    ) -> tuple[Tensor, Tensor, Tensor]:
        offset, std = _offset(mean, center), log_std.exp()
        if isinstance(precision, Tensor) and precision.ndim:
            variance, pull, ctx.factor = std.mul_(std), offset * precision, 1.0
            spread = torch.dot(offset, pull) + torch.dot(variance, precision)
            ctx.save_for_backward(pull, variance, precision)
            return mean.view_as(mean), variance, _value(spread, log_std, log_scale)
        spread = (torch.dot(offset, offset) + torch.dot(std, std)) * precision
        variance, ctx.factor = std.mul_(std), precision
        ctx.save_for_backward(offset, variance, None)
        return mean.view_as(mean), variance, _value(spread, log_std, len(mean) * log_scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_variance: Tensor, grad_kl: Tensor) -> tuple[Tensor | None, ...]:
        pull, variance, by_weight = ctx.saved_tensors
        ctx.spent = True
        grad_kl = number(grad_kl)
        factor = grad_kl * ctx.factor
        slope = 2 * grad_variance
        slope = slope.add_(factor) if by_weight is None else _add_scaled(slope, by_weight, factor)
        return _add_scaled(grad, pull, factor), slope.mul_(variance).sub_(grad_kl), None, None, None


class _LogUniformKL(torch.autograd.Function):
    """Keeps ∂KL/∂log α and what it is for the mean. No masks and few new tensors, which cost most on a CPU."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor) -> Tensor:
        size = mean.abs().clamp_min_(1e-30)
        log_alpha = size.log().neg_().add_(log_std).mul_(2).clamp_(max=_HIGHEST)
        signal = log_alpha.neg().sigmoid_()  # 1/(1 + α)
        cost = -signal.log().add_(log_alpha).sum()  # Σ log(1 + 1/α), exact for tiny α where log(1 − signal) is not
        bump = log_alpha.mul_(-_K3).sub_(_K2).sigmoid_()
        value = _K1 * bump.sum() + 0.5 * cost
        slope = signal.mul_(-0.5).add_(bump, alpha=-_K1 * _K3).addcmul_(bump, bump, value=_K1 * _K3)
        slope = torch.hardshrink(slope, _FLATTEST, out=bump)
        ctx.save_for_backward(torch.div(slope, size.copysign_(mean), out=size), slope)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        by_mean, slope = ctx.saved_tensors  # ∂log α/∂mean = −2/mean
        return by_mean * (-2 * number(grad)), slope * (2 * number(grad))


def _add_scaled(base: Tensor, values: Tensor, factor: Hyper) -> Tensor:
    """base + factor ⊙ values in one pass."""
    if isinstance(factor, Tensor):
        return torch.addcmul(base, values, factor)
    return torch.add(base, values, alpha=factor)


def _add_product_(base: Tensor, left: Tensor, right: Tensor, factor: Hyper) -> Tensor:
    """base + factor ⊙ left ⊙ right, in place."""
    if isinstance(factor, Tensor):
        return base.addcmul_(left, right * factor)
    return base.addcmul_(left, right, value=factor)


def _offset(mean: Tensor, center: Hyper) -> Tensor:
    return mean - center if isinstance(center, Tensor) or center else mean


def _value(spread: Tensor, log_std: Tensor, log_scale: Hyper) -> Tensor:
    """The KL, from Σ ((mean − m)² + std²)/s² and Σ log s."""
    return 0.5 * (spread - len(log_std)) - log_std.sum() + log_scale
