"""Inputs of another kind than a data set's own, made on the spot: what a network should not be sure about.

    photos     patches of scikit-learn's two sample photographs, in the size and channels of the images
    shuffled   the test images with their pixels moved, the same way in all: same histogram, no shapes
    far        tables: points in random directions, four times as far out as a standardised column reaches on average
    salad      texts: the words of the test texts dealt out anew

They stand in where no other real set of the same shape is at hand; inputs are standardised as the data set's are.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.data.dataset import DataSet, Kind
from posterity.data.formats import scikit_learn_file
from posterity.data.text import PADDING

__all__ = ["foreign"]

_COUNT = 1000
_FAR = 4.0


def foreign(dataset: DataSet, generator: torch.Generator) -> dict[str, Tensor]:
    """Foreign inputs by name, as many as there are test examples (at most 1,000)."""
    inputs = dataset.test[0][:_COUNT]
    if dataset.kind == Kind.IMAGE:
        return {"photos": photos(dataset, len(inputs), generator), "shuffled": shuffled(inputs, generator)}
    if dataset.kind == Kind.TEXT:
        return {"salad": salad(inputs, generator)}
    return {"far": far(inputs, generator)}


def photos(dataset: DataSet, count: int, generator: torch.Generator) -> Tensor:
    """Random patches of photographs, a quarter of the size they are cut from, or what the photographs allow."""
    from PIL import Image  # here, because other kinds of data do without it

    channels, height, width = dataset.shape
    images = [np.array(Image.open(scikit_learn_file("images", f"{name}.jpg"))) for name in ("china", "flower")]
    pictures = [torch.tensor(image, dtype=torch.float32).permute(2, 0, 1) / 255 for image in images]
    sides = [max(whole, part) for whole, part in zip(pictures[0].shape[1:], (height, width), strict=True)]
    pictures = [F.interpolate(picture[None], sides, mode="bilinear")[0] for picture in pictures]
    smaller = min(4, sides[0] // height, sides[1] // width)
    patches = []
    for i in range(count):
        top, left = (
            int(torch.randint(max(1, whole - smaller * part), (), generator=generator))
            for whole, part in zip(sides, (height, width), strict=True)
        )
        patch = pictures[i % len(pictures)][:, top : top + smaller * height, left : left + smaller * width]
        patches.append(F.avg_pool2d(patch, smaller))
    small = torch.stack(patches)
    small = small if channels == 3 else small.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    return dataset.pixels.apply(small)


def shuffled(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Images with their pixels in another order."""
    pixels = inputs.flatten(2)
    return pixels[:, :, torch.randperm(pixels.shape[2], generator=generator)].view_as(inputs)


def far(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Points on a sphere of radius 4·√columns."""
    directions = torch.randn(inputs.shape, generator=generator)
    radius = _FAR * inputs[0].numel() ** 0.5
    return radius * F.normalize(directions.flatten(1), dim=1).view_as(inputs)


def salad(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Texts of the same lengths whose words were dealt out at random."""
    words = inputs != PADDING
    mixed = inputs.clone()
    pool = inputs[words]
    mixed[words] = pool[torch.randperm(len(pool), generator=generator)]
    return mixed
