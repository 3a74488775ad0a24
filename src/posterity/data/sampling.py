"""Which training examples to keep: the long tail that the Bayesian CNN talk opens with."""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.types import PosterityError


def long_tailed(targets: Tensor, imbalance: float, generator: torch.Generator) -> Tensor:
    """Sorted indices of a long-tailed subset: class c of K keeps n·imbalance^(-c/(K-1)) random examples, at least one.

    Here n is the size of the smallest class, so that the ratio of the first class to the last is exactly
    ``imbalance`` (up to rounding) also where the classes differ in size.
    """
    if not imbalance >= 1:
        raise PosterityError(
            f"imbalance, the first class's size over the last's, must be at least 1, got {imbalance!r}"
        )
    if targets.dim() != 1 or targets.is_floating_point():
        raise PosterityError(f"a long tail needs integer classes [N], got {targets.dtype} {tuple(targets.shape)}")
    classes, sizes = targets.unique(return_counts=True)
    last = max(len(classes) - 1, 1)
    kept = []
    for rank, label in enumerate(classes):
        members = (targets == label).nonzero()[:, 0]
        count = max(1, round(int(sizes.min()) * imbalance ** (-rank / last)))
        order = torch.randperm(len(members), generator=generator, device=generator.device).to(members.device)
        kept.append(members[order[:count]])
    return torch.cat(kept).sort().values
