"""Two small tasks, with a head each or one for both, and a network for them."""

from __future__ import annotations

import math

import torch
from torch import nn

import posterity as pst
from posterity.continual import Task

FAST = pst.Training(batch_size=32, progress=False)


def blobs(classes: tuple[int, ...], seed: int = 0, n: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    """Points about the corners of a square, one corner a class."""
    g = torch.Generator().manual_seed(seed)
    y = torch.tensor(classes)[torch.randint(len(classes), (n,), generator=g)]
    angle = math.pi / 2 * y
    centre = torch.stack([angle.cos(), angle.sin(), y.double(), torch.ones(n)], 1)
    return centre + 0.3 * torch.randn(n, 4, generator=g).double(), y


def tasks(heads: bool = True) -> list[Task]:
    groups = ((0, 1), (2, 3))
    return [Task(str(g), blobs(g), blobs(g, 1), g if heads else None) for g in groups]


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4)).double()
