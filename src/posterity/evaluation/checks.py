"""What the metrics accept, checked once at the border; and the weighted mean that they are all made of.

Every metric takes ``weights`` [..., n]: how often each example counts. None is once each; a matrix of multinomial
counts is a bootstrap (``posterity.evaluation.bootstrap``), and gives one figure a row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posterity.prediction import Classification, Regression
from posterity.prediction.targets import labelled
from posterity.types import PosterityError

__all__ = ["checked", "probabilities", "row_weights", "weighted_mean"]

_TOLERANCE = 1e-3
"""How far a row of probabilities may be from summing to one: what half precision leaves."""


def probabilities(prediction: Any) -> Tensor:
    """Class probabilities [n, classes] of a prediction, or given as they are."""
    if isinstance(prediction, Classification | Regression):
        prediction = prediction.probs  # of which a regression says that it has none
    probs = torch.as_tensor(prediction)
    if probs.ndim != 2 or probs.shape[0] == 0 or probs.shape[1] < 2:
        raise PosterityError(f"probabilities must be [examples, classes] with two classes, got {tuple(probs.shape)}")
    if not probs.is_floating_point() or not probs.isfinite().all() or probs.min() < 0:
        raise PosterityError("probabilities must be finite real numbers from 0 to 1")
    worst = (probs.sum(1) - 1).abs().max().item()
    if worst > _TOLERANCE:
        raise PosterityError(f"the probabilities of an example must sum to one, but some are off by {worst:.3g}")
    return probs.detach().cpu()


def checked(prediction: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """Probabilities and targets that fit each other."""
    probs = probabilities(prediction)
    return probs, labelled(targets, probs)


def row_weights(weights: Any, n: int) -> Tensor:
    """The weights [..., n] as real numbers, in whose precision figures are computed; ones if there are none."""
    if weights is None:
        return torch.ones(n, dtype=torch.float64)
    weights = torch.as_tensor(weights)
    weights = weights if weights.is_floating_point() else weights.double()
    if weights.shape[-1] != n:
        raise PosterityError(f"{n} examples need weights of shape [..., {n}], got {tuple(weights.shape)}")
    return weights


def weighted_mean(values: Tensor, weights: Tensor | None = None) -> Tensor:
    """Σ wᵢ vᵢ / Σ wᵢ for every row of weights."""
    weights = row_weights(weights, len(values))
    return (weights @ values.to(weights.dtype)) / weights.sum(-1)
