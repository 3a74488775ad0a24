"""Conjugate linear regression, many times side by side: the known answer of every Gaussian method.

The rows of ``nn.Linear(D, R)`` are R independent restarts on the same data, so that averages over rows are averages
over restarts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Regression:
    inputs: Tensor
    targets: Tensor
    noise: float
    prior_precision: float

    @property
    def num_data(self) -> int:
        return len(self.inputs)

    def loss(self, outputs: Tensor) -> Tensor:
        """Mean over examples of -log p(y | f), each of the R columns a problem of its own."""
        return ((outputs - self.targets[:, None]) ** 2 / (2 * self.noise**2)).sum(1).mean()

    def precision(self, temperature: float = 1.0) -> Tensor:
        """Of the tempered posterior."""
        gram = self.inputs.T @ self.inputs / (self.noise**2 * temperature)
        return gram + self.prior_precision * torch.eye(self.inputs.shape[1], dtype=gram.dtype)

    def mean(self, temperature: float = 1.0) -> Tensor:
        """The ridge solution."""
        right = self.inputs.T @ self.targets / (self.noise**2 * temperature)
        return torch.linalg.solve(self.precision(temperature), right)


def regression(num_data: int = 40, features: int = 3, prior_precision: float = 5.0) -> Regression:
    g = torch.Generator().manual_seed(0)
    mix = torch.eye(features, dtype=torch.float64) + 0.4 * torch.randn(features, features, generator=g).double()
    inputs = torch.randn(num_data, features, generator=g).double() @ mix
    weights = torch.linspace(-1, 2, features, dtype=torch.float64)
    targets = inputs @ weights + 0.5 * torch.randn(num_data, generator=g).double()
    return Regression(inputs, targets, 0.5, prior_precision)


def rows(restarts: int, features: int = 3) -> nn.Linear:
    layer = nn.Linear(features, restarts, bias=False).double()
    nn.init.zeros_(layer.weight)
    return layer
