"""The loss along curves between two solutions: mode connectivity (Garipov et al. 2018, 1802.10026).

A curve bends once, in a trained middle θ:

    φ(t) = (1 − t)² w₁ + 2 t (1 − t) θ + t² w₂,    θ* = argmin E_{t ~ U[0, 1]} loss(φ(t))

Networks with BatchNorm get statistics of their own at every point of the curve.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from posterity.calling import Draw, map_inputs
from posterity.data.pieces import counted_once, to_train_on
from posterity.evaluation.landscape import judge, moved
from posterity.flat import Layout
from posterity.networks import differentiable, duplicate
from posterity.posteriors import WeightPosterior
from posterity.posteriors.batchnorm import batchnorm_layers
from posterity.probability.likelihoods import Likelihood
from posterity.random import generator_for
from posterity.types import Batch, Params

__all__ = ["Connection", "connect"]

_Example = tuple[float, Batch]


@dataclass(frozen=True, eq=False)
class Connection:
    """Loss and error between two solutions, along the straight line and along the trained curve.

    Attributes:
        t: Positions along both, 0 and 1 at the solutions, [points].
        straight_loss: On the line, [points].
        straight_error: On the line, [points].
        curve_loss: On the curve, [points].
        curve_error: On the curve, [points].
        bend: θ, the trained middle.
    """

    t: Tensor
    straight_loss: Tensor
    straight_error: Tensor
    curve_loss: Tensor
    curve_error: Tensor
    bend: Params

    @property
    def barrier(self) -> tuple[float, float]:
        """By how much the loss rises above the line between its ends: on the straight way, and on the curve."""
        ways = (self.straight_loss, self.curve_loss)
        between = [way - torch.lerp(way[0], way[-1], self.t.to(way)) for way in ways]
        return float(between[0].max()), float(between[1].max())


def connect(
    first: WeightPosterior,
    second: WeightPosterior,
    data: Any,
    *,
    steps: int = 1000,
    lr: float = 0.01,
    batch_size: int = 128,
    points: int = 21,
    seed: int = 0,
) -> Connection:
    """Look for a way of low loss between two solutions (mode connectivity).

    Args:
        first: Where the curve begins: the posterior's mean.
        second: Where it ends.
        data: Training data (of a DataSet its training part), to train the bend and to judge the ways on.
        steps: Steps of Adam on the bend.
        lr: Their size.
        batch_size: Examples of each.
        points: Where along the ways to judge.
        seed: The positions and batches drawn.
    """
    module, likelihood, layout = first.module, first.likelihood, Layout.of(first.mean())
    ends = torch.stack([layout.flatten(first.mean()), layout.flatten(second.mean())])
    middle = ends.mean(0)
    data = to_train_on(data)
    examples = _examples(data, ends.device, steps, batch_size, seed)
    t = torch.linspace(0, 1, points, dtype=torch.float64)

    def along(way: Tensor) -> tuple[Tensor, ...]:
        networks = [layout.unflatten(_bezier(ends, way, float(s))) for s in t]
        return judge(module, likelihood, networks, data).cpu().unbind(-1)

    straight_loss, straight_error = along(middle)  # first, since it refuses targets that do not fit
    bend = _trained(module, likelihood, layout, ends, examples, lr)
    curve_loss, curve_error = along(bend)
    return Connection(t, straight_loss, straight_error, curve_loss, curve_error, layout.unflatten(bend))


def _trained(
    module: nn.Module, likelihood: Likelihood, layout: Layout, ends: Tensor, examples: Iterator[_Example], lr: float
) -> Tensor:
    """θ: Adam on the loss at random positions of the curve, from the straight line's middle."""
    network = duplicate(module)
    for layer in batchnorm_layers(network).values():
        layer.train()
    bend = ends.mean(0).requires_grad_()
    optimizer = torch.optim.Adam([bend], lr=lr)
    for t, batch in examples:
        with differentiable(network):
            outputs = Draw(network, layout.unflatten(_bezier(ends, bend, t)), {})(batch.inputs)
        loss = -likelihood.log_prob(outputs, batch.targets).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return bend.detach()


def _examples(data: Any, device: torch.device, steps: int, batch_size: int, seed: int) -> Iterator[_Example]:
    """A random position and a random batch for every step."""
    everything = [moved(batch, device) for batch in counted_once(data)]
    sizes = torch.tensor([len(piece.targets) for piece in everything], dtype=torch.float64)
    generator = generator_for(seed)
    for _ in range(steps):
        piece = everything[int(torch.multinomial(sizes, 1, generator=generator))]
        rows = torch.randint(len(piece.targets), (batch_size,), generator=generator).to(device)
        inputs = map_inputs(piece.inputs, itemgetter(rows))
        yield float(torch.rand((), generator=generator)), Batch(inputs, piece.targets[rows])


def _bezier(ends: Tensor, bend: Tensor, t: float) -> Tensor:
    """φ(t)."""
    return (1 - t) ** 2 * ends[0] + 2 * t * (1 - t) * bend + t**2 * ends[1]
