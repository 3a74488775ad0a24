"""Judging class probabilities: which figures, and what the plots of a classifier need."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from posterity.evaluation import calibration, scores, selective
from posterity.evaluation.checks import checked, row_weights, weighted_mean
from posterity.evaluation.gather import Gathered
from posterity.prediction import Classification

__all__ = ["ClassJudge"]

_COLUMNS = ("probs", "aleatoric", "variance")
EXAMPLES = 6
"""How many of the most and of the least certain examples are remembered."""


class ClassJudge:
    """Evaluates ``Classification`` predictions.

    Args:
        bins: Bins of the calibration errors.
    """

    def __init__(self, bins: int = 15) -> None:
        self.bins = bins

    def rows(self, prediction: Classification, targets: Tensor) -> tuple[Classification, Tensor, int]:
        """One row for each label: the words of a sentence and the pixels of an image are judged one by one."""
        positions = prediction.probs.shape[1:-1]
        if not positions:
            return prediction, targets, 1
        flat = replace(
            prediction,
            probs=prediction.probs.flatten(0, -2),
            aleatoric=prediction.aleatoric.flatten(),
            variance=prediction.variance.flatten(0, -2),
            samples=None if prediction.samples is None else prediction.samples.flatten(1, -2),
        )
        return flat, targets.flatten(), positions.numel()

    def light(self, prediction: Classification) -> Classification:
        """Probabilities and uncertainties on the CPU."""
        columns = {name: getattr(prediction, name).cpu() for name in _COLUMNS}
        return replace(prediction, samples=None, **columns)

    def joined(self, parts: list[Classification]) -> Classification:
        """All examples together."""
        columns: dict[str, Any] = {name: torch.cat([getattr(p, name) for p in parts]) for name in _COLUMNS}
        return replace(parts[0], error=max(p.monte_carlo_error for p in parts), **columns)

    def only(self, prediction: Classification, chosen: list[int]) -> Classification:
        """The mean of these draws' probabilities."""
        assert prediction.samples is not None
        return replace(prediction, draws=len(chosen), probs=prediction.samples[chosen].mean(0))

    def each(self, prediction: Classification, targets: Tensor) -> Tensor:
        """Whether wrong, and log p(y)."""
        probs, targets = checked(prediction, targets)
        return torch.stack([(probs.argmax(1) != targets).double(), -scores.log_loss_each(probs, targets)])

    def figures(self, prediction: Classification, targets: Tensor) -> Callable[[Tensor | None], dict[str, Tensor]]:
        """All figures of a classifier; the AUROC of errors only where there are some."""
        probs, targets = checked(prediction, targets)
        right = probs.argmax(1) == targets
        mixed = bool(right.any()) and not bool(right.all())

        def figures(weights: Tensor | None) -> dict[str, Tensor]:
            rows = row_weights(weights, len(probs))
            mass, gaps = calibration.class_bins(probs, targets, self.bins, rows)
            calibrated, brier = scores.squared_class_gap(mass, gaps, rows), scores.brier(probs, targets, weights)
            found = {
                "accuracy": weighted_mean(right, weights),
                "nll": scores.nll(probs, targets, weights),
                "brier": brier,
                "brier_calibration": calibrated,
                "brier_refinement": brier - calibrated,
                "ece": calibration.ece(probs, targets, self.bins, weights=weights),
                "ece_equal_mass": calibration.ece(probs, targets, self.bins, mass=True, weights=weights),
                "classwise_ece": calibration.mean_class_gap(gaps, rows),
                "max_calibration_error": calibration.max_calibration_error(probs, targets, self.bins, weights),
                "aurc": selective.aurc(probs, targets, weights),
                "entropy": weighted_mean(prediction.entropy, weights),
                "aleatoric": weighted_mean(prediction.aleatoric, weights),
                "epistemic": weighted_mean(prediction.epistemic, weights),
            }
            if mixed:
                found["misclassification_auroc"] = selective.misclassification_auroc(probs, targets, weights)
            return found

        return figures

    def shifted(self, prediction: Classification, targets: Tensor) -> Callable[[Tensor | None], dict[str, Tensor]]:
        """Accuracy, NLL and ECE."""
        return lambda weights: {
            "accuracy": scores.accuracy(prediction, targets, weights),
            "nll": scores.nll(prediction, targets, weights),
            "ece": calibration.ece(prediction, targets, self.bins, weights=weights),
        }

    def details(self, gathered: Gathered) -> dict[str, Any]:
        """Reliability, coverage, entropies, calibration of every class, and single examples."""
        prediction, targets = gathered.prediction, gathered.targets
        covered, accuracies = selective.accuracy_coverage(prediction, targets)
        gaps, counts = calibration.classwise_gaps(prediction, targets)
        return {
            "reliability": asdict(calibration.reliability(prediction, targets, self.bins)),
            "coverage": {"coverage": covered.tolist(), "accuracy": accuracies.tolist()},
            "classes": {"gap": gaps.tolist(), "count": counts.tolist()},
            "entropy": {"test": entropy_shares(prediction)},
            "examples": _examples(prediction, targets) if gathered.owner is None else [],
        }


def entropy_shares(prediction: Classification, bins: int = 40) -> list[float]:
    """The share of examples in equal parts of the entropies from 0 to log(classes)."""
    scaled = prediction.entropy.double() / math.log(prediction.probs.shape[1])
    index = (scaled * bins).long().clamp(0, bins - 1)
    return (torch.bincount(index, minlength=bins) / len(index)).tolist()


def _examples(prediction: Classification, targets: Tensor) -> list[dict[str, Any]]:
    """The most uncertain examples, then the most certain, each with its whole prediction."""
    order = prediction.entropy.argsort(descending=True, stable=True)
    count = min(EXAMPLES, len(order) // 2)
    return [
        {
            "index": int(i),
            "target": int(targets[i]),
            "label": int(prediction.label[i]),
            "probs": [round(p, 4) for p in prediction.probs[i].tolist()],
            "aleatoric": float(prediction.aleatoric[i]),
            "epistemic": float(prediction.epistemic[i]),
        }
        for i in [*order[:count].tolist(), *order[len(order) - count :].flip(0).tolist()]
    ]
