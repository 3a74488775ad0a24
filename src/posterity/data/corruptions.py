"""Corruptions of inputs in five severities: what does a network do when the world moves away from its training data?

Image corruptions are pure functions of images x in [0, 1], so they come BEFORE standardisation; `corrupt` takes
standardised inputs with their standardiser, undoes it, corrupts, and redoes it:

    noise       clip(x + std·ε), ε ~ N(0, I)
    blur        convolution with a Gaussian of std (in pixels of an image with side 32), edges repeated
    contrast    m + factor·(x - m), with m the mean of the image
    brightness  clip(x + shift)
    rotation    about the centre, bilinear, black outside
    pixelate    each block of pixels becomes its mean

Severity 0 is the identity. For a table only noise makes sense, in units of each column's std and without clipping;
for text none of these does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.data.dataset import Kind
from posterity.data.units import Standardiser
from posterity.types import PosterityError

SEVERITIES = (1, 2, 3, 4, 5)


def noise(x: Tensor, std: float, generator: torch.Generator | None = None) -> Tensor:
    """Add Gaussian noise and clip to [0, 1]."""
    return table_noise(x, std, generator).clamp(0, 1)


def table_noise(x: Tensor, std: float, generator: torch.Generator | None = None) -> Tensor:
    """Add Gaussian noise; nothing bounds a standardised column."""
    return x + std * torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)


def blur(x: Tensor, std: float, generator: torch.Generator | None = None) -> Tensor:
    """Smooth with a Gaussian whose std is given in pixels of a 32-pixel image and scales with the side."""
    pixels = std * min(x.shape[-2:]) / 32
    radius = max(1, math.ceil(3 * pixels))
    steps = torch.arange(-radius, radius + 1, device=x.device, dtype=x.dtype)
    kernel = torch.softmax(-0.5 * (steps / pixels) ** 2, 0)
    planes = x.flatten(0, 1).unsqueeze(1)  # every channel by itself
    planes = F.conv2d(F.pad(planes, (radius, radius, 0, 0), mode="replicate"), kernel.view(1, 1, 1, -1))
    planes = F.conv2d(F.pad(planes, (0, 0, radius, radius), mode="replicate"), kernel.view(1, 1, -1, 1))
    return planes.view_as(x)


def contrast(x: Tensor, factor: float, generator: torch.Generator | None = None) -> Tensor:
    """Pull every pixel towards the mean of its image."""
    mean = x.mean((1, 2, 3), keepdim=True)
    return mean + factor * (x - mean)


def brightness(x: Tensor, shift: float, generator: torch.Generator | None = None) -> Tensor:
    """Add a constant and clip to [0, 1]."""
    return (x + shift).clamp(0, 1)


def rotation(x: Tensor, degrees: float, generator: torch.Generator | None = None) -> Tensor:
    """Turn counter-clockwise about the centre; what comes in from outside is black."""
    angle = math.radians(degrees)
    height, width = x.shape[-2:]
    cos, sin = math.cos(angle), math.sin(angle)
    # Coordinates run from -1 to 1 on both axes, so a turn must be corrected by the ratio of the sides.
    turn = x.new_tensor([[cos, -sin * height / width, 0], [sin * width / height, cos, 0]])
    grid = F.affine_grid(turn.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def pixelate(x: Tensor, scale: float, generator: torch.Generator | None = None) -> Tensor:
    """Show the image on a grid of ``scale`` times its sides, every pixel as the mean of its block."""
    height, width = x.shape[-2:]
    return _block_means(height, scale).to(x) @ x @ _block_means(width, scale).to(x).T


def _block_means(side: int, scale: float) -> Tensor:
    """The projection [side, side] that replaces each pixel of a line by the mean of its block."""
    block = torch.arange(side) * max(1, round(scale * side)) // side
    same = (block[:, None] == block[None, :]).double()
    return same / same.sum(1, keepdim=True)


@dataclass(frozen=True)
class Corruption:
    """A corruption with its strength at each severity.

    Attributes:
        apply: The pure function (x, strength, generator); only noise draws from the generator.
        strengths: Its strength at the severities 1 to 5.
    """

    apply: Callable[[Tensor, float, torch.Generator | None], Tensor]
    strengths: tuple[float, float, float, float, float]

    def __call__(self, x: Tensor, severity: int, generator: torch.Generator | None = None) -> Tensor:
        """The corrupted inputs; severity 0 gives the inputs themselves."""
        if severity == 0:
            return x
        if severity not in SEVERITIES:
            raise PosterityError(f"severity must be a whole number from 0 to 5, got {severity!r}")
        return self.apply(x, self.strengths[severity - 1], generator)


CORRUPTIONS: Mapping[str, Corruption] = {
    "noise": Corruption(noise, (0.04, 0.08, 0.12, 0.2, 0.3)),
    "blur": Corruption(blur, (0.5, 0.8, 1.2, 1.8, 2.6)),
    "contrast": Corruption(contrast, (0.75, 0.55, 0.4, 0.25, 0.12)),
    "brightness": Corruption(brightness, (0.05, 0.1, 0.2, 0.3, 0.4)),
    "rotation": Corruption(rotation, (10.0, 20.0, 30.0, 45.0, 60.0)),
    "pixelate": Corruption(pixelate, (0.75, 0.6, 0.5, 0.375, 0.25)),
}
TABLE_CORRUPTIONS: Mapping[str, Corruption] = {"noise": Corruption(table_noise, (0.1, 0.2, 0.4, 0.7, 1.0))}


def corruptions_for(kind: Kind) -> Mapping[str, Corruption]:
    """The corruptions that make sense for such inputs, by name."""
    return {Kind.IMAGE: CORRUPTIONS, Kind.TEXT: {}}.get(kind, TABLE_CORRUPTIONS)


def corrupt(
    x: Tensor,
    name: str,
    severity: int,
    *,
    kind: Kind,
    standardiser: Standardiser | None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Corrupt inputs as a network gets them.

    Args:
        x: Inputs as in a `DataSet`.
        name: Which corruption.
        severity: 0 (none) to 5.
        kind: What the inputs are.
        standardiser: How the inputs were standardised; None for images in [0, 1].
        generator: Draws the noise, on the device of ``x``.
    """
    known = corruptions_for(kind)
    if name not in known:
        raise PosterityError(f"{name!r} is no corruption of {kind} inputs: there are {', '.join(known) or 'none'}")
    if severity == 0 or standardiser is None or kind != Kind.IMAGE:
        return known[name](x, severity, generator)
    return standardiser.apply(known[name](standardiser.invert(x), severity, generator))
