"""A convolution's weight gradient and the sum of its per-example squares, in one Triton kernel.

A program owns a tile of the weight, [BLOCK_O, BLOCK_K], and a share of the batch. For each of its examples it forms the
example's tile of the gradient, Σ_t d_t u_tᵀ, in registers, with the addresses of the patches u computed on the way
(no im2col in memory), and adds it and its square to two accumulators. No per-example gradient reaches memory.

Import this only where Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from posterity.curvature.patches import Windows


@triton.jit
def _moments(  # type: ignore[no-untyped-def]
    x_ptr, d_ptr, total_ptr, squares_ptr,
    batch, positions, outputs, patch, channels, height, width, out_width,
    x_b, x_c, x_h, x_w, d_b, d_o, d_h, d_w,
    stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, scale,
    KH: tl.constexpr, KW: tl.constexpr, CHANNELS_LAST: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr,
    SHARE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    first = tl.program_id(2) * SHARE
    t = tl.arange(0, BLOCK_T)
    if CHANNELS_LAST:  # neighbouring k are neighbouring channels
        c, kh, kw = k % channels, k // channels // KW, k // channels % KW
    else:
        c, kh, kw = k // (KH * KW), k // KW % KH, k % KW
    column = c * x_c + kh * dil_h * x_h + kw * dil_w * x_w
    total = tl.zeros((BLOCK_O, BLOCK_K), tl.float32)
    squares = tl.zeros((BLOCK_O, BLOCK_K), tl.float32)
    for b in range(first, min(first + SHARE, batch)):
        gradient = tl.zeros((BLOCK_O, BLOCK_K), tl.float32)
        for start in range(0, positions, BLOCK_T):
            at = start + t
            h, w = at // out_width, at % out_width
            d_at = h * d_h + w * d_w
            d_mask = (o[:, None] < outputs) & (at[None, :] < positions)
            d = tl.load(d_ptr + b * d_b + o[:, None] * d_o + d_at[None, :], mask=d_mask, other=0.0)
            top, left = h * stride_h - pad_h, w * stride_w - pad_w
            row, col = top[:, None] + (kh * dil_h)[None, :], left[:, None] + (kw * dil_w)[None, :]
            inside = (row >= 0) & (row < height) & (col >= 0) & (col < width)
            u_mask = inside & (at[:, None] < positions) & (k[None, :] < patch)
            u_at = (top * x_h + left * x_w)[:, None] + column[None, :]
            u = tl.load(x_ptr + b * x_b + u_at, mask=u_mask, other=0.0)
            gradient = tl.dot(d, u, gradient, input_precision=PRECISION)
        total += gradient
        squares += gradient * gradient
    place = o[:, None] * patch + ((c * KH + kh) * KW + kw)[None, :]
    mask = (o[:, None] < outputs) & (k[None, :] < patch)
    tl.atomic_add(total_ptr + place, total, mask=mask)
    tl.atomic_add(squares_ptr + place, squares * scale, mask=mask)


def conv_moments(out: Tensor, windows: Windows, d: Tensor, x: Tensor, scale: float, programs: int) -> Tensor:
    """Add ``scale`` times the summed squares to ``out`` and return the weight gradient.

    Args:
        out: Where squares are added, float32, shaped like the weight and contiguous.
        windows: Of a convolution with one group.
        d: Gradient of the output.
        x: Input, of the same type as ``d``.
        scale: What the squares are multiplied by.
        programs: How many programs to aim for; the batch is shared out until there are as many.
    """
    if len(windows.kernel) == 1:
        d, x = d.unsqueeze(2), x.unsqueeze(2)
    kernel, stride, padding, dilation = (
        (fill,) * (2 - len(pair)) + pair
        for fill, pair in ((1, windows.kernel), (1, windows.stride), (0, windows.padding), (1, windows.dilation))
    )
    total = torch.zeros_like(out, memory_format=torch.contiguous_format)
    batch, outputs, patch = len(x), len(out), out[0].numel()
    positions = d.shape[2] * d.shape[3]
    block_o, block_k = _block(outputs), _block(patch)
    tiles = triton.cdiv(outputs, block_o) * triton.cdiv(patch, block_k)
    share = max(1, batch // triton.cdiv(programs, tiles))
    grid = (triton.cdiv(outputs, block_o), triton.cdiv(patch, block_k), triton.cdiv(batch, share))
    _moments[grid](
        x, d, total, out,
        batch, positions, outputs, patch, x.shape[1], x.shape[2], x.shape[3], d.shape[3],
        *x.stride(), *d.stride(), *stride, *padding, *dilation, scale,
        KH=kernel[0], KW=kernel[1], CHANNELS_LAST=x.stride(1) == 1,
        BLOCK_O=block_o, BLOCK_K=block_k, BLOCK_T=32 if positions > 16 else 16,
        SHARE=share, PRECISION="tf32" if torch.backends.cudnn.allow_tf32 else "ieee",
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return total


def _block(size: int) -> int:
    """A tile's side: 64, or less where the weight is smaller."""
    return min(64, max(16, triton.next_power_of_2(size)))
