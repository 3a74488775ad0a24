"""Proper scores of class probabilities p [n, classes] against targets y [n]; smaller is better, except for accuracy.

    accuracy   mean 1[argmax p = y]
    NLL        mean −log p_y                                       in nats
    Brier      mean Σ_k (p_k − 1[y = k])²                          from 0 to 2 (the multi-class score of Brier 1950)
    entropy    mean −Σ_k p_k log p_k

The Brier score splits in calibration + refinement (DeGroot and Fienberg 1983): with f_b the frequency of class k among
the n_b examples whose p_k falls in bin b, and p_b their mean p_k,

    calibration = Σ_k Σ_b n_b/n (p_b − f_b)²        how far stated probabilities are from frequencies: can be repaired
    refinement  = Brier − calibration               what even honest probabilities of these groups leave open

which is Σ_k Σ_b n_b/n f_b(1 − f_b) where all probabilities of a bin are equal.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posterity.evaluation.calibration import class_bins
from posterity.evaluation.checks import checked, probabilities, row_weights, weighted_mean

__all__ = ["accuracy", "brier", "brier_split", "entropy", "nll"]


def accuracy(prediction: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
    """The share of examples whose most probable class is right."""
    probs, targets = checked(prediction, targets)
    return weighted_mean(probs.argmax(1) == targets, weights)


def nll(prediction: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
    """Mean negative log-likelihood in nats; a probability of zero counts as the smallest number there is."""
    probs, targets = checked(prediction, targets)
    return weighted_mean(log_loss_each(probs, targets), weights)


def brier(prediction: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
    """Mean squared distance to the one-hot target, summed over classes."""
    probs, targets = checked(prediction, targets)
    return weighted_mean(brier_each(probs, targets), weights)


def entropy(prediction: Any, weights: Tensor | None = None) -> Tensor:
    """Mean entropy of the predictions in nats."""
    return weighted_mean(torch.special.entr(probabilities(prediction).double()).sum(1), weights)


def brier_split(prediction: Any, targets: Any, bins: int = 15, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The Brier score's (calibration, refinement), which sum to it."""
    probs, targets = checked(prediction, targets)
    weights = row_weights(weights, len(probs))
    calibration = squared_class_gap(*class_bins(probs, targets, bins, weights), weights)
    return calibration, brier(probs, targets, weights) - calibration


def squared_class_gap(mass: Tensor, gaps: Tensor, weights: Tensor) -> Tensor:
    """The Brier score's calibration, from ``class_bins``."""
    return (gaps.square() / mass.clamp_min(1e-12)).sum((-1, -2)) / weights.sum(-1)


def log_loss_each(probs: Tensor, targets: Tensor) -> Tensor:
    """−log p_y of each example."""
    chosen = probs.gather(1, targets[:, None])[:, 0]
    return -chosen.clamp_min(torch.finfo(probs.dtype).tiny).double().log()


def brier_each(probs: Tensor, targets: Tensor) -> Tensor:
    """Σ_k (p_k − 1[y = k])² of each example."""
    p = probs.double()
    return p.square().sum(1) - 2 * p.gather(1, targets[:, None])[:, 0] + 1
