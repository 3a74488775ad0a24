"""Answering only when sure: what is gained by leaving the least certain examples to someone else?

With examples sorted by confidence, the most certain first, and e_i = 1 where example i is wrong:

    risk(k)   (e_1 + … + e_k)/k            the error rate when the k most certain are answered, at coverage k/n
    AURC      mean over k of risk(k)        (Geifman and El-Yaniv 2017); 0 where no answer is wrong

Among equally confident examples the order is arbitrary, so each takes their mean error. The AUROC of misclassification
(the AUROC column of the VOGN paper's tables) is the chance that a right answer is more confident than a wrong one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posterity.evaluation.checks import checked, row_weights
from posterity.evaluation.ranking import auroc

__all__ = ["accuracy_coverage", "aurc", "misclassification_auroc"]


def misclassification_auroc(prediction: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
    """AUROC of confidence for telling right from wrong; needs some of both."""
    probs, targets = checked(prediction, targets)
    confidence, label = probs.max(1)
    return auroc(confidence, label == targets, weights)


def aurc(prediction: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
    """Area under the risk–coverage curve."""
    risk, rows = _risk(prediction, targets, weights)
    return (rows * risk).sum(-1) / rows.sum(-1)


def accuracy_coverage(prediction: Any, targets: Any, points: int = 101) -> tuple[Tensor, Tensor]:
    """Coverage from 1/n to 1 and the accuracy on the most certain examples at each."""
    risk, _ = _risk(prediction, targets, None)
    n = len(risk)
    kept = torch.linspace(1, n, min(points, n)).round().long().unique()
    return kept.double() / n, 1 - risk[kept - 1]


def _risk(prediction: Any, targets: Any, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """The error rate up to each example, the most certain first, and the weights in that order."""
    probs, targets = checked(prediction, targets)
    confidence, label = probs.max(1)
    ordered, order = confidence.sort(descending=True, stable=True)
    rows = row_weights(weights, len(probs))[..., order]
    wrong = (label != targets)[order].to(rows.dtype)
    errors = _shared_among_ties(ordered, rows * wrong, rows)
    return errors.cumsum(-1) / rows.cumsum(-1).clamp_min(1e-12), rows


def _shared_among_ties(ordered: Tensor, errors: Tensor, rows: Tensor) -> Tensor:
    """Weighted errors, spread evenly over examples of the same confidence."""
    groups, index = ordered.unique_consecutive(return_inverse=True)
    if len(groups) == len(ordered):
        return errors
    empty = torch.zeros(*rows.shape[:-1], len(groups), dtype=rows.dtype)
    total, mass = empty.index_add(-1, index, errors), empty.index_add(-1, index, rows)
    return rows * (total / mass.clamp_min(1e-12))[..., index]
