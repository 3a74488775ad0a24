"""What networks return, side by side: one tensor, or several in a tuple or a dictionary."""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.calling import nested_tensors

__all__ = ["pairs"]


def pairs(got: object, expected: object) -> list[tuple[Tensor, Tensor]]:
    """For every tensor of two outputs the distances of its entries, and the sizes that were expected.

    Both are float64, of bools and integers too. Entries that agree are at distance zero, infinite ones among them.
    """
    both = zip(nested_tensors(got), nested_tensors(expected), strict=True)
    return [(_distances(a.double(), b.double()), b.double().abs().nan_to_num(posinf=0.0)) for a, b in both]


def _distances(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(a == b, 0.0, (a - b).abs())
