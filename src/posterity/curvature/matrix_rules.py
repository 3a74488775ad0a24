"""Linear layers and convolutions: the gradient and its per-example square from the same products.

With d the gradient that reaches an example's output and u the inputs (of a convolution: the patches) at position t,

    weight: (Σ_t d_t u_tᵀ)²        bias: (Σ_t d_t)²

``outer`` says how the first is summed over examples. Both layers become autograd functions, whose backward pass
computes the ordinary weight gradient too, so that nothing is done twice.

Squares are taken of gradients times 2³⁰. The gradients of a confident classifier reach down to 1e-20, and their squares
would be denormal numbers, with which a CPU multiplies ten times slower; a power of two costs no digits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.conv import _ConvNd

from posterity.curvature.conv_kernel import fused_moments
from posterity.curvature.outer import add_moments, examples_at_once
from posterity.curvature.patches import Windows, pad_explicitly
from posterity.curvature.sink import Forward, Sink
from posterity.types import PosterityError

LIFT = 2.0**30


def linear(module: nn.Linear, original: Forward, sink: Sink) -> Forward:
    """Linear layers, with any dimensions between the batch and the features."""
    return lambda x: _Linear.apply(x, module.weight, module.bias, sink)


def convolution(module: _ConvNd, original: Forward, sink: Sink) -> Forward:
    """Convolutions of one, two or three dimensions with any stride, padding, dilation and groups."""
    windows = Windows.of(module)
    return lambda x: _Convolution.apply(pad_explicitly(module, x), module.weight, module.bias, windows, sink)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sink: Sink) -> Tensor:  # type: ignore[override]
        if x.dim() < 2:
            raise PosterityError(f"{sink.label} got a single vector, and squared gradients need a batch of examples")
        ctx.save_for_backward(x, weight)
        ctx.sink, ctx.call = sink, object()  # not ctx itself: the sink would keep the graph, and so itself, for ever
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        scale = ctx.sink.report(ctx.call, d) / LIFT**2
        dx = d @ weight.to(d.dtype) if ctx.needs_input_grad[0] else None
        d, x = d.to(weight.dtype), x.to(weight.dtype)  # under autocast: the sums are kept in the weight's own precision
        moments = _of_vectors if d.dim() == 2 else _of_sequences
        return dx, *moments(ctx.sink, d, x, scale), None


def _of_vectors(sink: Sink, d: Tensor, x: Tensor, scale: float) -> tuple[Tensor | None, Tensor | None]:
    """One position: (d x)² = d² x²."""
    squares, dw, db = (d * LIFT).square_(), None, None
    if "weight" in sink.sums:
        sink.sums["weight"].addmm_(squares.t(), x.square(), alpha=scale)
        dw = d.t() @ x
    if "bias" in sink.sums:
        sink.sums["bias"].add_(squares.sum(0), alpha=scale)
        db = d.sum(0)
    return dw, db


def _of_sequences(sink: Sink, d: Tensor, x: Tensor, scale: float) -> tuple[Tensor | None, Tensor | None]:
    """Several positions between the batch and the features."""
    d, x = (d * LIFT).flatten(1, -2), x.flatten(1, -2)
    db = _bias(sink, d.sum(1), scale) if "bias" in sink.sums else None
    if "weight" not in sink.sums:
        return None, db
    out = sink.sums["weight"]
    total, squares = torch.zeros(2, 1, *out.shape, dtype=out.dtype, device=out.device)
    size = examples_at_once(x[0].numel(), x.device)
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        add_moments(total, squares, d[part].unsqueeze(0), x[part].unsqueeze(0), sink.workspace)
    out.add_(squares[0], alpha=scale)
    return total[0].div_(LIFT), db


def _bias(sink: Sink, lifted: Tensor, scale: float) -> Tensor:
    """Add the squares of the examples' lifted gradients, and return the ordinary one, their sum."""
    sink.sums["bias"].add_(lifted.square().sum(0), alpha=scale)
    return lifted.sum(0).div_(LIFT)


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
            db = _bias(ctx.sink, d.flatten(2).to(weight.dtype).sum(2).mul_(LIFT), scale / LIFT**2)
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
