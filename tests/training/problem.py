"""A small problem that fits are tried on: numbers and classes from three inputs."""

import torch
from torch import nn

G = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=G, dtype=torch.float64)
Y = X @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 0.5 * torch.randn(
    60, 1, generator=G, dtype=torch.float64
)
LABELS = (Y.squeeze(1) > 0).long()
QUIET = {"progress": False}


def linear(outputs=1):
    return nn.Linear(3, outputs, bias=False).double()


def mlp():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
