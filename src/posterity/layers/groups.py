"""One number for a whole unit of weights: each input of a linear layer, each filter of a convolution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posterity.layers.slots import Slots

__all__ = ["Groups"]


@dataclass(frozen=True)
class Groups:
    """The units of some parameters.

    Attributes:
        shapes: For each parameter the shape of its units' numbers, which broadcasts against its own.
        whole: The shapes of the parameters.
    """

    shapes: tuple[tuple[int, ...], ...]
    whole: tuple[torch.Size, ...]

    @classmethod
    def of(cls, slots: Slots) -> Groups:
        """The units of these parameters."""
        places = zip(slots.layout.shapes, slots.places, strict=True)
        return cls(tuple(_shape(shape, place[0][0]) for shape, place in places), slots.layout.shapes)

    @property
    def sizes(self) -> list[int]:
        """How many units each parameter has."""
        return [max(shape) for shape in self.shapes]

    def expand(self, numbers: Tensor) -> Tensor:
        """A flat vector with a unit's number in the place of each of its weights."""
        parts = zip(numbers.split(self.sizes), self.shapes, self.whole, strict=True)
        return torch.cat([part.view(shape).expand(whole).reshape(-1) for part, shape, whole in parts])


def _shape(shape: torch.Size, module: nn.Module) -> tuple[int, ...]:
    """Filters are the first axis of a convolution (the second of a transposed one), inputs the last of a linear map."""
    axis = len(shape) - 1
    if isinstance(module, nn.modules.conv._ConvNd):
        axis = 1 if module.transposed and len(shape) > 1 else 0
    return tuple(size if i == axis else 1 for i, size in enumerate(shape))
