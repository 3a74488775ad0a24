"""Units: what may be removed from a network as a whole, and which tensors carry them.

A unit is a neuron, filter or channel. Every tensor the analysis can follow has one dimension of channels, and each
position along it belongs to a unit:

    linear, convolution      new units
    activation, BatchNorm    the units of the input
    flatten                  each unit repeated over the positions it had
    concatenation            the units of the one, then of the other
    a + b                    position j of a and of b become ONE unit: they can only go together
    depthwise                output j becomes one unit with its input

Beside its unit, each position knows whether it is *constant* over all inputs and all positions in space, and which
value it then has. That is all that is needed to remove a unit exactly: nobody reads it, or whoever reads it can add
the constant to a bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Channels", "Units"]


@dataclass(frozen=True)
class Channels:
    """The channel dimension of one tensor of a traced network.

    Attributes:
        dim: Which dimension it is (the batch is dimension 0).
        ids: [C] The unit of every position.
        value: [C] float64, the constant the position always holds; NaN where it varies.
    """

    dim: int
    ids: Tensor
    value: Tensor

    @property
    def constant(self) -> Tensor:
        """[C] Where the value is known."""
        return ~self.value.isnan()

    def with_value(self, value: Tensor) -> Channels:
        """The same units, after something was done to each."""
        return Channels(self.dim, self.ids, value)


class Units:
    """All units of a network: ties between them (union-find), and those that must stay."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._pinned: set[int] = set()

    def fresh(self, count: int) -> Tensor:
        """``count`` new units."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def varying(self, count: int, dim: int) -> Channels:
        """A tensor of ``count`` new units of which nothing is known."""
        return Channels(dim, self.fresh(count), torch.full((count,), torch.nan, dtype=torch.float64))

    def tie(self, a: Tensor, b: Tensor) -> None:
        """Make unit a[j] and unit b[j] one unit, for every j."""
        for left, right in zip(a.tolist(), b.tolist(), strict=True):
            self._parent[self._root(left)] = self._root(right)

    def pin(self, ids: Tensor) -> None:
        """These units stay, whatever they hold: somebody reads them whom the analysis does not understand."""
        self._pinned.update(ids.tolist())

    def _root(self, unit: int) -> int:
        while self._parent[unit] != unit:
            self._parent[unit] = self._parent[self._parent[unit]]  # halve the path, so that long chains stay cheap
            unit = self._parent[unit]
        return unit

    def resolved(self) -> Tensor:
        """[units] The one representative of every unit, once all ties are known."""
        return torch.tensor([self._root(unit) for unit in range(len(self._parent))], dtype=torch.long)

    def pinned(self) -> Tensor:
        """[units] True for the representatives that must stay."""
        stays = torch.zeros(len(self._parent), dtype=torch.bool)
        stays[[self._root(unit) for unit in self._pinned]] = True
        return stays
