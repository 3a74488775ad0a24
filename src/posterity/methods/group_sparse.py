"""Structured sparsity: neurons and filters go as a whole, so that the network gets smaller and faster.

Each linear layer has a random scale z for every input, each convolution one for every filter, and w = z ⊙ v:

    q(z) = N(mean, std²),  p(z) ∝ 1/|z|         units whose log α_z ≥ threshold are gone
    q(v) = N(mean, std²),  p(v)                 ``prior``

With ``prior=LogUniform()`` this is the lecture's z-and-W form, where single weights of the units that stay may go, too;
with ``prior=Normal(1)`` it is group normal-Jeffreys (Louizos et al. 2017, 1705.08665). One z is drawn a pass, v enters
by the local estimator. There are far more weights than units, so at equal weight the KL of v decides: few weights,
spread over many units. ``unit_weight`` counts the KL of z more often, for few units that are dense, which is what makes
a network fast; with a low ``temperature`` beside it v is hardly constrained, as in structured Bayesian pruning
(Neklyudov et al. 2017, 1705.07283). Weights outside linear and convolutional layers have no scales and are judged one
by one.

The posterior is the Gaussian with the moments of w = z ⊙ v of the survivors:

    E w = E z E v,    Var w = (E z)² Var v + Var z ((E v)² + Var v)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

import torch

from posterity.layers.convert import Scheme
from posterity.layers.noisy import LOCAL
from posterity.layers.sparse import GroupLocal, SparseSampled
from posterity.methods.sparse_vd import SparseVD, sparse_blocks
from posterity.probability.hyper import Hyper
from posterity.probability.priors import Normal, Prior
from posterity.run import Run
from posterity.types import Params, PosterityError, check_positive

__all__ = ["GroupSparse"]


@dataclass(frozen=True, kw_only=True, repr=False)
class GroupSparse(SparseVD):
    """Pruning of whole units.

    Attributes:
        prior: The prior of v; that of z is log-uniform.
        group_std: The std that scales start with; their means start at 1.
        unit_weight: How many times the KL of the scales counts, against once for that of v; a number, or a mapping from
            parameter names (or patterns such as ``"conv*"``) to numbers: a filter costs more operations than a neuron.
    """

    prior: Prior = Normal(1.0)
    group_std: float = 0.01
    unit_weight: Hyper = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(group_std=self.group_std, unit_weight=self.unit_weight)

    def carrying(self, prior: Prior, std: Params | None = None) -> Self:
        """Refused: a posterior over w = z ⊙ v is no prior of v, with z free to move w at no cost."""
        raise PosterityError("GroupSparse has its prior on weights before they are scaled, so that it carries none on")

    def scheme(self) -> Scheme:
        """Units by activations, other weights one by one."""
        drawn = partial(SparseSampled, threshold=self.threshold)
        noisy = partial(GroupLocal, threshold=self.threshold, group_std=self.group_std, unit_weight=self.unit_weight)
        return Scheme(drawn=drawn, noisy=noisy, layers=LOCAL)

    @torch.no_grad()
    def measures(self, run: Run) -> dict[str, float]:
        """As SparseVD, and the units that are left of each layer."""
        figures = super().measures(run)
        for block in sparse_blocks(run.module):
            if isinstance(block, GroupLocal):
                left = (block.group_log_alpha() < block.threshold).split(block.groups.sizes)
                figures |= {f"units {n}": float(k.sum()) for n, k in zip(block.slots.layout.names, left, strict=True)}
        return figures
