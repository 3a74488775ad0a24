"""Draws of a diagonal Gaussian and its KL against a Normal prior, with gradients in closed form.

For w ~ N(mean, exp(log_std)²) and prior N(m, s²), over all weights at once:

    w            = mean + exp(log_std) ⊙ ε
    KL           = Σ ½(exp(2 log_std) + (mean − m)²)/s² − ½ − log_std + log s
    ∂KL/∂mean    = (mean − m)/s²
    ∂KL/∂log_std = exp(2 log_std)/s² − 1

On a CPU a step of a small network is bound by passes over its weights, so ``draw_with_kl`` does both in one go: the
exponential is taken once, and backward adds the two gradients as it writes them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from posterity.probability.gaussians import DiagonalNormal
from posterity.probability.kl import kl_divergence
from posterity.probability.priors import Normal, Prior

__all__ = ["diagonal_kl", "draw_with_kl"]

Hyper = float | Tensor


def diagonal_kl(mean: Tensor, log_std: Tensor, prior: Prior) -> Tensor:
    """KL(q‖p) summed, for a prior that fits the vector (``prior.flat``).

    Priors without a closed form are estimated with one fresh draw, which is unbiased.
    """
    match prior:
        case Normal(std=std, mean=center):
            return _NormalKL.apply(mean, log_std, center, std)
    return kl_divergence(DiagonalNormal(mean, log_std.exp()), prior)


def draw_with_kl(mean: Tensor, log_std: Tensor, prior: Normal) -> tuple[Tensor, Tensor]:
    """One draw of the weights, and KL(q‖p)."""
    return _DrawWithKL.apply(mean, log_std, prior.mean, prior.std)


class _NormalKL(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor, center: Hyper, prior_std: Hyper) -> Tensor:
        offset, std = _offset(mean, center), log_std.exp()
        ctx.save_for_backward(offset, std)
        ctx.precision = prior_std**-2
        return _value(offset, std, log_std, prior_std)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        offset, std = ctx.saved_tensors
        factor = grad * ctx.precision
        return offset * factor, (std * std).mul_(factor).sub_(grad), None, None


class _DrawWithKL(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor, center: Hyper, prior_std: Hyper) -> tuple[Tensor, Tensor]:
        offset, std = _offset(mean, center), log_std.exp()
        step = torch.randn_like(mean).mul_(std)
        ctx.save_for_backward(offset, std, step)
        ctx.precision = prior_std**-2
        return mean + step, _value(offset, std, log_std, prior_std)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_kl: Tensor) -> tuple[Tensor | None, ...]:
        offset, std, step = ctx.saved_tensors
        factor = grad_kl * ctx.precision
        grad_log_std = std * factor
        torch.addcmul(-grad_kl, std, grad_log_std, out=grad_log_std).addcmul_(step, grad)
        return torch.addcmul(grad, offset, factor), grad_log_std, None, None


def _offset(mean: Tensor, center: Hyper) -> Tensor:
    return mean - center if isinstance(center, Tensor) or center else mean


def _value(offset: Tensor, std: Tensor, log_std: Tensor, prior_std: Hyper) -> Tensor:
    """The KL itself, by sums without temporaries where the prior has one std for all."""
    if isinstance(prior_std, Tensor) and prior_std.ndim:
        spread = (offset / prior_std).square().sum() + (std / prior_std).square().sum()
        return 0.5 * (spread - len(offset)) - log_std.sum() + prior_std.log().sum()
    spread = (torch.dot(offset, offset) + torch.dot(std, std)) / prior_std**2
    return 0.5 * (spread - len(offset)) - log_std.sum() + len(offset) * math.log(prior_std)
