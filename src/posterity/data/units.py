"""Original and standard units: z = (x - mean) / std, with the statistics of the training examples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.types import PosterityError


@dataclass(frozen=True, eq=False)
class Standardiser:
    """The affine map z = (x - mean) / std and its inverse, one mean and std for each column or image channel."""

    mean: Tensor
    std: Tensor

    @classmethod
    def fit(cls, x: Tensor) -> Standardiser:
        """Statistics of these examples: per channel for images [N, C, H, W], else per column; population std.

        A constant column keeps the std 1, so that it becomes zero instead of rounding noise.
        """
        dims = (0, 2, 3) if x.dim() == 4 else (0,)
        std, mean = torch.std_mean(x, dim=dims, correction=0, keepdim=True)
        if not std.isfinite().all():
            raise PosterityError(f"values up to {float(x.abs().max()):.3g} are too large to be standardised")
        rounding = 100 * torch.finfo(x.dtype).eps * mean.abs()  # relative: an EEG has microvolts
        return cls(mean[0], torch.where(std > rounding, std, torch.ones_like(std))[0])

    def apply(self, x: Tensor) -> Tensor:
        """From original to standard units, in the dtype and on the device of ``x``."""
        return (x - self.mean.to(x)).div_(self.std.to(x))

    def invert(self, z: Tensor) -> Tensor:
        """From standard back to original units."""
        return (z * self.std.to(z)).add_(self.mean.to(z))

    def then(self, other: Standardiser) -> Standardiser:
        """The one map that equals this one followed by ``other``."""
        return Standardiser(self.mean + self.std * other.mean.to(self.mean), self.std * other.std.to(self.std))
