"""A plane of inputs and what lies in it: shared by the pictures of two moons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from posterity.data import DataSet


@dataclass(frozen=True)
class Plane:
    """A square grid around the origin.

    Attributes:
        reach: Half the length of a side.
        side: Points of a side.
    """

    reach: float = 3.5
    side: int = 160

    @property
    def line(self) -> Tensor:
        """Where the points of a side lie."""
        return torch.linspace(-self.reach, self.reach, self.side)

    @property
    def inputs(self) -> Tensor:
        """All points, row by row, [side², 2]."""
        return torch.cartesian_prod(self.line, self.line).flip(1)

    def show(self, axis: plt.Axes, title: str, values: Tensor, **look: Any) -> plt.AxesImage:
        """One value a point as a colour."""
        axis.set(title=title, xticks=[], yticks=[])
        extent = (-self.reach, self.reach) * 2
        return axis.imshow(values.view(self.side, self.side), origin="lower", extent=extent, **look)

    def boundary(self, axis: plt.Axes, probs: Tensor, **look: Any) -> None:
        """Where the probability is one half."""
        axis.contour(self.line, self.line, probs.view(self.side, self.side), levels=[0.5], colors="black", **look)


def examples(axis: plt.Axes, data: DataSet, colours: Sequence[str], **look: Any) -> None:
    """The training examples, a colour a class."""
    inputs, labels = data.training()
    for label, colour in enumerate(colours):
        axis.scatter(*inputs[labels == label].T, c=colour, linewidths=0.3, **look)
