"""Draws come in chunks and leave only sums: ten thousand of them take the memory of one chunk.

Class probabilities need their mean, variance and mean entropy; numbers need the mean and variance of E[y | f] and the
mean noise. Quantiles and densities of numbers need whole draws: the first ``COMPONENTS`` are kept (draws are
exchangeable), the moments use all. Outputs in half precision are summed in single, whose digits many draws need.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posterity.prediction.prediction import Classification, Prediction, Regression
from posterity.probability.likelihoods import Likelihood
from posterity.probability.simplex import entropy, moments

COMPONENTS = 256


class Accumulator:
    """Takes chunks of outputs [draws, batch, ...] and ends in a Prediction."""

    def __init__(self, likelihood: Likelihood, keep_samples: bool) -> None:
        self.likelihood, self.keep_samples = likelihood, keep_samples
        self.moments = _Moments()  # of the probabilities, or of E[y | f]

    @property
    def count(self) -> int:
        """Draws so far."""
        return self.moments.count

    def error(self) -> Tensor | float:
        """The largest standard error of a probability, or of a mean, so far."""
        return self.moments.error()

    def add(self, outputs: Tensor) -> None:
        """Take in a chunk of draws."""
        raise NotImplementedError

    def finish(self) -> Prediction:
        """The prediction of all draws so far."""
        raise NotImplementedError


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


class ClassAccumulator(Accumulator):
    """Mean and variance of the probabilities, and ΣH[p], over draws."""

    def __init__(self, likelihood: Likelihood, keep_samples: bool) -> None:
        super().__init__(likelihood, keep_samples)
        self.entropies: Tensor | float = 0.0
        self.kept: list[Tensor] = []

    def add(self, outputs: Tensor) -> None:
        """Take in logits [draws, batch, classes]."""
        outputs = _at_least_single(outputs)
        # As one batch: what a likelihood makes of one logit for a single input depends on the number of dimensions.
        probs = self.likelihood.probs(outputs.flatten(0, 1)).unflatten(0, outputs.shape[:2])
        self.moments.add(probs)
        self.entropies = self.entropies + entropy(probs).sum(0)
        if self.keep_samples:
            self.kept.append(probs)

    def finish(self) -> Classification:
        """Probabilities, mean entropy and variance over all draws."""
        return Classification(
            draws=self.count,
            samples=torch.cat(self.kept) if self.keep_samples else None,
            error=self.error(),
            probs=self.moments.mean,
            aleatoric=torch.as_tensor(self.entropies) / self.count,
            variance=self.moments.variance,
        )


class RealAccumulator(Accumulator):
    """Moments of E[y | f], the sum of the noise variances, and the first draws whole."""

    def __init__(self, likelihood: Likelihood, keep_samples: bool) -> None:
        super().__init__(likelihood, keep_samples)
        self.noise: Tensor | float = 0.0
        self.limit = math.inf if keep_samples else COMPONENTS
        self.components: list[Tensor] = []

    def add(self, outputs: Tensor) -> None:
        """Take in outputs [draws, batch, ...]."""
        outputs = _at_least_single(outputs)
        room = self.limit - self.count
        if room > 0:
            self.components.append(outputs[: int(min(room, len(outputs)))])
        self.moments.add(self.likelihood.mean(outputs))
        self.noise = self.noise + self.likelihood.variance(outputs).sum(0)

    def finish(self) -> Regression:
        """Mean, noise and spread over all draws."""
        components = torch.cat(self.components)
        return Regression(
            draws=self.count,
            samples=components if self.keep_samples else None,
            error=self.error(),
            mean=self.moments.mean,
            aleatoric=torch.as_tensor(self.noise) / self.count,
            epistemic=self.moments.variance,
            components=components,
            likelihood=self.likelihood,
        )


def _at_least_single(outputs: Tensor) -> Tensor:
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))
