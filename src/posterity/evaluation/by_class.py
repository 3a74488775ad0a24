"""How good, how sure and how sure of itself a classifier is on each class: what an average over a long tail hides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.evaluation import scores
from posterity.evaluation.checks import checked
from posterity.prediction import Classification

__all__ = ["ByClass", "by_class"]


@dataclass(frozen=True, eq=False)
class ByClass:
    """Means over the examples of each true class, [classes]; NaN where a class has none. Entropies in nats.

    Attributes:
        count: Examples of the class.
        predicted: How often the class is predicted, right or wrong.
        accuracy: The share of its examples that are recognised.
        nll: −log p(y).
        aleatoric: Uncertainty that more data would not take away.
        epistemic: Uncertainty that more data would take away: as a rule the larger, the rarer the class in training.
    """

    count: Tensor
    predicted: Tensor
    accuracy: Tensor
    nll: Tensor
    aleatoric: Tensor
    epistemic: Tensor


def by_class(prediction: Classification, targets: Any) -> ByClass:
    """Judge a prediction class by class.

    Args:
        prediction: What ``posterior.predict(inputs)`` gave.
        targets: The true classes, [n].
    """
    probs, targets = checked(prediction, targets)
    label, classes = probs.argmax(1), probs.shape[1]
    columns = {
        "accuracy": label == targets,
        "nll": scores.log_loss_each(probs, targets),
        "aleatoric": prediction.aleatoric.cpu(),
        "epistemic": prediction.epistemic.cpu(),
    }
    count = targets.bincount(minlength=classes)
    means = {
        name: torch.zeros(classes, dtype=torch.float64).index_add_(0, targets, column.double()) / count
        for name, column in columns.items()
    }
    return ByClass(count=count, predicted=label.bincount(minlength=classes), **means)
