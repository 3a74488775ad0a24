"""Compressed networks on disk: only the weights that are left, and where they are.

A weight [rows, columns] (all but its first dimension in one) is first cut down to the block of rows and columns that
hold anything, one bit each to say which; its n entries, nnz of them not zero, then take the smallest of three forms:

    dense     all values                           n · size bytes
    bitmap    one bit an entry, then the values    n/8 + nnz · size
    gaps      the zeros before each value as bytes (255 = "255 zeros, no value yet"), then the values
                                                   nnz + skips + nnz · size

Values are exact, or quantised: symmetric and uniform, b bits a weight, one step Δ a tensor,

    w ≈ Δ · q,   q ∈ {−(2^{b−1}−1), …, 2^{b−1}−1},   Δ = max|w| / (2^{b−1}−1),   |error| ≤ Δ/2

A posterior says how many bits a weight is worth (Bayesian compression, https://arxiv.org/abs/1705.08665): rounding far
below the posterior's own spread stores noise, so a tensor gets the fewest bits with Δ ≤ its root mean variance.

The file holds the masked network under the user's own parameter names: loading it into the plain module is exact, and
compacting that again gives the same small network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor, nn

from posterity.calling import type_name
from posterity.files import read_state, write_state
from posterity.networks import duplicate
from posterity.types import PosterityError

__all__ = ["Bits", "bits_from_variance", "dense_bytes", "load", "pack", "quantise", "save", "unpack"]

Bits = int | Mapping[str, int] | None
"""Bits a weight: one number for all of them, one for each parameter, or None for exact values."""

_SKIP = 255
_MOST_BITS = 16


def save(module: nn.Module, path: str | Path, bits: Bits = None) -> int:
    """Write a network with its zeros left out.

    Returns:
        The size of the file in bytes.
    """
    write_state(path, pack(module, bits), "compressed network")
    return Path(path).stat().st_size


def load(path: str | Path, module: nn.Module) -> nn.Module:
    """A copy of ``module`` with the weights of the file, zeros included."""
    return unpack(read_state(path, "compressed network"), module)


def dense_bytes(module: nn.Module) -> int:
    """What the parameters and buffers take as plain 32-bit numbers."""
    return 4 * sum(value.numel() for value in module.state_dict().values())


def pack(module: nn.Module, bits: Bits = None) -> dict[str, Any]:
    """Every tensor of a network in its smallest form: one string of bytes, and an index into it.

    One string, because a header for each small tensor would outweigh what is left of it.
    """
    state = module.state_dict()
    wanted = _bits_by_name(state, bits)
    entries = {name: _pack_tensor(value.detach().cpu(), wanted.get(name)) for name, value in state.items()}
    content = [part for _, *parts in entries.values() for part in parts]
    return {
        "index": [[name, *facts] for name, (facts, *_) in entries.items()],
        "bytes": torch.cat(content) if content else torch.empty(0, dtype=torch.uint8),
    }


def unpack(packed: Mapping[str, Any], module: nn.Module) -> nn.Module:
    """A copy of ``module`` with the tensors of ``pack``."""
    own, cursor = module.state_dict(), _Cursor(packed["bytes"])
    state = {name: _unpack_tensor(cursor, *facts) for name, *facts in packed["index"]}
    if set(own) != set(state):
        odd = sorted(set(own) ^ set(state))[0]
        raise PosterityError(f"the file belongs to another network: {odd!r} is in one of them only")
    for name, value in state.items():
        if value.shape != own[name].shape:
            raise PosterityError(
                f"the file has {name!r} in shape {tuple(value.shape)}, expected the network's {tuple(own[name].shape)}"
            )
    loaded = duplicate(module)
    loaded.load_state_dict(state)
    return loaded


def quantise(weight: Tensor, bits: int) -> tuple[Tensor, float]:
    """Codes q (int64) and step Δ with weight ≈ Δ · q, off by at most Δ/2."""
    top = 2 ** (_checked(bits) - 1) - 1
    step = float(weight.abs().max()) / top if weight.numel() else 0.0
    codes = (weight.double() / step).round().long() if step > 0 else torch.zeros_like(weight, dtype=torch.long)
    return codes.clamp(-top, top), step


def bits_from_variance(mean: Mapping[str, Tensor], variance: Mapping[str, Tensor]) -> dict[str, int]:
    """The fewest bits whose step is no coarser than the posterior's spread, for every weight that has one.

    Weights that would need more than 16 bits are left out, and so stay exact.

    Args:
        mean: With zeros where weights were pruned; those do not count.
        variance: Of each weight.
    """
    chosen = {}
    for name, value in mean.items():
        left = value != 0
        if value.dim() < 2 or name not in variance or not bool(left.any()):
            continue
        spread = float(variance[name][left].mean().sqrt())
        if spread > 0:
            levels = float(value[left].abs().max()) / spread  # Δ ≤ spread  ⟺  2^{b−1} − 1 ≥ levels
            bits = max(2, 1 + math.ceil(math.log2(levels + 1)))
            if bits <= _MOST_BITS:
                chosen[name] = bits
    return chosen


def _bits_by_name(state: Mapping[str, Tensor], bits: Bits) -> dict[str, int]:
    """Only floating-point weights with two dimensions or more are quantised."""
    weights = [name for name, value in state.items() if value.is_floating_point() and value.dim() >= 2]
    if bits is None:
        return {}
    if not isinstance(bits, Mapping):
        return dict.fromkeys(weights, _checked(bits))
    unknown = set(bits) - set(weights)
    if unknown:
        raise PosterityError(f"bits are given for {unknown.pop()!r}, which is no weight of the network")
    return {name: _checked(number) for name, number in bits.items()}


def _checked(bits: Any) -> int:
    if not isinstance(bits, SupportsIndex) or not 2 <= int(bits) <= _MOST_BITS:
        raise PosterityError(f"bits must be a whole number from 2 to {_MOST_BITS}, got {bits!r}")
    return int(bits)


Facts = tuple[str, list[int], str, int, int, float]
"""Type, shape, form, bytes of the positions, bits a value (0 for exact ones), and their step Δ."""


def _pack_tensor(value: Tensor, bits: int | None) -> tuple[Facts, Tensor, Tensor, Tensor]:
    """What to know of a tensor, which rows and columns are alive, where its values belong there, and the values."""
    matrix = _as_matrix(value)
    rows, columns = (matrix != 0).any(1), (matrix != 0).any(0)
    block = matrix[rows][:, columns].reshape(-1)
    kept, size = block.nonzero().squeeze(1), bits / 8 if bits else value.element_size()
    positions = {
        "dense": torch.empty(0, dtype=torch.uint8),
        "bitmap": _pack_flags(block != 0),
        "gaps": _gaps(kept),
    }
    costs = {name: len(w) + (len(block) if name == "dense" else len(kept)) * size for name, w in positions.items()}
    form = min(costs, key=lambda name: costs[name])
    values, step = (block if form == "dense" else block[kept]), 0.0
    if bits is not None:
        codes, step = quantise(values, bits)
        values = _pack_bits(codes, bits)
    where = positions[form]
    facts = (type_name(value.dtype), list(value.shape), form, len(where), bits or 0, step)
    alive = torch.cat([_pack_flags(rows), _pack_flags(columns)])
    return facts, alive, where, values.contiguous().view(torch.uint8)


def _as_matrix(value: Tensor) -> Tensor:
    """[rows, columns]; a vector is one row."""
    return value.reshape(len(value), -1) if value.dim() > 1 and value.numel() else value.reshape(1, -1)


class _Cursor:
    """Reads a string of bytes from left to right."""

    def __init__(self, content: Tensor) -> None:
        self.content, self.at = content, 0

    def take(self, count: int) -> Tensor:
        self.at += count
        return self.content[self.at - count : self.at].clone()  # a clone is aligned for any type

    def flags(self, count: int) -> Tensor:
        return _unpack_flags(self.take(-(-count // 8)), count)


def _unpack_tensor(
    cursor: _Cursor, type_name: str, shape: list[int], form: str, where_bytes: int, bits: int, step: float
) -> Tensor:
    full = torch.zeros(shape, dtype=getattr(torch, type_name))
    matrix = _as_matrix(full)
    rows, columns = (cursor.flags(count).nonzero().squeeze(1) for count in matrix.shape)
    where = _positions(form, cursor.take(where_bytes), len(rows) * len(columns))
    if bits:
        values = _unpack_bits(cursor.take(-(-len(where) * bits // 8)), bits, len(where)).double() * step
    else:
        values = cursor.take(len(where) * full.element_size()).view(full.dtype)
    block = torch.zeros(len(rows) * len(columns), dtype=full.dtype)
    block[where] = values.to(full.dtype)
    matrix[rows[:, None], columns] = block.view(len(rows), len(columns))  # a view of ``full``
    return full


def _positions(form: str, where: Tensor, count: int) -> Tensor:
    """Where the stored values belong."""
    if form == "dense":
        return torch.arange(count)
    if form == "bitmap":
        return _unpack_flags(where, count).nonzero().squeeze(1)
    gaps = where.long()
    ends = torch.where(gaps == _SKIP, _SKIP, gaps + 1).cumsum(0) - 1
    return ends[gaps != _SKIP]


def _gaps(where: Tensor) -> Tensor:
    """[values + skips] uint8: how many zeros lie before each value."""
    zeros = torch.diff(where, prepend=torch.tensor([-1])) - 1
    skips = zeros // _SKIP
    gaps = torch.full((int(skips.sum()) + len(where),), _SKIP, dtype=torch.uint8)
    gaps[(skips + 1).cumsum(0) - 1] = (zeros % _SKIP).to(torch.uint8)
    return gaps


def _pack_flags(flags: Tensor) -> Tensor:
    return torch.from_numpy(np.packbits(flags.numpy()))


def _unpack_flags(packed: Tensor, count: int) -> Tensor:
    return torch.from_numpy(np.unpackbits(packed.numpy(), count=count))


def _pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Two's complement codes of ``bits`` bits, one after the other."""
    each = (codes.numpy()[:, None] >> np.arange(bits)) & 1
    return torch.from_numpy(np.packbits(each.astype(np.uint8).reshape(-1)))


def _unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    each = np.unpackbits(packed.numpy(), count=count * bits).reshape(count, bits).astype(np.int64)
    codes = (each << np.arange(bits)).sum(1)
    return torch.from_numpy(np.where(each[:, -1] == 1, codes - (1 << bits), codes))
