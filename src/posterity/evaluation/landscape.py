"""Pictures of the loss on a plane through solutions.

A plane through three solutions w₁, w₂, w₃ has the axes of Gram and Schmidt (Garipov et al. 2018, 1802.10026):

    u = w₂ − w₁,    v = (w₃ − w₁) − ⟨w₃ − w₁, û⟩ û,    w(a, b) = w₁ + a û + b v̂

Through more points (the snapshots behind SWAG, the samples of a chain) it is the plane of their first two principal
components, through their mean. Coordinates are distances in weight space.

Networks with BatchNorm get statistics of their own at every point of the plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, nn

from posterity.calling import Draw, map_batch
from posterity.data.pieces import counted_once
from posterity.flat import Layout
from posterity.posteriors import Empirical, LowRankGaussian, Mixture, WeightPosterior
from posterity.posteriors.batchnorm import batchnorm_layers, refreshed
from posterity.prediction.targets import labelled, real_targets
from posterity.probability.likelihoods import Likelihood
from posterity.types import Batch, Params, PosterityError

__all__ = ["Landscape", "Plane", "judge", "landmarks", "landscape", "moved", "walked"]

_TOGETHER = 8  # networks whose BatchNorm statistics are gathered in one pass


@singledispatch
def landmarks(posterior: WeightPosterior) -> list[Params]:
    """The weights that span a posterior's picture: here, some of its draws."""
    return [params for params, _ in posterior.samples(8) or ()]


@landmarks.register
def _(posterior: Empirical) -> list[Params]:
    return [params for params, _ in posterior.samples(len(posterior.points))]


@landmarks.register
def _(posterior: Mixture) -> list[Params]:
    return [part.mean() for part in posterior.parts if isinstance(part, WeightPosterior)]


@landmarks.register
def _(posterior: LowRankGaussian) -> list[Params]:
    # One deviation to either side of the mean: the plane then goes through the mean, along D's main directions.
    mean, rows = posterior.q.mean, posterior.q.deviations  # type: ignore[union-attr]
    ends = [mean + side * row.to(mean) for row in rows for side in (1, -1)]
    return [{**posterior.fixed, **posterior.bayesian.unflatten(end)} for end in ends]


@singledispatch
def walked(posterior: WeightPosterior) -> list[Params]:
    """The path that a posterior remembers; only chains have one."""
    return []


@walked.register
def _(posterior: Empirical) -> list[Params]:
    return landmarks(posterior) if len(posterior.points) > 3 else []


@dataclass(frozen=True, eq=False)
class Plane:
    """A plane in weight space.

    Attributes:
        layout: The parameters in their order.
        origin: The weights at (0, 0), flat.
        axes: Two orthonormal directions, [2, weights].
    """

    layout: Layout
    origin: Tensor
    axes: Tensor

    @classmethod
    def through(cls, points: Sequence[Params]) -> Plane:
        """Through three points; nearest to more than three, by principal components."""
        if len(points) < 3:
            raise PosterityError(f"a plane needs at least three sets of weights, got {len(points)}")
        layout = Layout.of(points[0])
        rows = torch.stack([layout.flatten(p) for p in points])
        if len(points) == 3:
            origin, spans = rows[0], rows[1:] - rows[0]
            first = spans[0] / spans[0].norm()
            rest = spans[1] - spans[1].dot(first) * first
            axes = torch.stack([first, rest / rest.norm()])
        else:
            origin = rows.mean(0)
            axes = torch.linalg.svd(rows - origin, full_matrices=False).Vh[:2]
        if not bool(axes.isfinite().all()):
            raise PosterityError("the three sets of weights lie on one line, so they span no plane")
        return cls(layout, origin, axes)

    def at(self, coordinates: Tensor) -> Params:
        """The weights at coordinates [2]."""
        return self.layout.unflatten(self.origin + coordinates.to(self.axes) @ self.axes)

    def project(self, points: Sequence[Params]) -> Tensor:
        """Coordinates [points, 2] of the nearest points of the plane."""
        rows = torch.stack([self.layout.flatten(p) for p in points])
        return (rows - self.origin) @ self.axes.T


@dataclass(frozen=True, eq=False)
class Landscape:
    """Loss and error on a grid of a plane.

    Attributes:
        x: Coordinates along the first axis, [columns].
        y: Coordinates along the second axis, [rows].
        loss: Mean negative log-likelihood, [rows, columns].
        error: Share of wrong labels (classes) or mean squared error (numbers), [rows, columns].
        points: Coordinates of the weights that span the plane, [points, 2].
        path: Coordinates of a trajectory, [steps, 2]; without one, [0, 2].
        centre: Coordinates of the posterior's mean, [2].
        classifies: What ``error`` is.
    """

    x: Tensor
    y: Tensor
    loss: Tensor
    error: Tensor
    points: Tensor
    path: Tensor
    centre: Tensor
    classifies: bool

    def __repr__(self) -> str:
        rows, columns = self.loss.shape
        return f"Landscape({rows} × {columns} points, loss {self.loss.min():.3g} … {self.loss.max():.3g})"


def landscape(
    posterior: WeightPosterior,
    data: Any,
    *,
    points: Sequence[Params] | None = None,
    path: Sequence[Params] | None = None,
    steps: int = 21,
    margin: float = 0.3,
) -> Landscape:
    """Loss and error on the plane of a posterior: through three members, or along the main directions of a path.

    Args:
        posterior: An ensemble (plane through its members), SWAG (its deviations) or a chain (its samples).
        data: What loss and error are of: a DataSet, (inputs, targets), a Dataset or a loader.
        points: The weights to lay the plane through instead.
        path: A trajectory to draw on it, such as the weights after each epoch; a chain brings its own.
        steps: Grid points along each axis.
        margin: How far the picture goes beyond the points, as a share of their extent.
    """
    span = list(points) if points is not None else landmarks(posterior)
    plane = Plane.through(span)
    spots = plane.project(span)
    steps_taken = list(path) if path is not None else walked(posterior)
    track = plane.project(steps_taken) if steps_taken else spots[:0]
    x, y = _axes(torch.cat([spots, track]), steps, margin)
    grid = [torch.stack([a, b]) for b in y for a in x]
    judged = judge(posterior.module, posterior.likelihood, [plane.at(c) for c in grid], data)
    loss, error = judged.reshape(steps, steps, 2).unbind(-1)
    return Landscape(
        x=x,
        y=y,
        loss=loss.cpu(),
        error=error.cpu(),
        points=spots.cpu(),
        path=track.cpu(),
        centre=plane.project([posterior.mean()])[0].cpu(),
        classifies=posterior.likelihood.classifies,
    )


@torch.no_grad()
def judge(module: nn.Module, likelihood: Likelihood, networks: Sequence[Params], data: Any) -> Tensor:
    """Mean negative log-likelihood and error of each set of weights, [networks, 2]."""
    device = next(module.parameters()).device
    batches = [moved(batch, device) for batch in counted_once(data, size=1000)]
    total = sum(len(batch.targets) for batch in batches)
    rows = []
    for start in range(0, len(networks), _TOGETHER):
        some = list(networks[start : start + _TOGETHER])
        buffers = refreshed(module, some, batches) if batchnorm_layers(module) else [{} for _ in some]
        for params, own in zip(some, buffers, strict=True):
            network = Draw(module, params, own)
            rows.append(torch.stack([_judged(network, likelihood, batch) for batch in batches]).sum(0) / total)
    return torch.stack(rows)


def _judged(network: Draw, likelihood: Likelihood, batch: Batch) -> Tensor:
    """Summed negative log-likelihood and errors of one batch."""
    outputs = network(batch.inputs)
    found = likelihood.probs(outputs) if likelihood.classifies else likelihood.mean(outputs)
    targets = (labelled if likelihood.classifies else real_targets)(batch.targets, found).to(found.device)
    loss = -likelihood.log_prob(outputs, batch.targets).sum()
    wrong = (found.argmax(-1) != targets).to(loss) if likelihood.classifies else (found - targets).square()
    return torch.stack([loss, wrong.reshape(len(wrong), -1).mean(1).sum()])


def _axes(spots: Tensor, steps: int, margin: float) -> list[Tensor]:
    """Grid coordinates along both axes, over all spots and a margin."""
    low, high = spots.amin(0), spots.amax(0)
    room = margin * (high - low).amax()
    return [torch.linspace(float(a - room), float(b + room), steps) for a, b in zip(low, high, strict=True)]


def moved(batch: Batch, device: torch.device) -> Batch:
    """The batch on a device."""
    return map_batch(batch, lambda t: t.to(device))
