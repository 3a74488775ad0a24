"""How well does a score rank positives above negatives? Ties count half; every figure takes weighted examples.

Going down the distinct scores, T and F count the positives and negatives so far:

    AUROC       ∫ T dF / (T_all F_all), the chance that a positive scores above a negative (trapezoids: ties count half)
    AUPR        Σ (T_k − T_{k−1})/T_all · T_k/(T_k + F_k)                                  (average precision)
    FPR at TPR  F/F_all where T/T_all reaches the level, interpolated linearly between the neighbouring thresholds
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posterity.evaluation.checks import row_weights
from posterity.prediction.targets import same_length
from posterity.types import PosterityError

__all__ = ["Ranking", "aupr", "auroc", "by_score", "fpr_at_tpr"]


def auroc(scores: Any, positive: Any, weights: Tensor | None = None) -> Tensor:
    """Area under the receiver operating curve."""
    return Ranking(scores, positive, weights).auroc()


def aupr(scores: Any, positive: Any, weights: Tensor | None = None) -> Tensor:
    """Average precision: the area under the precision–recall curve in steps."""
    return Ranking(scores, positive, weights).aupr()


def fpr_at_tpr(scores: Any, positive: Any, level: float = 0.95, weights: Tensor | None = None) -> Tensor:
    """The share of negatives let through where ``level`` of the positives are, interpolated."""
    return Ranking(scores, positive, weights).fpr(level)


class Ranking:
    """Examples sorted by score once, for any of the figures.

    Args:
        scores: One number an example; high should mean positive.
        positive: Which examples are.
        weights: How often each counts, [..., n].
    """

    def __init__(self, scores: Any, positive: Any, weights: Tensor | None = None) -> None:
        scores, positive = torch.as_tensor(scores).double().cpu(), torch.as_tensor(positive).bool().cpu()
        same_length(scores=scores, labels=positive)
        if positive.all() or not positive.any():
            which = "positive" if positive.all() else "negative"
            raise PosterityError(f"ranking needs positives and negatives, but all {len(scores)} examples are {which}")
        ordered, order = scores.sort(descending=True)
        rows = row_weights(weights, len(scores)).index_select(-1, order)
        hits = rows * positive[order]
        self.true, self.false = (by_score(ordered, part) for part in (hits, rows - hits))
        self.true_so_far, self.false_so_far = self.true.cumsum(-1), self.false.cumsum(-1)

    def auroc(self) -> Tensor:
        """∫ T dF, by trapezoids: Σ f (T − t/2)."""
        vecdot = torch.linalg.vecdot
        area = vecdot(self.false, self.true_so_far) - vecdot(self.false, self.true) / 2
        return area / (self.true_so_far[..., -1] * self.false_so_far[..., -1])

    def aupr(self) -> Tensor:
        """Precision at every step, weighted by the positives found there."""
        precision = self.true_so_far / (self.true_so_far + self.false_so_far).clamp_min(1e-12)
        return torch.linalg.vecdot(self.true, precision) / self.true_so_far[..., -1]

    def fpr(self, level: float = 0.95) -> Tensor:
        """F where T reaches the level, between the thresholds before and after."""
        if not 0 < level <= 1:
            raise PosterityError(f"a true positive rate lies in (0, 1], got {level!r}")
        wanted = level * self.true_so_far[..., -1:]
        at = torch.searchsorted(self.true_so_far, wanted).clamp_max(self.true.shape[-1] - 1)
        missing = (self.true_so_far.gather(-1, at) - wanted) / self.true.gather(-1, at).clamp_min(1e-12)
        found = self.false_so_far.gather(-1, at) - missing * self.false.gather(-1, at)
        return (found / self.false_so_far[..., -1:])[..., 0]


def by_score(ordered: Tensor, rows: Tensor) -> Tensor:
    """Sums over examples of the same score."""
    distinct, index = ordered.unique_consecutive(return_inverse=True)
    if len(distinct) == len(ordered):
        return rows
    return torch.zeros(*rows.shape[:-1], len(distinct), dtype=rows.dtype).index_add_(-1, index, rows)
