"""Where a fit starts: the standard deviation of every weight, and optionally the prior, from the network's weights.

A number gives every weight the same std. ``Moped`` starts from a pre-trained network (Krishnan et al. 2020,
1906.05323): mean w, std delta·|w|, and, if asked, a prior centred on w with the std of the prior given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posterity.probability.priors import Normal, Prior
from posterity.types import Params, PosterityError, check_positive

__all__ = ["Earlier", "Moped", "Start", "initial_std", "starting_prior"]


@dataclass(frozen=True)
class Moped:
    """Start from the weights of a trained network.

    Attributes:
        delta: Each weight's std as a share of its size.
        centred: Centre the prior on the weights, too; it must be a Normal.
        floor: A weight smaller than this share of its parameter's root mean square starts with the std of a weight of
            that size, since a std must not be zero. Use 1 where weights are to be pruned: those that weight decay has
            brought to nothing then start as noise, and go at once. With a tiny std the optimizer's steps alone would
            soon make their means far larger than it, and they would stay.
    """

    delta: float = 0.1
    centred: bool = True
    floor: float = 0.01

    def __post_init__(self) -> None:
        check_positive(delta=self.delta, floor=self.floor)


@dataclass(frozen=True, eq=False)
class Earlier:
    """Start from the stds of an earlier posterior, as the next of several tasks does.

    Attributes:
        std: By parameter name; zero marks weights that start afresh.
        other: The start of those, and of parameters that are not named.
    """

    std: Params
    other: float | Moped | Earlier

    def __repr__(self) -> str:
        return f"Earlier({len(self.std)} parameters, {self.other!r})"


Start = float | Moped | Earlier
"""From what the stds start: a number, the weights of a trained network, or an earlier posterior."""


def initial_std(start: Start, weights: Tensor, name: str) -> Tensor:
    """The std that one parameter starts with."""
    match start:
        case Earlier(std=known, other=other):
            fresh, own = initial_std(other, weights, name), known.get(name, torch.zeros(())).to(weights)
            return torch.where(own > 0, own, fresh)
        case Moped(delta=delta, floor=floor):
            return delta * weights.abs().clamp_min(floor * float(weights.square().mean().sqrt()) + 1e-8)
        case _:
            return torch.full_like(weights, start)


def starting_prior(start: Start, prior: Prior, weights: Params) -> Prior:
    """The prior, moved onto the weights where the start asks for it."""
    match start, prior:
        case Moped(centred=True), Normal():
            return replace(prior, mean={name: w.clone() for name, w in weights.items()})
        case Moped(centred=True), _:
            raise PosterityError(
                f"a prior centred on pre-trained weights must be Normal, got {type(prior).__name__}: "
                "use Moped(centred=False)"
            )
    return prior
