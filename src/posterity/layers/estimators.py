"""One layer, random weights: pure functions that put the noise where its gradient is quietest.

With independent weights w ~ N(mean, variance) and a linear map x ↦ x ∗ w (a matrix product or a convolution):

    reparameterised  x ∗ (mean + deviation), deviation = √variance ⊙ ε       one ε for the whole batch
    local            x ∗ mean + √(x² ∗ variance) ⊙ ε                         one ε for every output of every example
    flipout          x ∗ mean + ((x ⊙ s) ∗ deviation) ⊙ r                    one deviation, signs s, r for every example

All three have the same mean and variance for each output. Local noise is independent between examples (and, for a
convolution, between positions: the spatial correlation of one filter's noise is dropped, by design); flipout noise is
uncorrelated between examples. See Kingma et al. 2015 (1506.02557) and Wen et al. 2018 (1803.04386).

The local estimators are autograd functions with hand-written backward passes that keep the input and one tensor of the
output's size, h = ε/(2√v), because ∂out/∂v = h. Noise comes from torch's global generator, as dropout's does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from posterity.random import normal_like

__all__ = [
    "Geometry",
    "deviation",
    "drawn",
    "flipout_convolution",
    "flipout_linear",
    "local_convolution",
    "local_linear",
    "noised",
]


class Geometry(NamedTuple):
    """How a kernel moves over its input: the arguments of ``torch.convolution``."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int


def deviation(log_std: Tensor) -> Tensor:
    """exp(log_std) ⊙ ε."""
    return _Deviation.apply(log_std)


def drawn(mean: Tensor, variance: Tensor) -> Tensor:
    """One draw of weights that are given by their means and variances."""
    return torch.addcmul(mean, normal_like(mean), variance.sqrt())


def local_linear(
    x: Tensor, mean: Tensor, variance: Tensor, bias: Tensor | None = None, bias_variance: Tensor | None = None
) -> Tensor:
    """A linear layer with the noise of its outputs.

    Args:
        x: Inputs [..., in].
        mean: Weight means [out, in].
        variance: Weight variances [out, in].
        bias: Bias (mean) [out].
        bias_variance: Bias variance [out]; none if the bias is deterministic.
    """
    flat = x.reshape(-1, x.shape[-1])
    out = _LocalLinear.apply(*_same_type(flat, mean, variance, bias, bias_variance))
    return out.view(*x.shape[:-1], len(mean))


def local_convolution(
    x: Tensor, mean: Tensor, variance: Tensor, bias: Tensor | None, bias_variance: Tensor | None, geometry: Geometry
) -> Tensor:
    """A convolution of any dimension, transposed or not, with the noise of its outputs; arguments as above."""
    return _LocalConvolution.apply(*_same_type(x, mean, variance, bias, bias_variance), geometry)


def noised(center: Tensor, variance: Tensor) -> Tensor:
    """center + √variance ⊙ ε, for means and variances of outputs that were made apart."""
    return _Noised.apply(center, variance)


def flipout_linear(
    x: Tensor, mean: Tensor, deviation: Tensor, bias: Tensor | None = None, bias_deviation: Tensor | None = None
) -> Tensor:
    """A linear layer with one weight deviation, its sign flipped at random for every example.

    Args:
        x: Inputs [..., in]; every row counts as an example.
        mean: Weight means [out, in].
        deviation: One draw of the weights minus their means [out, in].
        bias: Bias (mean) [out].
        bias_deviation: One draw of the bias minus its mean [out].
    """
    signs_in = _signs(x, x.shape)
    signs_out = _signs(x, (*x.shape[:-1], len(mean)))
    return torch.addcmul(F.linear(x, mean, bias), F.linear(x * signs_in, deviation, bias_deviation), signs_out)


def flipout_convolution(
    x: Tensor, mean: Tensor, deviation: Tensor, bias: Tensor | None, bias_deviation: Tensor | None, geometry: Geometry
) -> Tensor:
    """A convolution with one weight deviation, its sign flipped for every example and channel."""
    signs_in = _signs(x, (*x.shape[:2], *[1] * (x.ndim - 2)))
    center = torch.convolution(x, mean, bias, *geometry)
    noise = torch.convolution(x * signs_in, deviation, bias_deviation, *geometry)
    return torch.addcmul(center, noise, _signs(x, (*center.shape[:2], *[1] * (x.ndim - 2))))


def _signs(like: Tensor, shape: tuple[int, ...] | torch.Size) -> Tensor:
    """Independent ±1."""
    return torch.randint(0, 2, shape, dtype=torch.int8, device=like.device).to(like.dtype).mul_(2).sub_(1)


def _same_type(x: Tensor, *others: Tensor | None) -> list[Tensor | None]:
    """Under autocast a custom function must do the casts that autocast does for F.linear."""
    dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    return [t if t is None else t.to(dtype) for t in (x, *others)]


class _Deviation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_std: Tensor) -> Tensor:
        step = normal_like(log_std).mul_(log_std.exp())
        ctx.save_for_backward(step)
        return step

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (step,) = ctx.saved_tensors
        return grad * step


def _add_noise(center: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """center + √variance ⊙ ε and h = ε/(2√variance), using both tensors up.

    An output of variance 0 (black pixels) keeps a finite h, and nothing reaches the weights through it.
    """
    std = variance.clamp_min_(torch.finfo(variance.dtype).tiny).sqrt_()
    noise = normal_like(center)
    out = center.addcmul_(std, noise)
    return out, noise.div_(std.mul_(2))


class _Noised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, center: Tensor, variance: Tensor) -> Tensor:
        out, h = _add_noise(center.clone(), variance.clone())
        ctx.save_for_backward(h)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (h,) = ctx.saved_tensors
        return grad, h * grad


class _LocalLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mean: Tensor, variance: Tensor, bias: Tensor | None, bias_variance: Tensor | None
    ) -> Tensor:
        out, h = _add_noise(F.linear(x, mean, bias), F.linear(x * x, variance, bias_variance))
        ctx.save_for_backward(x, mean, variance, h)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, variance, h = ctx.saved_tensors
        needs_x, _, _, needs_bias, needs_bias_variance = ctx.needs_input_grad
        grad_v = h * grad
        grad_x = (grad_v @ variance).mul_(x).mul_(2).addmm_(grad, mean) if needs_x else None
        grad_bias = grad.sum(0) if needs_bias else None
        return grad_x, grad.T @ x, grad_v.T @ (x * x), grad_bias, grad_v.sum(0) if needs_bias_variance else None


class _LocalConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mean: Tensor,
        variance: Tensor,
        bias: Tensor | None,
        bias_variance: Tensor | None,
        geometry: Geometry,
    ) -> Tensor:
        center = torch.convolution(x, mean, bias, *geometry)
        out, h = _add_noise(center, torch.convolution(x * x, variance, bias_variance, *geometry))
        ctx.save_for_backward(x, mean, variance, h)
        ctx.geometry = geometry
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, variance, h = ctx.saved_tensors
        needs_x, _, _, needs_bias, needs_bias_variance, _ = ctx.needs_input_grad
        grad_x, grad_mean, grad_bias = _convolution_gradients(grad, x, mean, ctx.geometry, needs_x, needs_bias)
        through_v, grad_variance, grad_bias_variance = _convolution_gradients(
            h * grad, x * x, variance, ctx.geometry, needs_x, needs_bias_variance
        )
        if grad_x is not None and through_v is not None:
            grad_x = grad_x.addcmul_(through_v, x, value=2)
        return grad_x, grad_mean, grad_variance, grad_bias, grad_bias_variance, None


def _convolution_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, needs_x: bool, needs_bias: bool
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Gradients of one convolution in its input, weight and bias."""
    channels = weight.shape[1] * geometry.groups if geometry.transposed else weight.shape[0]
    return torch.ops.aten.convolution_backward(
        grad, x, weight, [channels] if needs_bias else None, *geometry, [needs_x, True, needs_bias]
    )
