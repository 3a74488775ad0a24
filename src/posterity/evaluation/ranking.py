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

from posterity.evaluation.checks import row_weights, same_length
from posterity.types import PosterityError

__all__ = ["aupr", "auroc", "fpr_at_tpr"]


def auroc(scores: Any, positive: Any, weights: Tensor | None = None) -> Tensor:
    """Area under the receiver operating curve."""
    true, false = _curve(scores, positive, weights)
    area = ((true[..., 1:] + true[..., :-1]) / 2 * false.diff(dim=-1)).sum(-1)
    return area / (true[..., -1] * false[..., -1])


def aupr(scores: Any, positive: Any, weights: Tensor | None = None) -> Tensor:
    """Average precision: the area under the precision–recall curve in steps."""
    true, false = _curve(scores, positive, weights)
    precision = true[..., 1:] / (true[..., 1:] + false[..., 1:]).clamp_min(1e-12)
    return (true.diff(dim=-1) * precision).sum(-1) / true[..., -1]


def fpr_at_tpr(scores: Any, positive: Any, level: float = 0.95, weights: Tensor | None = None) -> Tensor:
    """The share of negatives let through where ``level`` of the positives are, interpolated."""
    if not 0 < level <= 1:
        raise PosterityError(f"a true positive rate lies in (0, 1], got {level!r}")
    true, false = _curve(scores, positive, weights)
    wanted = level * true[..., -1:]
    above = torch.searchsorted(true.contiguous(), wanted.contiguous()).clamp(1, true.shape[-1] - 1)
    t0, t1 = true.gather(-1, above - 1), true.gather(-1, above)
    f0, f1 = false.gather(-1, above - 1), false.gather(-1, above)
    share = (wanted - t0) / (t1 - t0).clamp_min(1e-12)
    return ((f0 + share * (f1 - f0)) / false[..., -1:])[..., 0]


def _curve(scores: Any, positive: Any, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Positives and negatives at or above each distinct score, from the highest down, starting at none."""
    scores, positive = torch.as_tensor(scores).double().cpu(), torch.as_tensor(positive).bool().cpu()
    same_length(scores=scores, labels=positive)
    if positive.all() or not positive.any():
        which = "positive" if positive.all() else "negative"
        raise PosterityError(f"ranking needs positives and negatives, but all {len(scores)} examples are {which}")
    rows = row_weights(weights, len(scores))
    ordered, order = scores.sort(descending=True)
    last = torch.cat([ordered[1:] != ordered[:-1], torch.ones(1, dtype=torch.bool)]).nonzero()[:, 0]
    kinds = positive[order].to(rows.dtype)
    sorted_rows = rows[..., order]
    true = (sorted_rows * kinds).cumsum(-1)[..., last]
    false = (sorted_rows * (1 - kinds)).cumsum(-1)[..., last]
    start = torch.zeros_like(true[..., :1])
    return torch.cat([start, true], -1), torch.cat([start, false], -1)
