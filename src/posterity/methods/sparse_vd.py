"""Sparse variational dropout: a scale-free prior under which superfluous weights become pure noise, and go.

Weights w ~ N(mean, std²), prior p(w) ∝ 1/|w|. With α = std²/mean² (Molchanov et al. 2017, 1701.05369),

    KL(q‖p) ≈ Σ ½ log(1 + 1/α) + k₁ sigmoid(−k₂ − k₃ log α),     k = 0.63576, 1.87320, 1.48695,

which falls to nothing at α = ∞, so a weight that the data do not need drifts there (``posterity.layers.divergence``;
noise enters by the local estimator). A weight is gone when log α ≥ threshold: α > 20, more than 95% noise.

A run has up to three parts, given as fractions of it:

    warm-up      the KL's weight rises from 0 to 1, so that weights learn before they are judged (or start from a
                 trained network, which does as well)
    clipping     from ``clip_start`` on the means of weights that are gone count as zero already while training
    fine-tuning  the last ``finetune`` of the run: what is gone stays gone, the KL is switched off, and the survivors
                 are trained on at a lower learning rate

The posterior is the Gaussian of the survivors, every other weight zero: ``compress`` makes it a smaller network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from posterity.layers.convert import Scheme
from posterity.layers.noisy import LOCAL
from posterity.layers.sparse import Phase, Sparse, SparseLocal, SparseSampled
from posterity.layers.start import Moped
from posterity.layers.variational import Variational
from posterity.methods.mean_field import MeanField
from posterity.methods.tempering import KLSchedule, LinearKL, kl_schedule
from posterity.optim.schedules import Pace
from posterity.posteriors import WeightPosterior
from posterity.probability.likelihoods import Likelihood
from posterity.probability.priors import LogUniform, Prior
from posterity.run import Run
from posterity.types import Batch, Plan, PosterityError, check_fraction, check_number, check_positive

__all__ = ["SparseVD"]


@dataclass(frozen=True, kw_only=True, repr=False)
class SparseVD(MeanField):
    """Variational dropout that prunes.

    Attributes:
        threshold: The log α from which a weight is gone.
        clip_start: From this fraction of the run on, weights that are gone have no mean in training either; None for
            never.
        finetune: The last fraction of the run, for the survivors alone; 0 for none.
        finetune_rate: The learning rate that fine-tuning starts with, as a share of the base rate.
        decay_start: The fraction of the run before fine-tuning at which the learning rate begins to fall to zero.
    """

    prior: Prior = LogUniform()
    init_std: float | Moped = 0.0067
    kl_schedule: str | KLSchedule = LinearKL(fraction=0.1, delay=0.03)
    threshold: float = 3.0
    clip_start: float | None = None
    finetune: float = 0.1
    finetune_rate: float = 0.3
    decay_start: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction(finetune=self.finetune, decay_start=self.decay_start)
        check_number(threshold=self.threshold)
        check_positive(finetune_rate=self.finetune_rate)
        if self.clip_start is not None and not 0 <= self.clip_start < 1 - self.finetune:
            raise PosterityError(
                f"clip_start must lie between 0 and the beginning of fine-tuning ({1 - self.finetune:.2f}), "
                f"got {self.clip_start!r}"
            )
        if self.estimator != "auto" or self.family != "diagonal":
            raise PosterityError(f"{type(self).__name__} brings its own estimator and family: leave them out")

    def scheme(self) -> Scheme:
        """By activations where a layer can, drawn elsewhere."""
        return Scheme(
            drawn=partial(SparseSampled, threshold=self.threshold),
            noisy=partial(SparseLocal, threshold=self.threshold),
            layers=LOCAL,
        )

    def schedule(self, plan: Plan) -> Pace:
        """Learning rate: constant, down to zero, and once more for the survivors; KL: warm-up, one, nothing."""
        tuning, warm_up = self._finetune_step(plan), kl_schedule(self.kl_schedule)

        def factor(step: int) -> float:
            if step >= tuning:
                return self.finetune_rate * (plan.steps - step) / (plan.steps - tuning)
            return min(1.0, (1 - step / tuning) / (1 - self.decay_start))

        def temperature(step: int) -> float:
            return 0.0 if step >= tuning else self.temperature * warm_up.weight(step, plan)

        return Pace(factor, temperature)

    def _finetune_step(self, plan: Plan) -> int:
        return plan.steps - round(self.finetune * plan.steps)

    def collector(self, module: nn.Module, plan: Plan) -> Phases:
        """What begins clipping and fine-tuning at their steps."""
        starts = {}
        if self.clip_start is not None:
            starts[max(1, round(self.clip_start * plan.steps))] = Phase.CLIPPED  # the first look is after a step
        if self.finetune:  # comes last: where both fall on one step, what is gone stays gone
            starts[self._finetune_step(plan)] = Phase.FROZEN
        return Phases(starts)

    def posterior(self, run: Run, likelihood: Likelihood, batches: Iterable[Batch]) -> WeightPosterior:
        """The Gaussian of the survivors."""
        posterior = super().posterior(run, likelihood, batches)
        posterior.pruned = True
        return posterior

    @torch.no_grad()
    def measures(self, run: Run) -> dict[str, float]:
        """KL an example, mean log α, and the share of weights that are gone: of all, and of each parameter."""
        figures, blocks = super().measures(run), sparse_blocks(run.module)
        figures["log_alpha"] = float(torch.cat([block.log_alpha() for block in blocks]).mean())
        gone: dict[str, torch.Tensor] = {}
        for block in blocks:
            gone |= block.slots.layout.unflatten((~block.survivors()).float())
        figures["sparsity"] = float(sum(g.sum() for g in gone.values())) / sum(g.numel() for g in gone.values())
        return figures | {f"sparsity {name}": float(g.mean()) for name, g in gone.items()}

    def symptoms(self, run: Run) -> Iterator[str]:
        """Weights that had no time to go, and no weight that is left."""
        blocks = sparse_blocks(run.module)
        if self.finetune and any(block.phase != Phase.FROZEN for block in blocks):
            yield (
                "the run ended before fine-tuning, and the KL, under which weights go, had not done its work: leave "
                "early stopping out"
            )
        if not any(bool(block.survivors().any()) for block in blocks):
            yield (
                "every weight is gone: the data do not pay for any (random labels?), or the KL came too early; "
                "try a later or longer warm-up, or start from a trained network"
            )


def sparse_blocks(module: nn.Module) -> list[Sparse]:
    """The blocks whose weights may go."""
    return cast(list[Sparse], cast(Variational, module).blocks)


class Phases:
    """A Collector that gathers nothing, but begins a phase after certain steps."""

    def __init__(self, starts: dict[int, Phase]) -> None:
        self.starts = starts

    def observe(self, run: Run) -> None:
        """Called after every step."""
        if run.step in self.starts:
            run.phase += 1
            for block in sparse_blocks(run.module):
                block.advance(self.starts[run.step])

    def state_dict(self) -> dict[str, Any]:
        """The phase is kept in the network."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to take up."""
