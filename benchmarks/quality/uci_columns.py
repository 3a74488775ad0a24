"""Many small networks trained at once, as the columns of one: for ``uci.py``.

The columns share nothing, so that the losses add up, and a method that treats each weight by itself trains a column as
it would be trained alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posterity import data

HIDDEN = 50


class Columns(nn.Module):
    """Networks that share nothing, one for each split and noise: [batch, splits, inputs] → [batch, outputs · columns].

    Means leave it in units of each column's noise, so that one likelihood serves them all; a second output, the raw std
    of a noise that depends on the input, is in those units by itself.

    Args:
        inputs: Features of an example.
        noise: The unit of each column, [splits, noises].
        outputs: 1 for means, 2 for means and raw stds.
    """

    noise: Tensor

    def __init__(self, inputs: int, noise: Tensor, outputs: int = 1) -> None:
        super().__init__()
        self.register_buffer("noise", noise)
        own = [list(perceptron(inputs, outputs).parameters()) for _ in noise.flatten()]
        stacked = [nn.Parameter(torch.stack([p.detach() for p in same])) for same in zip(*own, strict=True)]
        self.inner, self.inner_bias, self.outer, self.outer_bias = stacked

    def forward(self, x: Tensor) -> Tensor:
        own = x.transpose(0, 1).repeat_interleave(self.noise.shape[1], 0)  # [columns, batch, inputs]
        hidden = torch.baddbmm(self.inner_bias.unsqueeze(1), own, self.inner.mT).relu()
        means, *raw = torch.baddbmm(self.outer_bias.unsqueeze(1), hidden, self.outer.mT).unbind(-1)
        return torch.cat([means / self.noise.reshape(-1, 1), *raw]).T

    def network(self, column: int) -> nn.Sequential:
        """One of them by itself, in units of the target."""
        plain = perceptron(self.inner.shape[-1], self.outer.shape[1]).to(self.noise.device)
        with torch.no_grad():
            for p, stacked in zip(plain.parameters(), self.parameters(), strict=True):
                p.copy_(stacked[column])
        return plain


def perceptron(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs))


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of several splits side by side: inputs [rows, splits, columns], targets [rows, splits]."""

    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, pairs: list[data.Pair]) -> Rows:
        return cls(torch.stack([x for x, _ in pairs], 1), torch.stack([y.squeeze(1) for _, y in pairs], 1))

    def to(self, device: torch.device) -> Rows:
        return Rows(self.x.to(device), self.y.to(device))

    def some(self, splits: Tensor) -> Rows:
        return Rows(self.x[:, splits], self.y[:, splits])
