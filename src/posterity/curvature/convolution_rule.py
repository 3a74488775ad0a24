"""Convolutions: the gradient and its per-example square from the same products.

With d the gradient that reaches an example's output and u the patch of inputs at position t,

    weight: (Σ_t d_t u_tᵀ)²        bias: (Σ_t d_t)²

``outer`` says how the first is summed over examples. The layer becomes an autograd function, whose backward pass
computes the ordinary weight gradient too, so that nothing is done twice.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.modules.conv import _ConvNd

from posterity.curvature.conv_kernel import fused_moments
from posterity.curvature.linear_rule import LIFT, add_bias
from posterity.curvature.outer import add_moments, examples_at_once
from posterity.curvature.patches import Windows, pad_explicitly
from posterity.curvature.sink import Forward, Sink
from posterity.types import PosterityError


def convolution(module: _ConvNd, original: Forward, sink: Sink) -> Forward:
    """Convolutions of one, two or three dimensions with any stride, padding, dilation and groups."""
    windows = Windows.of(module)
    return lambda x: _Convolution.apply(pad_explicitly(module, x), module.weight, module.bias, windows, sink)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, windows: Windows, sink: Sink
    ) -> Tensor:
        if x.dim() != weight.dim():
            raise PosterityError(f"{sink.label} got a single example, and squared gradients need a batch of them")
        ctx.save_for_backward(x, weight)
        ctx.windows, ctx.sink, ctx.call = windows, sink, object()
        convolve = (F.conv1d, F.conv2d, F.conv3d)[len(windows.kernel) - 1]
        return convolve(x, weight, bias, windows.stride, windows.padding, windows.dilation, windows.groups)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        scale = ctx.sink.report(ctx.call, d)
        dx = _conv_input(ctx.windows, d, x, weight) if ctx.needs_input_grad[0] else None
        dw = _conv_weight(ctx.sink, ctx.windows, d, x, scale) if ctx.needs_input_grad[1] else None
        db = None
        if ctx.needs_input_grad[2]:
            db = add_bias(ctx.sink, d.flatten(2).to(weight.dtype).sum(2).mul_(LIFT), scale / LIFT**2)
        return dx, dw, db, None, None


def _conv_input(windows: Windows, d: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    geometry = (windows.stride, windows.padding, windows.dilation, False, (0,) * len(windows.kernel), windows.groups)
    only_input = (True, False, False)
    x, weight = x.to(d.dtype), weight.to(d.dtype)
    return torch.ops.aten.convolution_backward(d, x, weight, None, *geometry, only_input)[0]


def _conv_weight(sink: Sink, windows: Windows, d: Tensor, x: Tensor, scale: float) -> Tensor:
    out = sink.sums["weight"]
    fused = fused_moments(out, windows, d, x, scale)
    if fused is not None:
        return fused
    return _conv_weight_by_patches(sink, windows, d.to(out.dtype), x.to(out.dtype), scale)


def _conv_weight_by_patches(sink: Sink, windows: Windows, d: Tensor, x: Tensor, scale: float) -> Tensor:
    out = sink.sums["weight"]
    channels_last, K = windows.channels_last(x), out[0].numel()
    x = windows.prepare(x, channels_last)
    d = (d * LIFT).flatten(2).unflatten(1, (windows.groups, -1)).permute(1, 0, 3, 2)  # [groups, examples, T, O]
    positions = d.shape[2]
    total, squares = torch.zeros(2, windows.groups, d.shape[3], K, dtype=out.dtype, device=out.device)
    size = examples_at_once(windows.groups * positions * K, x.device)
    for start in range(0, d.shape[1], size):
        part = slice(start, start + size)
        view = windows.patches(x[:, part], channels_last)
        U = sink.workspace.take("patches", tuple(view.shape), x).copy_(view).view(*view.shape[:2], -1)
        U = U.unflatten(2, (positions, K)) if channels_last else U.unflatten(2, (K, positions)).mT
        add_moments(total, squares, d[:, part], U, sink.workspace)
    out.add_(windows.as_weight(squares, channels_last), alpha=scale / LIFT**2)
    return windows.as_weight(total.div_(LIFT), channels_last).contiguous()
