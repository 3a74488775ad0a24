"""Sums over examples of squared matrix gradients, without keeping any example's gradient.

A layer that uses its weight at T positions (the pixels of a convolution, the tokens of a sentence) has the gradient
Gᵢᵀ Uᵢ = Σ_t g_t u_tᵀ for example i, where G are output gradients [T, O] and U inputs [T, K]. Wanted is Σᵢ (Gᵢᵀ Uᵢ)²,
element by element. Three ways, by T and the size of the weight:

- T = 1: (g u)² = g² u², so one product of squares, (G²)ᵀ U².
- few positions: (Σ_t g_t u_t)² = Σ_{s≤t} c_st (g_s g_t)(u_s u_t) with c = 1 on the diagonal and 2 off it: one product
  over the T (T + 1) / 2 pairs, and no example's gradient is ever formed.
- many positions: each example's gradient, a tile at a time, in a workspace that stays in the cache; the same product
  then gives the ordinary gradient too.

All tensors are [groups, examples, T, ·]; sums are [groups, O, K].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

PAIR_POSITIONS = 6  # beyond this the pairs cost more than the examples' own gradients; at most GEMM_POSITIONS
GEMM_POSITIONS = 16  # up to here a second product is cheaper than adding up the examples' gradients
CACHE_FLOATS = 2**18  # of the workspaces: a megabyte, half of a present-day core's own cache
DEVICE_FLOATS = 2**26  # of the workspaces on an accelerator, which wants few large kernels


class Workspace:
    """Buffers that are allocated once and used again: fresh large allocations cost more than the arithmetic."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, slot: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor of this shape, valid until the slot is taken again."""
        numel = math.prod(shape)
        buffer = self._buffers.get(slot)
        if buffer is None or buffer.numel() < numel or buffer.dtype != like.dtype or buffer.device != like.device:
            buffer = self._buffers[slot] = torch.empty(numel, dtype=like.dtype, device=like.device)
        return buffer[:numel].view(shape)


def workspace_floats(device: torch.device) -> int:
    """How large a workspace should be where the tensors live."""
    return CACHE_FLOATS if device.type == "cpu" else DEVICE_FLOATS


def examples_at_once(per_example: int, device: torch.device) -> int:
    """How many examples with so many numbers each fit a workspace; at least one."""
    return max(1, workspace_floats(device) // max(1, per_example))


def add_moments(total: Tensor, squares: Tensor, G: Tensor, U: Tensor, workspace: Workspace) -> None:
    """Add Σᵢ GᵢᵀUᵢ to ``total`` and Σᵢ (GᵢᵀUᵢ)² to ``squares``, both [groups, O, K]."""
    positions, (rows, columns) = G.shape[2], squares.shape[1:]
    if positions <= GEMM_POSITIONS:
        total.baddbmm_(G.flatten(1, 2).transpose(1, 2), U.flatten(1, 2))
    if positions <= PAIR_POSITIONS:
        return _add_by_pairs(squares, G, U, workspace)
    if workspace_floats(U.device) >= 8 * rows * columns:
        return _add_by_chunks(total, squares, G, U, workspace)
    return _add_one_by_one(total, squares, G, U, workspace)


def _add_by_pairs(squares: Tensor, G: Tensor, U: Tensor, workspace: Workspace) -> None:
    groups, n, positions = G.shape[:3]
    pairs = positions * (positions + 1) // 2
    gg = workspace.take("pairs of gradients", (groups, n, pairs, G.shape[3]), G)
    uu = workspace.take("pairs of inputs", (groups, n, pairs, U.shape[3]), U)
    start = 0
    for apart in range(positions):
        count = positions - apart
        pair = slice(start, start + count)
        torch.mul(G[:, :, :count], G[:, :, apart:], out=gg[:, :, pair])
        torch.mul(U[:, :, :count], U[:, :, apart:], out=uu[:, :, pair])
        start += count
    gg[:, :, positions:].mul_(2)  # every pair of different positions stands for two terms
    squares.baddbmm_(gg.flatten(1, 2).transpose(1, 2), uu.flatten(1, 2))


def _add_by_chunks(total: Tensor, squares: Tensor, G: Tensor, U: Tensor, workspace: Workspace) -> None:
    (groups, n, positions), (rows, columns) = G.shape[:3], squares.shape[1:]
    size = examples_at_once(groups * rows * columns, U.device)
    for start in range(0, n, size):
        g, u = G[:, start : start + size].flatten(0, 1), U[:, start : start + size].flatten(0, 1)
        product = torch.bmm(g.transpose(1, 2), u, out=workspace.take("product", (len(g), rows, columns), U))
        by_group = product.view(groups, -1, rows, columns)
        if positions > GEMM_POSITIONS:
            total.add_(by_group.sum(1))
        squares.add_(by_group.square_().sum(1))


def _add_one_by_one(total: Tensor, squares: Tensor, G: Tensor, U: Tensor, workspace: Workspace) -> None:
    (groups, n), (rows, columns) = G.shape[:2], squares.shape[1:]
    height = max(1, min(rows, workspace_floats(U.device) // (2 * columns)))
    for group in range(groups):
        for start in range(0, rows, height):
            row = slice(start, min(start + height, rows))
            some, some_squares = total[group, row], squares[group, row]
            product = workspace.take("product", tuple(some.shape), U)
            for i in range(n):
                torch.mm(G[group, i, :, row].t(), U[group, i], out=product)
                if G.shape[2] > GEMM_POSITIONS:
                    some.add_(product)
                some_squares.addcmul_(product, product)
