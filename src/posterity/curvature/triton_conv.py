"""A convolution's weight gradient and the sum of its per-example squares, in one Triton kernel.

A program owns a tile of the weight, [BLOCK_O, BLOCK_C] at one tap of the kernel, and a share of the batch. For each of
its examples it forms the example's tile of the gradient, Σ_t d_t u_tᵀ, in registers, with the addresses of the inputs u
computed on the way (no im2col in memory), and adds it and its square to two accumulators. No per-example gradient
reaches memory. Channels come last in memory, so that a tile is loaded in long pieces whatever the tap.

Where torch would use TF32, the kernel uses float16: both have ten digits after the point, and float16 is multiplied
several times faster. What it lacks is range, so a tensor is first divided by a power of two that puts its largest value
near float16's; full precision then reaches down to 4e-9 of the largest value, and nothing overflows.

With few channels a tile at one tap would be mostly padding. There the columns of the weight, tap by tap and channel by
channel, are taken together (``_few_moments``), an example a program; there is little to multiply, and TF32 will do.

Import this only where Triton is installed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from posterity.curvature.patches import Windows


@dataclass(frozen=True)
class Tiling:
    """How the work is cut: sides of a tile of the weight, positions taken at a time, and what the compiler is told."""

    outputs: int = 64
    channels: int = 64
    positions: int = 32
    warps: int = 4
    stages: int = 3


FEW = 32
"""Fewer input channels than this are taken together with the taps."""


@triton.jit
def _halve(t_ptr, out_ptr, largest_ptr, unit_ptr, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """t / unit in float16, for the power of two that brings the largest value to between 2¹⁴ and 2¹⁵."""
    largest = tl.maximum(tl.load(largest_ptr), 1e-30)
    unit = tl.exp2(tl.ceil(tl.log2(largest)) - 15)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    t = tl.load(t_ptr + at, mask=at < size)
    tl.store(out_ptr + at, (t / unit).to(tl.float16), mask=at < size)
    if tl.program_id(0) == 0:
        tl.store(unit_ptr, unit)


@triton.jit
def _moments(  # type: ignore[no-untyped-def]
    x_ptr, d_ptr, x_unit_ptr, d_unit_ptr, total_ptr, squares_ptr,
    batch, share, positions, outputs, channels, height, width, out_width,
    x_b, x_h, x_w, d_b, d_t,
    stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, scale,
    KH: tl.constexpr, KW: tl.constexpr, STEPS: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    tap = tl.program_id(1) % (KH * KW)
    c = tl.program_id(1) // (KH * KW) * BLOCK_C + tl.arange(0, BLOCK_C)
    down, right = tap // KW * dil_h - pad_h, tap % KW * dil_w - pad_w
    first = tl.program_id(2) * share
    examples = min(share, batch - first)
    total = tl.zeros((BLOCK_O, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_O, BLOCK_C), tl.float32)
    gradient = tl.zeros((BLOCK_O, BLOCK_C), tl.float32)
    # One loop over examples and positions, so that the next example is fetched while this one is multiplied.
    for i in range(examples * STEPS):
        b = (first + i // STEPS).to(tl.int64)
        at = i % STEPS * BLOCK_T + tl.arange(0, BLOCK_T)
        row, col = at // out_width * stride_h + down, at % out_width * stride_w + right
        real = at < positions
        inside = real & (row >= 0) & (row < height) & (col >= 0) & (col < width)
        d_place = (at * d_t)[:, None] + o[None, :]
        d = tl.load(d_ptr + b * d_b + d_place, mask=real[:, None] & (o < outputs)[None, :], other=0.0)
        u_place = (row * x_h + col * x_w)[:, None] + c[None, :]
        u = tl.load(x_ptr + b * x_b + u_place, mask=inside[:, None] & (c < channels)[None, :], other=0.0)
        gradient = tl.dot(tl.trans(d), u, gradient, input_precision="ieee")
        if i % STEPS == STEPS - 1:
            total += gradient
            squares += gradient * gradient
            gradient = tl.zeros((BLOCK_O, BLOCK_C), tl.float32)
    unit = tl.load(x_unit_ptr) * tl.load(d_unit_ptr)
    place = (o[:, None] * channels + c[None, :]) * (KH * KW) + tap
    mask = (o < outputs)[:, None] & (c < channels)[None, :]
    tl.atomic_add(total_ptr + place, total * unit, mask=mask)
    tl.atomic_add(squares_ptr + place, squares * unit * unit * scale, mask=mask)


@triton.jit
def _few_moments(  # type: ignore[no-untyped-def]
    x_ptr, d_ptr, total_ptr, squares_ptr,
    positions, outputs, channels, height, width, out_width,
    x_b, x_h, x_w, d_b, d_t,
    stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, scale,
    KH: tl.constexpr, KW: tl.constexpr, STEPS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """One example's gradient for a block of outputs and of (tap, channel) columns; it and its square are added up."""
    b = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    o = tl.program_id(2) * BLOCK_O + tl.arange(0, BLOCK_O)
    tap, c = k // channels, k % channels
    down, right = tap // KW * dil_h - pad_h, tap % KW * dil_w - pad_w
    gradient = tl.zeros((BLOCK_O, BLOCK_K), tl.float32)
    for i in range(STEPS):
        at = i * BLOCK_T + tl.arange(0, BLOCK_T)
        real = at < positions
        d_place = (at * d_t)[:, None] + o[None, :]
        d = tl.load(d_ptr + b * d_b + d_place, mask=real[:, None] & (o < outputs)[None, :], other=0.0)
        row = (at // out_width * stride_h)[:, None] + down[None, :]
        col = (at % out_width * stride_w)[:, None] + right[None, :]
        inside = real[:, None] & (k < channels * KH * KW)[None, :]
        inside = inside & (row >= 0) & (row < height) & (col >= 0) & (col < width)
        u = tl.load(x_ptr + b * x_b + row * x_h + col * x_w + c[None, :], mask=inside, other=0.0)
        gradient = tl.dot(tl.trans(d), u, gradient, input_precision=PRECISION)
    place = (o[:, None] * channels + c[None, :]) * (KH * KW) + tap[None, :]
    mask = (o < outputs)[:, None] & (k < channels * KH * KW)[None, :]
    tl.atomic_add(total_ptr + place, gradient, mask=mask)
    tl.atomic_add(squares_ptr + place, gradient * gradient * scale, mask=mask)


def conv_moments(
    out: Tensor, windows: Windows, d: Tensor, x: Tensor, scale: float, programs: int, tiling: Tiling | None = None
) -> Tensor:
    """Add ``scale`` times the summed squares to ``out`` and return the weight gradient.

    Args:
        out: Where squares are added, float32, shaped like the weight and contiguous.
        windows: Of a convolution with one group.
        d: Gradient of the output.
        x: Input, of the same type as ``d``.
        scale: What the squares are multiplied by.
        programs: How many programs to aim for; the batch is shared out until there are as many.
        tiling: How the work is cut.
    """
    if len(windows.kernel) == 1:
        d, x = d.unsqueeze(2), x.unsqueeze(2)
    d, x = (t.contiguous(memory_format=torch.channels_last) for t in (d, x))
    total = torch.zeros_like(out)
    if x.shape[1] < FEW and tiling is None:
        _launch_few(total, out, windows, d, x, scale)
    else:
        _launch(total, out, windows, d, x, scale, programs, tiling or Tiling())
    return total


def _launch(
    total: Tensor, out: Tensor, windows: Windows, d: Tensor, x: Tensor, scale: float, programs: int, tiling: Tiling
) -> None:
    """Tap by tap, in float16 where TF32 is allowed."""
    (d, d_unit), (x, x_unit) = _ready(d), _ready(x)
    batch, outputs, channels, positions = len(x), len(out), x.shape[1], d.shape[2] * d.shape[3]
    kernel, stride, padding, dilation = _two_dimensional(windows)
    block_o, block_c = _side(outputs, tiling.outputs), _side(channels, tiling.channels)
    block_t = _side(positions, tiling.positions)
    tiles = triton.cdiv(outputs, block_o), triton.cdiv(channels, block_c) * kernel[0] * kernel[1]
    share = max(1, batch // triton.cdiv(programs, tiles[0] * tiles[1]))
    _moments[(*tiles, triton.cdiv(batch, share))](
        x, d, x_unit, d_unit, total, out,
        batch, share, positions, outputs, channels, x.shape[2], x.shape[3], d.shape[3],
        *_strides(x), *_strides(d)[::2],
        *stride, *padding, *dilation, scale,
        KH=kernel[0], KW=kernel[1], STEPS=triton.cdiv(positions, block_t),
        BLOCK_O=block_o, BLOCK_C=block_c, BLOCK_T=block_t,
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip


def _launch_few(total: Tensor, out: Tensor, windows: Windows, d: Tensor, x: Tensor, scale: float) -> None:
    """All taps at once, an example a program."""
    kernel, stride, padding, dilation = _two_dimensional(windows)
    outputs, channels, positions = len(out), x.shape[1], d.shape[2] * d.shape[3]
    columns = channels * kernel[0] * kernel[1]
    block_o, block_k, block_t = _side(outputs, 64), _side(columns, 128), _side(positions, 32)
    _few_moments[(len(x), triton.cdiv(columns, block_k), triton.cdiv(outputs, block_o))](
        x, d, total, out,
        positions, outputs, channels, x.shape[2], x.shape[3], d.shape[3],
        *_strides(x), *_strides(d)[::2],
        *stride, *padding, *dilation, scale,
        KH=kernel[0], KW=kernel[1], STEPS=triton.cdiv(positions, block_t),
        PRECISION="tf32" if torch.backends.cudnn.allow_tf32 else "ieee",
        BLOCK_O=block_o, BLOCK_K=block_k, BLOCK_T=block_t,
    )  # fmt: skip


def _ready(t: Tensor) -> tuple[Tensor, Tensor]:
    """A tensor as the kernel multiplies it, and what it was divided by."""
    unit = torch.ones((), device=t.device)
    if t.dtype != torch.float32 or not torch.backends.cudnn.allow_tf32:
        return t, unit
    out, block = torch.empty_like(t, dtype=torch.float16), 4096
    largest = torch.linalg.vector_norm(t, math.inf)
    _halve[(triton.cdiv(t.numel(), block),)](t, out, largest, unit, t.numel(), BLOCK=block)
    return out, unit


def _strides(t: Tensor) -> tuple[int, int, int]:
    """From an example, a row and a position to the next, channels last; torch's own are arbitrary where a size is 1."""
    _, channels, height, width = t.shape
    return height * width * channels, width * channels, channels


def _side(size: int, largest: int) -> int:
    """A tile's side: the largest, or less where there is less to cover."""
    return min(largest, max(16, triton.next_power_of_2(size)))


def _two_dimensional(windows: Windows) -> list[tuple[int, ...]]:
    """Kernel, stride, padding and dilation, with a height in front where there is only a width."""
    pairs = ((1, windows.kernel), (1, windows.stride), (0, windows.padding), (1, windows.dilation))
    return [(fill,) * (2 - len(pair)) + pair for fill, pair in pairs]
