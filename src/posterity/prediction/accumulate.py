"""Draws come in chunks and leave only sums: ten thousand of them take the memory of one chunk.

Class probabilities need their mean, variance and mean entropy; numbers need the mean and variance of E[y | f] and the
mean noise. Quantiles and densities of numbers need whole draws: the first ``COMPONENTS`` are kept (draws are
exchangeable), the moments use all. Outputs in half precision are summed in single, whose digits many draws need.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from posterity.prediction.prediction import Classification, Prediction, Regression
from posterity.probability.likelihoods import Likelihood
from posterity.probability.simplex import entropy, moments

COMPONENTS = 256


class Accumulator(Protocol):
    """Takes chunks of outputs [draws, batch, ...] and ends in a Prediction."""

    @property
    def count(self) -> int:
        """Draws so far."""
        ...

    def add(self, outputs: Tensor) -> None:
        """Take in a chunk of draws."""
        ...

    def error(self) -> Tensor | float:
        """The largest standard error of the mean so far."""
        ...

    def finish(self) -> Prediction:
        """The prediction of all draws so far."""
        ...


def accumulator(likelihood: Likelihood, keep_samples: bool = False) -> Accumulator:
    """The sums that this likelihood's predictions need."""
    return (ClassAccumulator if likelihood.classifies else RealAccumulator)(likelihood, keep_samples)


class _Moments:
    """Mean and population variance over draws, chunks merged as Chan, Golub and LeVeque do, so that nothing cancels."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, values: Tensor) -> None:
        own = len(values)
        mean, variance = moments(values)
        if self.count == 0:
            self.mean, self.variance, self.count = mean, variance, own
            return
        total = self.count + own
        step = mean - self.mean
        spread = step.square() * (self.count * own / total)
        self.variance = (self.variance * self.count + variance * own + spread) / total
        self.mean = self.mean + step * (own / total)
        self.count = total

    def error(self) -> Tensor | float:
        if self.count < 2:
            return math.inf
        return (self.variance.amax() / (self.count - 1)).sqrt()


class ClassAccumulator:
    """Σp, Σp² and ΣH[p] over draws."""

    def __init__(self, likelihood: Likelihood, keep_samples: bool) -> None:
        self.likelihood = likelihood
        self.moments = _Moments()
        self.entropies: Tensor | float = 0.0
        self.kept: list[Tensor] | None = [] if keep_samples else None

    @property
    def count(self) -> int:
        """Draws so far."""
        return self.moments.count

    def add(self, outputs: Tensor) -> None:
        """Take in logits [draws, batch, classes]."""
        outputs = _at_least_single(outputs)
        # As one batch: what a likelihood makes of one logit for a single input depends on the number of dimensions.
        probs = self.likelihood.probs(outputs.flatten(0, 1)).unflatten(0, outputs.shape[:2])
        self.moments.add(probs)
        self.entropies = self.entropies + entropy(probs).sum(0)
        if self.kept is not None:
            self.kept.append(probs)

    def error(self) -> Tensor | float:
        """The largest standard error of a probability."""
        return self.moments.error()

    def finish(self) -> Classification:
        """Probabilities, mean entropy and variance over all draws."""
        samples = torch.cat(self.kept) if self.kept is not None else None
        mean, count = self.moments.mean, self.count
        return Classification(
            count, samples, self.error(), mean, torch.as_tensor(self.entropies) / count, self.moments.variance
        )


class RealAccumulator:
    """Moments of E[y | f], the mean noise variance, and the first draws whole."""

    def __init__(self, likelihood: Likelihood, keep_samples: bool) -> None:
        self.likelihood = likelihood
        self.moments = _Moments()
        self.noise: Tensor | float = 0.0
        self.limit = math.inf if keep_samples else COMPONENTS
        self.keep_samples = keep_samples
        self.components: list[Tensor] = []

    @property
    def count(self) -> int:
        """Draws so far."""
        return self.moments.count

    def add(self, outputs: Tensor) -> None:
        """Take in outputs [draws, batch, ...]."""
        outputs = _at_least_single(outputs)
        room = self.limit - self.count
        if room > 0:
            self.components.append(outputs[: int(min(room, len(outputs)))])
        self.moments.add(self.likelihood.mean(outputs))
        self.noise = self.noise + self.likelihood.variance(outputs).sum(0)

    def error(self) -> Tensor | float:
        """The largest standard error of a mean."""
        return self.moments.error()

    def finish(self) -> Regression:
        """Mean, noise and spread over all draws."""
        components = torch.cat(self.components)
        noise = torch.as_tensor(self.noise) / self.count
        return Regression(
            self.count,
            components if self.keep_samples else None,
            self.error(),
            self.moments.mean,
            noise,
            self.moments.variance,
            components,
            self.likelihood,
        )


def _at_least_single(outputs: Tensor) -> Tensor:
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))
