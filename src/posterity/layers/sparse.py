"""Weights that may go: diagonal blocks that know which of their weights are more noise than signal.

A weight's log α = log std²/mean² says how much of it is noise. Training passes through phases, which the method sets:

    FREE       all weights take part
    CLIPPED    means of weights with log α ≥ threshold count as zero; their noise stays, and they may come back
    FROZEN     the weights that are gone stay gone, with their noise; the others are fine-tuned

Moments are always those of the survivors: a weight that is gone has mean 0 and std 0.

    SparseLocal, SparseSampled   every weight by itself, by activations or drawn
    GroupLocal                   w = z ⊙ v with one z for each input of a linear layer and each filter of a convolution;
                                 z and v are Gaussian, z is drawn once a pass, v enters by activations
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, nn

from posterity.layers.blocks import Diagonal, Local, Sampled
from posterity.layers.divergence import diagonal_kl
from posterity.layers.estimators import deviation
from posterity.layers.groups import Groups
from posterity.layers.slots import Slots
from posterity.probability.hyper import Hyper, hyper_at
from posterity.probability.priors import LogUniform, Prior

__all__ = ["GroupLocal", "Phase", "Sparse", "SparseLocal", "SparseSampled"]


class Phase(IntEnum):
    """What happens to weights that are mostly noise."""

    FREE = 0
    CLIPPED = 1
    FROZEN = 2


class Sparse(Diagonal):
    """A diagonal block whose weights may go.

    Attributes:
        threshold: The log α from which a weight is gone.
        phase: What happens to such weights in a training pass.
        kept: The survivors, once they are frozen.
    """

    kept: Tensor

    def __init__(
        self,
        slots: Slots,
        mean: Tensor,
        std: Tensor,
        prior: Prior,
        fixed: Tensor | None = None,
        threshold: float = 3.0,
    ) -> None:
        super().__init__(slots, mean, std, prior, fixed)
        self.threshold, self.phase = threshold, Phase.FREE
        self.register_buffer("kept", torch.ones_like(mean, dtype=torch.bool))

    def log_alpha(self) -> Tensor:
        """log std²/mean² of every weight."""
        return log_ratio(self.mean, self.log_std)

    def survivors(self) -> Tensor:
        """Which weights take part in a prediction; a fixed one always does."""
        alive = self.kept & (self.log_alpha() < self.threshold)
        return alive if self.fixed is None else alive | self.fixed

    def advance(self, phase: Phase) -> None:
        """Begin a phase; frozen weights are those that survive at this moment."""
        if phase == Phase.FROZEN:
            self.kept.copy_(self.survivors())
        self.phase = phase

    def clipped(self, mean: Tensor, variance: Tensor) -> dict[str, Tensor]:
        """Moments of the weights that take part in a training pass.

        The masks are numbers: a CPU multiplies by truth values several times as slowly.
        """
        if self.phase == Phase.CLIPPED:
            mean = mean * self.survivors().to(mean)
        if self.phase == Phase.FROZEN:
            kept = self.kept.to(mean)
            mean, variance = mean * kept, variance * kept
        return {"_mean": mean, "_variance": variance}

    def center(self) -> Tensor:
        """Means of the survivors."""
        return self.mean * self.survivors()

    def std(self) -> Tensor:
        """Stds of the survivors."""
        return super().std() * self.survivors()

    def get_extra_state(self) -> Any:
        """The phase, which a checkpoint must know."""
        return int(self.phase)

    def set_extra_state(self, state: Any) -> None:
        """Take up the phase again."""
        self.phase = Phase(state)


class SparseLocal(Sparse, Local):
    """By activations."""

    def noisy(self) -> dict[str, Tensor]:
        """Means and variances of the weights that take part."""
        return self.clipped(*Local.noisy(self).values())


class SparseSampled(Sparse, Sampled):
    """Drawn once a pass."""

    def noisy(self) -> dict[str, Tensor]:
        """A draw of the weights that take part."""
        weights = Sampled.noisy(self)[""]
        if self.phase == Phase.CLIPPED:
            weights = weights - self.mean * (~self.survivors()).to(weights)
        if self.phase == Phase.FROZEN:
            weights = weights * self.kept.to(weights)
        return {"": weights}


def log_ratio(mean: Tensor, log_std: Tensor) -> Tensor:
    """log std²/mean²."""
    return mean.detach().abs().clamp_min_(1e-30).log_().neg_().add_(log_std.detach()).mul_(2)


class GroupLocal(Sparse):
    """w = z ⊙ v: units go as a whole, when z is more noise than signal.

    KL = ``unit_weight`` KL(q(z)‖log-uniform) + KL(q(v)‖prior). With a log-uniform prior on v single weights go, too
    (the lecture's form); with a standard Normal only units do (group normal-Jeffreys, Louizos et al. 2017, 1705.08665).
    """

    beside = ("_mean", "_variance")

    def __init__(
        self,
        slots: Slots,
        mean: Tensor,
        std: Tensor,
        prior: Prior,
        fixed: Tensor | None = None,
        threshold: float = 3.0,
        group_std: float = 0.01,
        unit_weight: Hyper = 1.0,
    ) -> None:
        super().__init__(slots, mean, std, prior, fixed, threshold)
        self.groups = Groups.of(slots)
        self.unit_weights = [float(hyper_at(unit_weight, name)) for name in slots.layout.names]
        self.scale = nn.Parameter(mean.new_ones(sum(self.groups.sizes)))
        self.log_scale_std = nn.Parameter(torch.full_like(self.scale, group_std).log())

    def noisy(self) -> dict[str, Tensor]:
        """Means and variances given one draw of the scales."""
        scale = self.groups.expand(self.scale + deviation(self.log_scale_std))
        return self.clipped(scale * self.mean, (scale * self.log_std.exp()).square())

    def draw(self) -> Tensor:
        """z ⊙ v, of the survivors."""
        scale = self.groups.expand(self.scale + deviation(self.log_scale_std))
        return scale * (self.mean + deviation(self.log_std)) * self.survivors()

    def group_log_alpha(self) -> Tensor:
        """log std²/mean² of every scale."""
        return log_ratio(self.scale, self.log_scale_std)

    def log_alpha(self) -> Tensor:
        """log α of a weight's unit, or of the weight itself where that is larger and single weights may go."""
        group = self.groups.expand(self.group_log_alpha())
        return torch.maximum(group, super().log_alpha()) if isinstance(self.prior, LogUniform) else group

    def center(self) -> Tensor:
        """E z E v."""
        return self.groups.expand(self.scale) * self.mean * self.survivors()

    def std(self) -> Tensor:
        """By Var zv = (E z)² Var v + Var z ((E v)² + Var v)."""
        scale, spread = self.groups.expand(self.scale), self.groups.expand(self.log_scale_std.exp()).square()
        variance = self.log_std.exp().square()
        total = scale.square() * variance + spread * (self.mean.square() + variance)
        return total.sqrt() * self.survivors()

    def kl(self) -> Tensor:
        """KL of scales and weights, summed."""
        sizes = self.groups.sizes
        layers = zip(self.unit_weights, self.scale.split(sizes), self.log_scale_std.split(sizes), strict=True)
        return super().kl() + sum(times * diagonal_kl(mean, log_std, LogUniform()) for times, mean, log_std in layers)
