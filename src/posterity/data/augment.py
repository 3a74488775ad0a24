"""Random crops and flips of a whole batch at once, on the device where the batch is.

With a padding p every image is put at a uniformly drawn offset in {-p, …, p}² and, with probability ½, mirrored from
left to right. Images reach this standardised, so what comes in at the border (0) is the mean grey of the training set,
unless their outermost pixels are repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.types import PosterityError


@dataclass(frozen=True)
class CropFlip:
    """Shift by up to ``padding`` pixels each way, and flip: the usual augmentation of CIFAR-10.

    Attributes:
        padding: The largest shift in pixels.
        flip: Whether to mirror half of the images (not for digits and letters).
        repeat_edge: What comes in repeats the outermost pixels: for digits, whose background is not the mean grey.
    """

    padding: int = 4
    flip: bool = True
    repeat_edge: bool = False

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise PosterityError(f"padding must not be negative, got {self.padding}")

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A new batch [B, C, H, W]; the generator lives on the device of ``x``."""
        if x.dim() != 4:
            raise PosterityError(f"crops and flips need images [B, C, H, W], got {tuple(x.shape)}")
        batch, channels, height, width = x.shape
        down, right = torch.randint(2 * self.padding + 1, (2, batch, 1), generator=generator, device=x.device)
        rows, columns = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
        if self.flip:
            mirrored = torch.rand(batch, 1, generator=generator, device=x.device) < 0.5
            columns = torch.where(mirrored, width - 1 - columns, columns)
        # One gather over the pixels of the padded images does crop and flip for the whole batch.
        pixels = (down + rows)[:, :, None] * (width + 2 * self.padding) + (right + columns)[:, None, :]
        padded = F.pad(x, (self.padding,) * 4, mode="replicate" if self.repeat_edge else "constant").flatten(2)
        return padded.gather(2, pixels.view(batch, 1, -1).expand(-1, channels, -1)).view_as(x)
