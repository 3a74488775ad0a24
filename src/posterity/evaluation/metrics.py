"""The figures that an evaluation gives, by name: what they are called, which way is better, and where they can lie."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from posterity.types import PosterityError, hint

__all__ = ["METRICS", "Metric", "UnknownFigureError", "metric", "unknown"]


@dataclass(frozen=True)
class Metric:
    """A figure.

    Attributes:
        label: What a table's head says.
        better: +1 where more is better, −1 where less is, 0 where it is neither.
        low: The smallest value there can be.
        high: The largest.
        meaning: One line for those who see it for the first time.
    """

    label: str
    better: int
    meaning: str
    low: float = 0.0
    high: float = math.inf


_SHARE = {"low": 0.0, "high": 1.0}

METRICS: dict[str, Metric] = {
    "accuracy": Metric("accuracy", +1, "share of right answers", **_SHARE),
    "nll": Metric("NLL", -1, "negative log-likelihood in nats: judges every stated probability", low=-math.inf),
    "brier": Metric("Brier", -1, "squared distance between probabilities and what happened", 0.0, 2.0),
    "brier_calibration": Metric("Brier calibration", -1, "the part that honest probabilities would save", 0.0, 2.0),
    "brier_refinement": Metric("Brier refinement", -1, "the part that honest probabilities leave", low=-2.0, high=2.0),
    "ece": Metric("ECE", -1, "mean gap between confidence and accuracy, bins of equal width", **_SHARE),
    "ece_equal_mass": Metric("ECE (equal mass)", -1, "the same in bins of equally many examples", **_SHARE),
    "classwise_ece": Metric("classwise ECE", -1, "the same for the probability of every class", **_SHARE),
    "max_calibration_error": Metric("max. calibration error", -1, "the worst bin's gap", **_SHARE),
    "misclassification_auroc": Metric(
        "error AUROC", +1, "chance that a right answer is more confident than a wrong one", **_SHARE
    ),
    "aurc": Metric("AURC", -1, "mean error rate when only the most certain are answered", **_SHARE),
    "entropy": Metric("entropy", 0, "mean uncertainty of the predictions in nats"),
    "aleatoric": Metric("aleatoric", 0, "the part of it that more data would not remove"),
    "epistemic": Metric("epistemic", 0, "the part of it that more data would remove"),
    "ood_auroc": Metric("OOD AUROC", +1, "chance that a foreign input has more entropy than a known one", **_SHARE),
    "auroc_confidence": Metric("AUROC, confidence", +1, "known above foreign, by confidence", **_SHARE),
    "auroc_entropy": Metric("AUROC, entropy", +1, "known above foreign, by entropy", **_SHARE),
    "auroc_epistemic": Metric("AUROC, epistemic", +1, "known above foreign, by mutual information", **_SHARE),
    "aupr_confidence": Metric("AUPR, confidence", +1, "average precision of finding known inputs", **_SHARE),
    "aupr_entropy": Metric("AUPR, entropy", +1, "average precision of finding known inputs", **_SHARE),
    "aupr_epistemic": Metric("AUPR, epistemic", +1, "average precision of finding known inputs", **_SHARE),
    "fpr95_confidence": Metric("FPR95, confidence", -1, "foreign inputs let in with 95% of the known", **_SHARE),
    "fpr95_entropy": Metric("FPR95, entropy", -1, "foreign inputs let in with 95% of the known", **_SHARE),
    "fpr95_epistemic": Metric("FPR95, epistemic", -1, "foreign inputs let in with 95% of the known", **_SHARE),
    "entropy_kl": Metric("entropy KL", +1, "symmetrised KL of known and foreign entropy histograms"),
    "shift_accuracy": Metric("accuracy under shift", +1, "mean over corruptions and severities", **_SHARE),
    "shift_nll": Metric("NLL under shift", -1, "mean over corruptions and severities", low=-math.inf),
    "shift_ece": Metric("ECE under shift", -1, "mean over corruptions and severities", **_SHARE),
    "shift_rmse": Metric("RMSE under shift", -1, "mean over corruptions and severities"),
    "rmse": Metric("RMSE", -1, "root mean squared error in the units of the target"),
    "crps": Metric("CRPS", -1, "distance between the predicted distribution and what happened"),
    "coverage_50": Metric("50% coverage", 0, "share of targets inside the 50% interval", **_SHARE),
    "coverage_90": Metric("90% coverage", 0, "share of targets inside the 90% interval", **_SHARE),
    "coverage_95": Metric("95% coverage", 0, "share of targets inside the 95% interval", **_SHARE),
    "width_50": Metric("50% width", 0, "mean width of the 50% interval"),
    "width_90": Metric("90% width", 0, "mean width of the 90% interval"),
    "width_95": Metric("95% width", 0, "mean width of the 95% interval"),
    "temperature": Metric("temperature", 0, "what the logits are best divided by, found on validation data"),
    "nll_tempered": Metric("NLL, tempered", -1, "NLL after temperature scaling", low=-math.inf),
    "ece_tempered": Metric("ECE, tempered", -1, "ECE after temperature scaling", **_SHARE),
    "train_time": Metric("time to train", -1, "training time relative to MAP"),
    "predict_time": Metric("time to predict", -1, "prediction time relative to MAP"),
    "train_seconds": Metric("training, s", -1, "seconds of training"),
    "predict_ms": Metric("prediction, ms", -1, "milliseconds for the whole test set"),
    "memory_mb": Metric("MB", -1, "memory while training: weights, gradients, optimizer and collector"),
    "stored": Metric("stored", -1, "numbers that the posterior keeps"),
}


class UnknownFigureError(PosterityError, KeyError):
    """A figure that an evaluation does not have."""

    __str__ = PosterityError.__str__


def unknown(name: object, known: Iterable[str]) -> UnknownFigureError:
    """The error for a figure that is not there, with the one that was probably meant."""
    return UnknownFigureError(f"there is no figure called {name!r}: {hint(name, known)}")


def metric(name: str) -> Metric:
    """What a figure is; ``fashion/auroc_entropy`` is the AUROC of the out-of-distribution set ``fashion``."""
    group, _, own = name.rpartition("/")
    if own not in METRICS:
        raise unknown(name, METRICS)
    known = METRICS[own]
    return replace(known, label=f"{group}: {known.label}") if group else known
