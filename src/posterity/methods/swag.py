"""SWAG: a Gaussian read off the path of SGD (Maddox et al. 2019, 1902.02476).

Snapshots as in SWA; their running mean w̄, their variance Σ_diag, and the last r deviations D of a snapshot from the
running mean at its time (``posterity.methods.collect``) make

    q(w) = N(w̄, ½ Σ_diag + D Dᵀ/(2(r − 1)))
    draw = w̄ + √½ Σ_diag^½ z₁ + D z₂/√(2(r − 1)),     z₁ ~ N(0, I),  z₂ ~ N(0, I_r)

with ONE z₂ for the whole network, so that layers move together, and r the deviations really stored. ``rank=0`` is
SWAG-Diagonal, N(w̄, Σ_diag), without the factor ½. Several restarts (``members=3``) make MultiSWAG.

In a training loop of one's own:

    swag = SWAGCollector(model, rank=20)
    for epoch in range(epochs):
        ...
        if epoch >= start: swag.collect()
    posterior = swag.posterior(likelihood, loader)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from posterity.calling import as_batches
from posterity.methods.base import trainable
from posterity.methods.collect import Snapshots, Trajectory, check_rank
from posterity.methods.swa import SWA, WANTED, all_means, path_of, snapshots, trajectory_of
from posterity.networks import duplicate, trained_network
from posterity.posteriors import DiagonalGaussian, LowRankGaussian, WeightPosterior, with_bank
from posterity.posteriors.batchnorm import batchnorm_layers
from posterity.probability.likelihoods import Likelihood
from posterity.run import Run
from posterity.types import Batch, Params, Plan, PosterityError

__all__ = ["SWAG", "SWAGCollector"]

FEW = 10
"""Below this many snapshots a variance is little more than a guess."""


@dataclass(frozen=True, kw_only=True, repr=False)
class SWAG(SWA):
    """Stochastic weight averaging with a Gaussian.

    Attributes:
        rank: How many deviations to keep; 0 for a diagonal Gaussian.
        deviations: Where and how the deviations are kept: ``"full"`` beside the moments, ``"half"`` in bfloat16,
            ``"cpu"`` in main memory, for large networks.
    """

    uncarried: ClassVar[str] = ""

    rank: int = 20
    deviations: str = "full"

    def __post_init__(self) -> None:
        super().__post_init__()
        storage(self.deviations)
        check_rank(self.rank)

    @property
    def wanted(self) -> int:
        """Snapshots enough to fill the deviations."""
        return max(self.rank, WANTED)

    def collector(self, module: nn.Module, plan: Plan) -> Snapshots:
        """Running moments and the last deviations; refused where fewer snapshots would come than are to be kept."""
        times = self.times(plan)
        coming = times.count(plan.steps)
        if coming < self.rank:
            raise PosterityError(
                f"rank={self.rank} deviations are to be kept, but only {coming} snapshots will come: "
                "lower rank or every, start earlier, or train longer"
            )
        return snapshots(module, times, self.rank, **storage(self.deviations))

    def posterior(self, run: Run, likelihood: Likelihood, batches: Iterable[Batch]) -> WeightPosterior:
        """The Gaussian of the path."""
        return gaussian(run.module, likelihood, trajectory_of(run))

    def symptoms(self, run: Run) -> Iterator[str]:
        """Too few snapshots."""
        yield from super().symptoms(run)
        count = cast(Snapshots, run.collector).trajectory.count
        if count < FEW:
            yield f"the variance comes from {count} snapshots only: lower every or train longer, for {FEW} at least"


def gaussian(module: nn.Module, likelihood: Likelihood, path: Trajectory) -> WeightPosterior:
    """N(w̄, ½ Σ_diag + D Dᵀ/(2(r − 1))), or N(w̄, Σ_diag) where fewer than two deviations were kept.

    A network in half precision gives a posterior in the precision of the moments.
    """
    module = duplicate(module).to(path.mean.dtype)
    return with_deviations(module, likelihood, all_means(module, path), path.variance, path)


def with_deviations(
    module: nn.Module, likelihood: Likelihood, means: Params, variance: Tensor, path: Trajectory
) -> WeightPosterior:
    """N(means, ½ variance + D Dᵀ/(2(r − 1))) with the path's deviations, or N(means, variance) with fewer than two."""
    rank = len(path.deviations)
    if rank < 2:
        return DiagonalGaussian(module, likelihood, means, path.named(variance.sqrt()))
    std = path.named((variance / 2).sqrt())
    return LowRankGaussian(module, likelihood, means, std, path.deviations, 1 / math.sqrt(2 * (rank - 1)))


def storage(deviations: str) -> dict[str, Any]:
    """Device and precision of the deviations, by name."""
    choices: dict[str, dict[str, Any]] = {
        "full": {},
        "half": {"rows_dtype": torch.bfloat16},
        "cpu": {"rows_device": "cpu"},
    }
    if deviations not in choices:
        raise PosterityError(f"deviations must be one of {', '.join(choices)}, got {deviations!r}")
    return choices[deviations]


class SWAGCollector:
    """SWAG in a training loop of one's own.

    Args:
        module: The network that the loop trains; it is only read.
        rank: How many deviations to keep; 0 for a diagonal Gaussian.
        deviations: ``"full"``, ``"half"`` or ``"cpu"``, as in ``SWAG``.
    """

    def __init__(self, module: nn.Module, rank: int = 20, deviations: str = "full") -> None:
        self.module = trained_network(module)
        self.trajectory = path_of(trainable(self.module), rank, **storage(deviations))

    def collect(self) -> None:
        """Take a snapshot of the weights as they are now; those frozen since the start stay where they are."""
        params = dict(self.module.named_parameters())
        new = [name for name, p in params.items() if p.requires_grad and name not in self.trajectory.layout.names]
        if new:
            raise PosterityError(f"{new[0]} was frozen when the collector was made, and is trained now: make a new one")
        self.trajectory.add(params)

    def posterior(
        self, likelihood: Likelihood, loader: Iterable[Any] | None = None, draws: int = 32
    ) -> WeightPosterior:
        """The Gaussian so far.

        Args:
            likelihood: How targets arise from the network's outputs.
            loader: Training batches; needed where the network has BatchNorm, whose statistics each draw needs afresh.
            draws: How many draws get statistics of their own, where the network has BatchNorm.
        """
        if self.trajectory.count < 2:
            raise PosterityError(f"{self.trajectory.count} snapshots were collected, but at least two are needed")
        normed = batchnorm_layers(self.module)
        if normed and loader is None:
            raise PosterityError(
                f"the network has BatchNorm ({next(iter(normed))}): give a loader of training batches to refresh it on"
            )
        posterior = copy.deepcopy(gaussian(self.module, likelihood, self.trajectory))  # the loop may go on collecting
        return posterior if loader is None else with_bank(posterior, as_batches(loader), draws)

    def state_dict(self) -> dict[str, Any]:
        """All that was gathered."""
        return self.trajectory.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up again what was gathered."""
        self.trajectory.load_state_dict(state)
