"""A convolution's weight gradient and the sum of its per-example squares, in one Triton kernel.

A program owns a tile of the weight, [BLOCK_O, BLOCK_K], and a share of the batch. For each of its examples it forms the
example's tile of the gradient, Σ_t d_t u_tᵀ, in registers, with the addresses of the patches u computed on the way
(no im2col in memory), and adds it and its square to two accumulators. No per-example gradient reaches memory. Tiles are
loaded along whatever is contiguous in memory: positions, or channels where they come last.

Import this only where Triton is installed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from posterity.curvature.patches import Windows


@dataclass(frozen=True)
class Tiling:
    """How the work is cut: sides of a tile of the weight, positions taken at a time, and what the compiler is told."""

    side: int = 64
    positions: int = 32
    warps: int = 4
    stages: int = 3


@triton.jit
def _moments(  # type: ignore[no-untyped-def]
    x_ptr, d_ptr, total_ptr, squares_ptr,
    batch, positions, outputs, patch, channels, height, width, out_width,
    x_b, x_c, x_h, x_w, d_b, d_o, d_t,
    stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, scale,
    KH: tl.constexpr, KW: tl.constexpr, X_CHANNELS_LAST: tl.constexpr, D_CHANNELS_LAST: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr,
    SHARE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    first = tl.program_id(2) * SHARE
    t = tl.arange(0, BLOCK_T)
    if X_CHANNELS_LAST:  # neighbouring k are neighbouring channels
        c, kh, kw = k % channels, k // channels // KW, k // channels % KW
    else:
        c, kh, kw = k // (KH * KW), k // KW % KH, k % KW
    down, right = kh * dil_h, kw * dil_w
    column = c * x_c + down * x_h + right * x_w
    total = tl.zeros((BLOCK_O, BLOCK_K), tl.float32)
    squares = tl.zeros((BLOCK_O, BLOCK_K), tl.float32)
    for b in range(first, min(first + SHARE, batch)):
        gradient = tl.zeros((BLOCK_O, BLOCK_K), tl.float32)
        for start in range(0, positions, BLOCK_T):
            at = start + t
            top, left = at // out_width * stride_h - pad_h, at % out_width * stride_w - pad_w
            corner = top * x_h + left * x_w
            if D_CHANNELS_LAST:
                mask = (at[:, None] < positions) & (o[None, :] < outputs)
                place = at[:, None] * d_t + o[None, :] * d_o
                d = tl.trans(tl.load(d_ptr + b * d_b + place, mask=mask, other=0.0))
            else:
                mask = (o[:, None] < outputs) & (at[None, :] < positions)
                place = o[:, None] * d_o + at[None, :] * d_t
                d = tl.load(d_ptr + b * d_b + place, mask=mask, other=0.0)
            if X_CHANNELS_LAST:
                row, col = top[:, None] + down[None, :], left[:, None] + right[None, :]
                mask = (row >= 0) & (row < height) & (col >= 0) & (col < width)
                mask = mask & (at[:, None] < positions) & (k[None, :] < patch)
                u = tl.load(x_ptr + b * x_b + corner[:, None] + column[None, :], mask=mask, other=0.0)
            else:
                row, col = down[:, None] + top[None, :], right[:, None] + left[None, :]
                mask = (row >= 0) & (row < height) & (col >= 0) & (col < width)
                mask = mask & (k[:, None] < patch) & (at[None, :] < positions)
                u = tl.trans(tl.load(x_ptr + b * x_b + column[:, None] + corner[None, :], mask=mask, other=0.0))
            gradient = tl.dot(d, u, gradient, input_precision=PRECISION)
        total += gradient
        squares += gradient * gradient
    place = o[:, None] * patch + ((c * KH + kh) * KW + kw)[None, :]
    mask = (o[:, None] < outputs) & (k[None, :] < patch)
    tl.atomic_add(total_ptr + place, total, mask=mask)
    tl.atomic_add(squares_ptr + place, squares * scale, mask=mask)


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
    tiling = tiling or Tiling()
    if len(windows.kernel) == 1:
        d, x = d.unsqueeze(2), x.unsqueeze(2)
    if d.stride(2) != d.shape[3] * d.stride(3):  # positions must be one step apart throughout
        d = d.contiguous()
    total = torch.zeros_like(out)
    batch, outputs, patch, positions = len(x), len(out), out[0].numel(), d.shape[2] * d.shape[3]
    block_o, block_k = _side(outputs, tiling.side), _side(patch, tiling.side)
    tiles = triton.cdiv(outputs, block_o) * triton.cdiv(patch, block_k)
    share = max(1, batch // triton.cdiv(programs, tiles))
    grid = (triton.cdiv(outputs, block_o), triton.cdiv(patch, block_k), triton.cdiv(batch, share))
    kernel, stride, padding, dilation = _two_dimensional(windows)
    _moments[grid](
        x, d, total, out,
        batch, positions, outputs, patch, x.shape[1], x.shape[2], x.shape[3], d.shape[3],
        *x.stride(), d.stride(0), d.stride(1), d.stride(3), *stride, *padding, *dilation, scale,
        KH=kernel[0], KW=kernel[1], X_CHANNELS_LAST=x.stride(1) == 1, D_CHANNELS_LAST=d.stride(1) == 1,
        BLOCK_O=block_o, BLOCK_K=block_k, BLOCK_T=tiling.positions if positions > 16 else 16,
        SHARE=share, PRECISION="tf32" if torch.backends.cudnn.allow_tf32 else "ieee",
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return total


def _side(size: int, largest: int) -> int:
    """A tile's side: the largest, or less where the weight is smaller."""
    return min(largest, max(16, triton.next_power_of_2(size)))


def _two_dimensional(windows: Windows) -> list[tuple[int, ...]]:
    """Kernel, stride, padding and dilation, with a height in front where there is only a width."""
    pairs = ((1, windows.kernel), (1, windows.stride), (0, windows.padding), (1, windows.dilation))
    return [(fill,) * (2 - len(pair)) + pair for fill, pair in pairs]
