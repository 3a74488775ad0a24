"""How much each weight matters: pure functions from parameters to scores of the same names and shapes.

A score is *higher where the weight should be kept*, so every criterion feeds the same masks:

    signal to noise   |mean| / std
    log alpha         log(std² / mean²) = −2 log(signal to noise); LOWER is kept, a weight goes at log alpha ≥ 3
                      (https://arxiv.org/abs/1701.05369)
    magnitude         |w|
    random            uniform on [0, 1), the baseline every criterion has to beat

Only weights (matrices, kernels, embeddings: two dimensions or more) are pruned; biases and normalisation parameters
are a handful of numbers each, and are kept.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from posterity.types import Params, PosterityError

__all__ = ["by_unit", "log_alpha", "magnitude", "random", "signal_to_noise", "weights"]


def weights(params: Mapping[str, Tensor]) -> Params:
    """The parameters that pruning looks at: those with two dimensions or more."""
    return {name: value.detach() for name, value in params.items() if value.dim() >= 2}


def log_alpha(mean: Mapping[str, Tensor], variance: Mapping[str, Tensor]) -> Params:
    """Log of variance over squared mean, for every weight that has a variance.

    A mean of exactly zero gives +∞ whatever the variance: such a weight carries nothing.
    """
    scores = {}
    for name, value in weights(mean).items():
        if name not in variance or not bool(variance[name].any()):
            continue  # deterministic
        if bool((variance[name] < 0).any()):
            raise PosterityError(f"the variance of {name!r} has negative entries, expected none")
        ratio = variance[name].detach().log() - 2 * value.abs().log()
        scores[name] = ratio.masked_fill(value == 0, torch.inf)
    if not scores:
        raise PosterityError("this posterior has no variances, expected one for every weight: prune it by magnitude")
    return scores


def signal_to_noise(mean: Mapping[str, Tensor], variance: Mapping[str, Tensor]) -> Params:
    """|mean| / std of every weight that has a variance; infinite where the variance is zero and the mean is not."""
    return {name: torch.exp(-0.5 * value) for name, value in log_alpha(mean, variance).items()}


def magnitude(params: Mapping[str, Tensor]) -> Params:
    """|w| of every weight."""
    return {name: value.abs() for name, value in weights(params).items()}


def random(params: Mapping[str, Tensor], generator: torch.Generator) -> Params:
    """Scores that know nothing of the weights."""
    return {
        name: torch.rand(value.shape, generator=generator, device=generator.device).to(value.device)
        for name, value in weights(params).items()
    }


def by_unit(scores: Mapping[str, Tensor]) -> Params:
    """The mean score of each output unit (row or filter) in place of its weights', so that units go as a whole."""
    return {
        name: value.mean(dim=tuple(range(1, value.dim())), keepdim=True).expand_as(value)
        for name, value in scores.items()
    }
