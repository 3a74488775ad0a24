"""Is a stated confidence the frequency of being right?

Examples are put in bins by their confidence c = max p; in bin b let n_b be their number, acc_b the share that is right
and conf_b the mean confidence:

    ECE            Σ_b n_b/n |acc_b − conf_b|          bins of equal width, or of equal mass (as many examples each)
    maximum        max_b |acc_b − conf_b|              over bins with any examples
    classwise ECE  mean over classes k of Σ_b n_b/n |freq_b − p_b|, binned by p_k   (Kull et al. 2019)

Bins are [low, high), the last one closed. A finite sample is never perfectly calibrated: for honest probabilities the
ECE is about Σ_b √(2 conf_b(1 − conf_b) n_b/π)/n, which falls as 1/√n. torchmetrics agrees except that it gives a
confidence of exactly one a bin of its own, which moves the maximum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from posterity.evaluation.checks import checked, row_weights
from posterity.types import PosterityError

__all__ = [
    "Reliability",
    "class_bins",
    "classwise_ece",
    "classwise_gaps",
    "ece",
    "max_calibration_error",
    "reliability",
]


def equal_width(bins: int) -> Tensor:
    """Edges of ``bins`` equal parts of [0, 1]."""
    if not isinstance(bins, SupportsIndex) or bins < 1:
        raise PosterityError(f"bins must be a positive whole number, got {bins!r}")
    return torch.arange(bins + 1, dtype=torch.float64) / bins


def equal_mass(values: Tensor, bins: int) -> Tensor:
    """Edges between which equally many of ``values`` lie; fewer bins where many values are the same.

    Where those are ones, as of a very sure network, they have a bin of their own between two edges at one.
    """
    levels, values = equal_width(bins)[1:-1].numpy(), values.double()
    inner = torch.from_numpy(np.quantile(values.numpy(), levels)).unique()  # torch's own has a largest size
    return torch.cat([torch.zeros(1), inner[inner > values.min()], torch.ones(1)])


def bin_index(values: Tensor, edges: Tensor) -> Tensor:
    """Which bin [low, high) each value falls in, both in the values' precision; the last bin is closed."""
    return torch.bucketize(values.double().contiguous(), edges[1:-1].to(values.dtype).double(), right=True)


def binned(index: Tensor, bins: int, values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Total weight and weighted sum of ``values`` in each bin, both [..., bins]."""
    members = torch.nn.functional.one_hot(index, bins).to(weights.dtype)
    sums = weights @ torch.cat([members, members * values[:, None].to(weights.dtype)], 1)
    return sums[..., :bins], sums[..., bins:]


def ece(prediction: Any, targets: Any, bins: int = 15, mass: bool = False, weights: Tensor | None = None) -> Tensor:
    """Expected calibration error.

    Args:
        prediction: A Classification or probabilities [n, classes].
        targets: Classes [n].
        bins: How many bins.
        mass: Bins of equal mass instead of equal width; resampling keeps the bins of the whole sample.
        weights: How often each example counts, [..., n].
    """
    _, gaps, weights = _gaps(prediction, targets, bins, mass, weights)
    return gaps.abs().sum(-1) / weights.sum(-1)


def max_calibration_error(prediction: Any, targets: Any, bins: int = 15, weights: Tensor | None = None) -> Tensor:
    """The largest gap between accuracy and confidence over bins of equal width that hold any examples."""
    held, gaps, _ = _gaps(prediction, targets, bins, False, weights)
    return torch.where(held > 0, gaps.abs() / held.clamp_min(1e-12), 0).amax(-1)


def classwise_ece(prediction: Any, targets: Any, bins: int = 15, weights: Tensor | None = None) -> Tensor:
    """The calibration error of every class's probability, averaged over classes."""
    probs, targets = checked(prediction, targets)
    weights = row_weights(weights, len(probs))
    return mean_class_gap(class_bins(probs, targets, bins, weights)[1], weights)


def class_bins(probs: Tensor, targets: Tensor, bins: int, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and sum of 1[y = k] − p_k for each class k and bin of p_k, both [..., classes, bins]."""
    edges = equal_width(bins)
    parts = [
        binned(bin_index(probs[:, k], edges), bins, (targets == k).double() - probs[:, k], weights)
        for k in range(probs.shape[1])
    ]
    return torch.stack([mass for mass, _ in parts], -2), torch.stack([gap for _, gap in parts], -2)


def mean_class_gap(gaps: Tensor, weights: Tensor) -> Tensor:
    """The classwise calibration error, from the gaps of ``class_bins``."""
    return gaps.abs().sum((-1, -2)) / weights.sum(-1) / gaps.shape[-2]


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: per bin the number of examples, their mean confidence and their accuracy (nan if none)."""

    edges: list[float]
    count: list[int]
    confidence: list[float]
    accuracy: list[float]


def reliability(prediction: Any, targets: Any, bins: int = 15) -> Reliability:
    """What a reliability diagram shows, in bins of equal width."""
    probs, targets = checked(prediction, targets)
    confidence, label = probs.max(1)
    edges = equal_width(bins)
    index, ones = bin_index(confidence, edges), torch.ones(len(probs), dtype=torch.float64)
    count, sure = binned(index, bins, confidence, ones)
    _, right = binned(index, bins, label == targets, ones)
    return Reliability(edges.tolist(), count.long().tolist(), (sure / count).tolist(), (right / count).tolist())


def classwise_gaps(prediction: Any, targets: Any, bins: int = 10) -> tuple[Tensor, Tensor]:
    """Frequency minus mean probability for each class and bin of that probability, and the counts: [classes, bins]."""
    probs, targets = checked(prediction, targets)
    counts, gaps = class_bins(probs, targets, bins, row_weights(None, len(probs)))
    return gaps / counts, counts.long()


def _gaps(
    prediction: Any, targets: Any, bins: int, mass: bool, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Weight and sum of (right − confidence) in each bin of confidence, and the rows of weights."""
    probs, targets = checked(prediction, targets)
    confidence, label = probs.max(1)
    edges = equal_mass(confidence, bins) if mass else equal_width(bins)
    rows = row_weights(weights, len(probs))
    held, gaps = binned(bin_index(confidence, edges), len(edges) - 1, (label == targets).double() - confidence, rows)
    return held, gaps, rows
