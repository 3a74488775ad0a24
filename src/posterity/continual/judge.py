"""The few figures that are followed over a stream of tasks."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from posterity.continual.tasks import Pair
from posterity.evaluation.calibration import ece
from posterity.evaluation.scores import accuracy, nll
from posterity.posteriors import Posterior
from posterity.probability.likelihoods import Likelihood

__all__ = ["judged"]

PIECE = 2000  # examples predicted at once


def judged(posterior: Posterior, test: Pair, draws: int, asked: Likelihood | None = None) -> dict[str, float]:
    """Accuracy, NLL and calibration error of classes; root mean square error and NLL of numbers.

    Args:
        posterior: What is judged.
        test: Inputs and targets.
        draws: Networks averaged.
        asked: The likelihood to predict with instead of the posterior's own, such as that of one head.
    """
    if asked is not None:
        posterior = copy.copy(posterior)
        posterior.likelihood = asked
    inputs, targets = test
    parts: list[tuple[Any, Tensor]] = [
        (posterior.predict(x.to(posterior.device), draws), y.to(posterior.device))
        for x, y in zip(inputs.split(PIECE), targets.split(PIECE), strict=True)
    ]
    if not posterior.likelihood.classifies:
        squares = torch.cat([(p.mean - y.view_as(p.mean)).square().flatten() for p, y in parts])
        log_density = torch.cat([p.log_prob(y) for p, y in parts])
        return {"rmse": float(squares.mean().sqrt()), "nll": -float(log_density.mean())}
    probs = torch.cat([p.probs.flatten(0, -2) for p, _ in parts]).cpu()  # words and pixels count each
    labels = torch.cat([y.flatten() for _, y in parts]).cpu()
    return {name: float(score(probs, labels)) for name, score in (("accuracy", accuracy), ("nll", nll), ("ece", ece))}
