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

__all__ = ["Moped", "initial_std", "starting_prior"]


@dataclass(frozen=True)
class Moped:
    """Start from the weights of a trained network.

    Attributes:
        delta: Each weight's std as a share of its size; a weight near zero takes that of a hundredth of its
            parameter's root mean square, since a std must not be zero.
        centred: Centre the prior on the weights, too; it must be a Normal.
    """

    delta: float = 0.1
    centred: bool = True

    def __post_init__(self) -> None:
        check_positive(delta=self.delta)


def initial_std(start: float | Moped, weights: Tensor) -> Tensor:
    """The std that one parameter starts with."""
    match start:
        case Moped(delta=delta):
            floor = 0.01 * weights.square().mean().sqrt() + 1e-8
            return delta * weights.abs().clamp_min(float(floor))
        case _:
            return torch.full_like(weights, start)


def starting_prior(start: float | Moped, prior: Prior, weights: Params) -> Prior:
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
