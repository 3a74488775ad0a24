"""Scores of predictive distributions of numbers, smaller is better; F is the predictive distribution function.

    RMSE       √mean (y − E[y])²
    NLL        mean −log p(y), summed over what an example holds                      in nats
    CRPS       mean ∫ (F(v) − 1[v ≥ y])² dv                        in the units of y; |y − m| for a point m
    coverage   the share of y inside the central interval of a level: should be the level
    width      the mean width of that interval: small is good among those that cover
    PIT        F(y), uniform on [0, 1] when the distributions are right; for counts halfway up the step at y

For N(m, s²) and z = (y − m)/s the CRPS is s (z(2Φ(z) − 1) + 2φ(z) − 1/√π) (Gneiting and Raftery 2007); for S draws it
is mean |x_i − y| − ½ mean |x_i − x_j|. For a mixture of Normals, which draws with Gaussian noise are, it is the same
with E|x_i − y| and E|x_i − x_j|, both closed (Grimit et al. 2006); for counts it is summed over the steps of F.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity.evaluation.checks import weighted_mean
from posterity.prediction import Regression
from posterity.prediction.targets import real_targets
from posterity.probability.likelihoods import Gaussian, HeteroscedasticGaussian
from posterity.types import PosterityError, check_level

__all__ = ["coverage", "crps", "crps_gaussian", "crps_samples", "nll", "pit", "rmse", "width"]

_CACHE_FLOATS = 2**15  # of the differences of draws at a time
_NODES = 48
_REACH = 8.0
"""Standard deviations beyond which a predictive distribution is taken to have ended."""
_STEPS = 1000
"""Counts that are summed one by one; where there are more, their std is so large that steps of one are nothing."""


def rmse(prediction: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
    """Root mean squared error of a Regression, or of means given as they are."""
    mean = prediction.mean if isinstance(prediction, Regression) else torch.as_tensor(prediction)
    targets = real_targets(targets, mean)
    return weighted_mean(_rows((mean.cpu() - targets).double().square()), weights).sqrt()


def nll(prediction: Regression, targets: Any, weights: Tensor | None = None) -> Tensor:
    """Mean negative log density of the targets."""
    return weighted_mean(-log_density_each(prediction, targets), weights)


def crps(prediction: Regression, targets: Any, weights: Tensor | None = None) -> Tensor:
    """Mean continuous ranked probability score of the mixture of draws."""
    return weighted_mean(_rows(crps_each(prediction, targets)), weights)


def crps_gaussian(mean: Any, std: Any, targets: Any) -> Tensor:
    """The score of N(mean, std²) for each target, in closed form."""
    mean, std, targets = (torch.as_tensor(value).double() for value in (mean, std, targets))
    if not (std > 0).all():
        raise PosterityError(f"std must be positive, got {std.min().item()!r}")
    z = (targets - mean) / std
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return std * (z * (2 * torch.special.ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))


def crps_samples(samples: Any, targets: Any) -> Tensor:
    """The score of the empirical distribution of samples [draws, ...] for each target [...].

    Σ_{i<j} |x_i − x_j| comes from the sorted samples as Σ_i (2i − S − 1) x_(i), so the cost is that of sorting.
    """
    samples, targets = torch.as_tensor(samples).double(), torch.as_tensor(targets).double()
    if samples.ndim < 1 or samples.shape[1:] != targets.shape or not len(samples):
        raise PosterityError(
            f"samples must be [draws, *targets], got {tuple(samples.shape)} for targets {tuple(targets.shape)}"
        )
    count = len(samples)
    rank = (2 * torch.arange(1, count + 1) - count - 1).double().view(-1, *[1] * targets.ndim)
    spread = (rank * samples.sort(0).values).sum(0) / count**2
    return (samples - targets).abs().mean(0) - spread


def pit(prediction: Regression, targets: Any) -> Tensor:
    """F(y): where each target falls in its predictive distribution."""
    below, reached = ends(prediction, targets)
    return (below + reached) / 2


def ends(prediction: Regression, targets: Any) -> tuple[Tensor, Tensor]:
    """P(Y < y) and P(Y ≤ y) of each target, which differ for counts only."""
    y = real_targets(targets, prediction.mean).to(prediction.mean)
    reached = prediction.cdf(y).double().cpu()
    return prediction.cdf(y - 1).double().cpu() if prediction.likelihood.counts else reached, reached


def coverage(prediction: Regression, targets: Any, level: float = 0.95, weights: Tensor | None = None) -> Tensor:
    """The share of targets inside the central interval of this level."""
    check_level(level)
    return weighted_mean(_rows(inside(ends(prediction, targets), level)), weights)


def width(prediction: Regression, level: float = 0.95, weights: Tensor | None = None) -> Tensor:
    """The mean width of the central intervals of this level."""
    low, high = prediction.interval(level)
    return weighted_mean(_rows((high - low).double().cpu()), weights)


def inside(quantiles: tuple[Tensor, Tensor], level: float) -> Tensor:
    """Whether a target between these quantiles of its distribution (``ends``) lies in the central interval."""
    below, reached = quantiles
    return ((below < (1 + level) / 2) & (reached >= (1 - level) / 2)).double()


def log_density_each(prediction: Regression, targets: Any) -> Tensor:
    """log p(y) of each example."""
    return prediction.log_prob(real_targets(targets, prediction.mean).to(prediction.mean)).double().cpu()


def crps_each(prediction: Regression, targets: Any) -> Tensor:
    """The score of each target: closed for Normals, the sum over counts, or Gauss–Legendre on both sides of it."""
    y = real_targets(targets, prediction.mean).to(prediction.mean)
    if isinstance(prediction.likelihood, Gaussian | HeteroscedasticGaussian):
        return _crps_normals(prediction, y.double()).cpu()
    reach = _REACH * prediction.std
    low, high = prediction.mean - reach, prediction.mean + reach
    if prediction.likelihood.counts:
        return _crps_counts(prediction, y, low.floor(), high.ceil()).cpu()
    middle = torch.minimum(torch.maximum(y, low), high)
    total = (y - middle).abs()  # beyond the reach the integrand is one
    for node, share in zip(*np.polynomial.legendre.leggauss(_NODES), strict=True):
        position = (float(node) + 1) / 2
        below, above = low + position * (middle - low), middle + position * (high - middle)
        total = total + float(share) / 2 * (middle - low) * prediction.cdf(below).square()
        total = total + float(share) / 2 * (high - middle) * (1 - prediction.cdf(above)).square()
    return total.double().cpu()


def _crps_counts(prediction: Regression, y: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The sum over the steps of F from low to high; where they are many, that of Normals with the counts' moments."""
    middle = torch.minimum(torch.maximum(y, low), high)
    total = (y - middle).abs()  # beyond the reach each step is one
    for count in (low + step for step in range(min(int((high - low).max()), _STEPS))):
        total = total + (prediction.cdf(count) - (count >= middle).to(total)).square()
    many = high - low > _STEPS
    return torch.where(many, _crps_normals(prediction, y.double()), total.double()) if many.any() else total.double()


def _crps_normals(prediction: Regression, y: Tensor) -> Tensor:
    """The score of an equal mixture of Normals, a few examples at a time: there are as many pairs of draws for each."""
    likelihood, f = prediction.likelihood, prediction.components.double()
    mean, variance = likelihood.mean(f), likelihood.variance(f)
    some = max(1, _CACHE_FLOATS // mean[:, 0].numel()) if mean.device.type == "cpu" else len(y)
    parts = zip(mean.split(some, 1), variance.split(some, 1), y.split(some), strict=True)
    return torch.cat([_crps_of_normals(*part) for part in parts])


def _crps_of_normals(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """E|X − y| − ½ E|X − X'|, the Normals along the first dimension."""
    apart = _expected_abs(torch.zeros_like(mean), 2 * variance).sum(0)  # two of one Normal, and each other pair twice
    for i in range(len(mean) - 1):
        apart += 2 * _expected_abs(mean[i + 1 :] - mean[i], variance[i + 1 :] + variance[i]).sum(0)
    return _expected_abs(y - mean, variance).mean(0) - apart / (2 * len(mean) ** 2)


def _expected_abs(mean: Tensor, variance: Tensor) -> Tensor:
    """E|N(m, s²)| = 2 s φ(m/s) + m (2Φ(m/s) − 1)."""
    std = variance.sqrt()
    z = mean / std
    return std * math.sqrt(2 / math.pi) * torch.exp(-0.5 * z.square()) + mean * torch.erf(z / math.sqrt(2))


def _rows(values: Tensor) -> Tensor:
    """One value an example: the mean over what it holds."""
    return values.flatten(1).mean(1) if values.ndim > 1 else values
