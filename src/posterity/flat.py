"""Named tensors as one flat vector and back, without copying on the way back.

Moments, noise and draws of a whole network are one vector each: one random call, one fused update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.types import Params, PosterityError


@dataclass(frozen=True)
class Layout:
    """Names and shapes in the order in which they lie in the vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, params: Mapping[str, Tensor]) -> Layout:
        """The layout of these tensors, in their own order."""
        return cls(tuple(params), tuple(p.shape for p in params.values()))

    @property
    def sizes(self) -> list[int]:
        """How many numbers each tensor holds."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def total(self) -> int:
        """How many numbers there are in all."""
        return sum(self.sizes)

    def flatten(self, params: Mapping[str, Tensor]) -> Tensor:
        """One new vector with a copy of every tensor."""
        missing = [name for name in self.names if name not in params]
        if missing:
            raise PosterityError(f"parameter {missing[0]!r} is missing")
        return torch.cat([params[name].detach().reshape(-1) for name in self.names])

    def unflatten(self, vector: Tensor) -> Params:
        """Views of ``vector`` (or of a stack of vectors, batch dimensions in front) by name."""
        lead = vector.shape[:-1]
        parts = vector.split(self.sizes, dim=-1)
        return {
            name: part.reshape(lead + shape) for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }
