"""Answering only when sure: what is gained by leaving the least certain examples to someone else?

With examples sorted by confidence, the most certain first, and e_i = 1 where example i is wrong:

    risk(k)   (e_1 + … + e_k)/k            the error rate when the k most certain are answered, at coverage k/n
    AURC      mean over k of risk(k)        (Geifman and El-Yaniv 2017); 0 where no answer is wrong

Among m equally confident examples the order is arbitrary, so each takes their mean error r. With M examples before them
and E errors, their part of the sum is r m + (E − r M)(H(M + m) − H(M)), H(k) = 1 + … + 1/k = ψ(k + 1) − ψ(1): exact for
resampled examples, too. The AUROC of misclassification (the AUROC column of the VOGN paper's tables) is the chance that
a right answer is more confident than a wrong one.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.evaluation.checks import checked, row_weights
from posterity.evaluation.ranking import auroc, by_score

__all__ = ["accuracy_coverage", "aurc", "misclassification_auroc"]


def misclassification_auroc(prediction: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
    """AUROC of confidence for telling right from wrong; needs some of both."""
    probs, targets = checked(prediction, targets)
    confidence, label = probs.max(1)
    return auroc(confidence, label == targets, weights)


def aurc(prediction: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
    """Area under the risk–coverage curve."""
    mass, errors = _by_confidence(prediction, targets, weights)
    reached = mass.cumsum(-1)
    before, missed = reached - mass, errors.cumsum(-1).sub_(errors)
    rate = errors / mass.clamp_min_(1e-12)
    harmonic = F.pad(reached, (1, 0)).add_(1).digamma_().diff()
    return (errors.sum(-1) + torch.linalg.vecdot(missed.sub_(rate.mul_(before)), harmonic)) / reached[..., -1]


def accuracy_coverage(prediction: Any, targets: Any, points: int = 101) -> tuple[Tensor, Tensor]:
    """Coverage from 1/n to 1 and the accuracy on the most certain examples at each."""
    mass, errors = _by_confidence(prediction, targets)
    wrong = (errors / mass).repeat_interleave(mass.long()).cumsum(0)
    n = len(wrong)
    kept = torch.linspace(1, n, min(points, n)).round().long().unique()
    return kept.double() / n, 1 - wrong[kept - 1] / kept


def _by_confidence(prediction: Any, targets: Any, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Examples and errors among them at each confidence, the highest first, both [..., confidences]."""
    probs, targets = checked(prediction, targets)
    confidence, label = probs.max(1)
    ordered, order = confidence.sort(descending=True)
    rows = row_weights(weights, len(probs)).index_select(-1, order).double()
    return by_score(ordered, rows), by_score(ordered, rows * (label != targets)[order])
