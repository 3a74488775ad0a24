"""SWA: the average of the weights along the path of SGD (Izmailov et al. 2018, 1803.05407).

After ``start`` the learning rate is kept high, so that SGD walks around a wide basin instead of settling at its edge;
the mean of snapshots taken every ``every`` steps lies near the basin's middle and generalises better.

    lr(step)   base              until ½ start
               base → lr         a line, until 0.9 start
               lr                to the end; or, with ``end_lr``, down a line from lr to end_lr between two snapshots,
                                 and up again: the cyclical form, whose snapshots are taken at the low points

The average needs BatchNorm statistics of its own: they are gathered in one pass over the training data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import nn

from posterity.flat import Layout
from posterity.methods.base import POINT, Method, check_precision, trainable
from posterity.methods.collect import Snapshots, Times, Trajectory, other_buffers
from posterity.optim.schedules import Pace
from posterity.posteriors import Empirical, WeightPosterior
from posterity.posteriors.batchnorm import batchnorm_layers, refreshed
from posterity.probability.likelihoods import Likelihood
from posterity.run import Run
from posterity.types import Batch, Params, Plan, PosterityError, check_positive_if_given

__all__ = ["SWA"]

WANTED = 10
"""Snapshots that a run is to give where ``every`` is left open."""


@dataclass(frozen=True, kw_only=True, repr=False)
class SWA(Method):
    """Stochastic weight averaging.

    Attributes:
        start: When averaging starts: a step (int) or a fraction of the run (float).
        every: Steps between snapshots, or ``"epoch"``; None is an epoch, or less where a short run would give few
            snapshots.
        lr: Learning rate after ``start``; None takes a fifth of the base rate.
        end_lr: Where the rate falls to between two snapshots; None keeps it constant.
    """

    uncarried: ClassVar[str] = POINT

    start: int | float = 0.5
    every: int | str | None = None
    lr: float | None = None
    end_lr: float | None = None

    def __post_init__(self) -> None:
        check_positive_if_given(lr=self.lr, end_lr=self.end_lr)

    @property
    def wanted(self) -> int:
        """Snapshots that the run is to give where ``every`` is left open."""
        return WANTED

    def times(self, plan: Plan) -> Times:
        """When snapshots are taken; refused where fewer than two would come."""
        times = Times.of(plan, self.start, self.every, self.wanted)
        if times.count(plan.steps) < 2:
            raise PosterityError(
                f"{times.count(plan.steps)} snapshots would come (every {times.every} of {plan.steps} steps from step "
                f"{times.start} on), but at least two are needed: start earlier, lower every, or train longer"
            )
        return times

    def schedule(self, plan: Plan) -> Pace:
        """The base rate, a line down to ``lr``, and ``lr`` or its cycles from then on."""
        times, base = self.times(plan), self.base_lr(plan)
        high = 0.2 if self.lr is None else self.lr / base
        low = high if self.end_lr is None else self.end_lr / base

        def factor(step: int) -> float:
            if step >= times.start:
                position = (step - times.start) % times.every / max(1, times.every - 1)
                return high + (low - high) * position
            fallen = (step / times.start - 0.5) / 0.4
            return 1 + (high - 1) * min(1.0, max(0.0, fallen))

        return Pace(factor)

    def prepare(self, module: nn.Module) -> nn.Module:
        """A copy, of a network in the precision of its moments."""
        check_precision(self, module)
        return super().prepare(module)

    def collector(self, module: nn.Module, plan: Plan) -> Snapshots:
        """The running mean of the weights."""
        return snapshots(module, self.times(plan), rank=0)

    def posterior(self, run: Run, likelihood: Likelihood, batches: Iterable[Batch]) -> WeightPosterior:
        """One point: the average, with BatchNorm statistics of its own."""
        path = trajectory_of(run)
        mean = all_means(run.module, path)
        buffers = refreshed(run.module, [mean], batches) if batchnorm_layers(run.module) else None
        return Empirical(run.module, likelihood, [mean], buffers)

    def symptoms(self, run: Run) -> Iterator[str]:
        """Running buffers that no average was taken of."""
        for name in cast(Snapshots, run.collector).moved_buffers(run.module):
            yield (
                f"buffer {name!r} changes during training but is neither averaged nor refreshed: "
                "every draw uses its last value"
            )


def snapshots(module: nn.Module, times: Times, rank: int, **storage: Any) -> Snapshots:
    """A collector over a network's trainable parameters."""
    return Snapshots(path_of(trainable(module), rank, **storage), times, buffers=other_buffers(module))


def path_of(params: Params, rank: int, **options: Any) -> Trajectory:
    """A trajectory on the parameters' own device, its moments in single precision or better."""
    first = next(iter(params.values()))
    dtype = torch.promote_types(first.dtype, torch.float32)
    return Trajectory(Layout.of(params), rank, device=first.device, dtype=dtype, **options)


def trajectory_of(run: Run) -> Trajectory:
    """What a run's collector gathered; refused below two snapshots (a run stopped early)."""
    path = cast(Snapshots, run.collector).trajectory
    if path.count < 2:
        raise PosterityError(
            f"the run stopped early, after {path.count} snapshots, but at least two are needed: leave patience out, or "
            "start earlier"
        )
    return path


def all_means(module: nn.Module, path: Trajectory) -> Params:
    """The trajectory's mean, and the values of the parameters that were not trained."""
    return {**{name: p.detach() for name, p in module.named_parameters()}, **path.named(path.mean)}
