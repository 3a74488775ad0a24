"""Temperature scaling: one number that makes every prediction more or less sure (Guo et al. 2017), for any posterior.

The logits of every draw are divided by T, and T minimises the NLL of the averaged prediction on held-out data:

    T* = argmin_T  −mean_i log mean_s softmax(f_s(x_i)/T)[y_i]

The temperature belongs to the likelihood, p(y | f) = softmax(f/T), so the result is the same kind of posterior as
before: it draws, predicts, prunes and is saved like any other.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from posterity.calling import map_inputs
from posterity.data.pieces import counted_once, to_choose_by
from posterity.posteriors.base import Posterior
from posterity.posteriors.conformal import Conformal
from posterity.prediction.targets import labelled
from posterity.probability.likelihoods import Bernoulli, Categorical
from posterity.types import PosterityError, PosterityWarning

__all__ = ["temper", "tempered"]

P = TypeVar("P", bound=Posterior)

_RANGE = 5.0
"""|log T| is sought up to here."""


def temper(posterior: P, validation: Any, draws: int = 32) -> P:
    """The same posterior with the temperature that fits held-out data best; it is ``likelihood.temperature``.

    Args:
        posterior: A classifier of any kind.
        validation: Data that the posterior was not fitted on: a pair of tensors, a Dataset, a loader, or a DataSet's
            validation part.
        draws: Networks averaged.
    """
    likelihood = _classifier(posterior)
    # At the highest temperature, where the probabilities still tell the logits of a network that is far too sure.
    hottest, logs, targets = tempered(posterior, likelihood.temperature * math.exp(_RANGE)), [], []
    for batch in counted_once(to_choose_by(validation)):
        inputs = map_inputs(batch.inputs, lambda t: t.to(posterior.device))
        samples = hottest.predict(inputs, draws, keep_samples=True).samples
        if samples is None:
            raise PosterityError(f"{type(posterior).__name__} predicts without draws, so it cannot be tempered")
        targets.append(labelled(batch.targets, samples[0]).flatten())
        samples = samples.flatten(1, -2)  # the words of a sentence and the pixels of an image one by one
        logs.append(samples.clamp_min(torch.finfo(samples.dtype).tiny).log().double().cpu())
    if not logs:
        raise PosterityError("there are no examples to find a temperature on")
    log_probs, labels = torch.cat(logs, 1), torch.cat(targets)
    found = minimise(lambda log_t: _nll(log_probs, labels, math.exp(log_t - _RANGE)), -_RANGE, _RANGE)
    if abs(found) > _RANGE - 0.01:
        verdict = "the network knows nothing of them" if found > 0 else "all of them are right, and too few to tell"
        warnings.warn(
            f"no temperature from {math.exp(-_RANGE):.3g} to {math.exp(_RANGE):.3g} fits these examples best, only the "
            f"{'highest' if found > 0 else 'lowest'}: {verdict}",
            PosterityWarning,
            stacklevel=2,
        )
    return tempered(posterior, likelihood.temperature * math.exp(found))


def tempered(posterior: P, temperature: float) -> P:
    """The same posterior with this temperature."""
    if isinstance(posterior, Conformal):
        raise PosterityError("a threshold of coverage holds at its own temperature: temper first, then conformal")
    likelihood = replace(_classifier(posterior), temperature=float(temperature))
    other = copy.copy(posterior)
    other.likelihood = likelihood
    if posterior.parts:
        other.parts = [tempered(part, temperature) for part in posterior.parts]
    return other


def minimise(function: Callable[[float], float], low: float, high: float, tolerance: float = 1e-4) -> float:
    """Where a function with one valley is smallest, by golden section."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = function(a), function(b)
    while high - low > tolerance:
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = function(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = function(b)
    return (low + high) / 2


def _nll(log_probs: Tensor, targets: Tensor, temperature: float) -> float:
    """NLL of the mean over draws at this many times their temperature; softmax(log p/T) is softmax(f/T)."""
    each = (log_probs / temperature).log_softmax(-1)
    chosen = each.gather(-1, targets.expand(len(each), -1).unsqueeze(-1))[..., 0]
    return -(torch.logsumexp(chosen, 0) - math.log(len(each))).mean().item()


def _classifier(posterior: Posterior) -> Categorical | Bernoulli:
    likelihood = posterior.likelihood
    if not isinstance(likelihood, Categorical | Bernoulli):
        raise PosterityError(f"a temperature divides class logits, but this posterior has {likelihood}")
    return likelihood
