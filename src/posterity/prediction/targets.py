"""Targets that fit what was predicted, checked once where data and predictions meet."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posterity.types import PosterityError

__all__ = ["labelled", "real_targets", "same_length"]


def labelled(targets: Any, probs: Tensor) -> Tensor:
    """Integer targets from 0 to classes − 1, one for each row of probabilities [..., classes] and in their shape."""
    targets, rows, classes = torch.as_tensor(targets).detach().cpu(), probs.shape[:-1], probs.shape[-1]
    if targets.shape not in (rows, (*rows, 1)):
        n = rows.numel()
        raise PosterityError(f"{n} predictions need {n} targets, got targets of shape {tuple(targets.shape)}")
    if targets.is_floating_point() and not torch.equal(targets, targets.round()):
        raise PosterityError(f"class targets must be whole numbers, got {targets.dtype} with fractions")
    targets = targets.long().reshape(rows)
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        raise PosterityError(f"class targets run from {low} to {high}, but there are {classes} probabilities a row")
    return targets


def real_targets(targets: Any, mean: Tensor) -> Tensor:
    """Targets in the shape of the predicted means."""
    targets = torch.as_tensor(targets).detach().cpu()
    if targets.ndim == 0 or not targets.numel():
        raise PosterityError("there are no targets to compare with")
    same_length(predictions=mean, targets=targets)
    if targets.numel() != mean.numel():
        raise PosterityError(
            f"targets of shape {tuple(targets.shape)} do not fit predictions of shape {tuple(mean.shape)}"
        )
    if targets.is_floating_point() and not targets.isfinite().all():
        raise PosterityError("the targets hold NaN or infinite values")
    return targets.reshape(mean.shape)


def same_length(**columns: Tensor) -> None:
    """Refuse columns of different length."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        told = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise PosterityError(f"one of each is needed for every example, got {told}")
