"""Have the chains found the same distribution? Asked of what they predict, not of their weights.

Weights of equal networks differ by symmetries, so chains are compared by the functions they are: the traces of the
predicted probabilities (or means) on held-out inputs. With m chains of n samples, each chain cut in half:

    W       mean of the chains' variances,           B/n    variance of the chains' means
    var⁺  = (n − 1)/n W + B/n
    R̂     = √(var⁺/W)                                1 where chains agree; above 1.01–1.1 they do not
    ρ_t   = 1 − (W − mean autocovariance at lag t)/var⁺
    ESS   = m n/(1 + 2 Σ ρ_t)                        summed in pairs while they are positive and falling (Geyer 1992)

as in Gelman et al., Bayesian Data Analysis, 3rd ed., 11.4–11.5. Diversity is that of Fort et al. 2019 (1912.02757): the
share of inputs on which two networks name another class, against how often each is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.calling import map_inputs
from posterity.data.pieces import counted_once, perhaps_unlabelled, pieces
from posterity.posteriors import Mixture, Posterior
from posterity.prediction.targets import labelled
from posterity.types import PosterityError

__all__ = [
    "Diagnostics",
    "Diversity",
    "agreement",
    "diagnose",
    "diversity",
    "effective_sample_size",
    "split_rhat",
    "traces",
]


def split_rhat(chains: Tensor) -> Tensor:
    """R̂ of chains [chains, samples, ...], each cut in half; the shape of the rest."""
    halves = _halved(chains)
    samples = halves.shape[1]
    within = halves.var(1).mean(0)
    between = halves.mean(1).var(0)
    pooled = (samples - 1) / samples * within + between
    # Traces that never move agree perfectly if they are all alike, and not at all if each is stuck elsewhere.
    still = torch.where(between > 0, torch.inf, 1.0).to(pooled)
    return torch.where(within > 0, (pooled / within.clamp_min(torch.finfo(within.dtype).tiny)).sqrt(), still)


def effective_sample_size(chains: Tensor) -> Tensor:
    """How many independent samples the chains [chains, samples, ...] are worth."""
    halves = _halved(chains).movedim(1, -1)  # [chains, ..., samples]
    count, samples = halves.shape[0], halves.shape[-1]
    centred = halves - halves.mean(-1, keepdim=True)
    spectrum = torch.fft.rfft(centred, n=2 * samples).abs().square()
    covariance = torch.fft.irfft(spectrum, n=2 * samples)[..., :samples] / samples
    within = covariance[..., 0].mean(0) * samples / (samples - 1)
    pooled = (samples - 1) / samples * within + halves.mean(-1).var(0)
    safe = pooled.clamp_min(torch.finfo(pooled.dtype).tiny)
    correlation = 1 - (within[..., None] - covariance.mean(0) * samples / (samples - 1)) / safe[..., None]
    correlation[..., 0] = 1.0
    pairs = correlation[..., : samples // 2 * 2].unflatten(-1, (-1, 2)).sum(-1)
    falling = pairs.cummin(-1).values
    kept = torch.where((pairs > 0).cumprod(-1).bool(), falling, 0.0).sum(-1)
    total = count * samples
    return torch.where(pooled > 0, (total / (2 * kept - 1).clamp_min(1 / total)).clamp_max(total), float(total))


@dataclass(frozen=True)
class Diagnostics:
    """Whether chains agree, in function space.

    Attributes:
        chains: How many.
        samples: Samples of each.
        rhat: Largest split-R̂ over inputs and classes, and its median.
        ess: Smallest effective sample size over inputs and classes, and its median.
        disagreement: Mean total variation between two chains' predictive probabilities (for numbers: mean distance of
            their means, in standard deviations of the draws); 0 with one chain.
        label_disagreement: The share of inputs on which two chains name another class; None for numbers.
    """

    chains: int
    samples: int
    rhat: tuple[float, float]
    ess: tuple[float, float]
    disagreement: float
    label_disagreement: float | None

    def symptoms(self) -> list[str]:
        """What is wrong, one plain line each."""
        found, alone = [], self.chains == 1
        if self.rhat[0] > 1.1:
            what = "the halves of the chain disagree" if alone else "the chains disagree"
            found.append(f"{what} (split-R̂ up to {self.rhat[0]:.2f}): run longer, or raise burn_in")
        if self.ess[0] < 10 * self.chains:
            what = "the chain is" if alone else "the chains are"
            found.append(f"{what} worth {self.ess[0]:.0f} samples on some inputs: run longer, or raise thin")
        return found


@torch.no_grad()
def traces(posterior: Posterior, data: Any, samples: int | None = None) -> Tensor:
    """What every sample of every chain predicts: [chains, samples, inputs, classes or numbers].

    Args:
        posterior: A mixture of chains, or one chain.
        data: Held-out data: (inputs, targets), a Dataset or a loader.
        samples: Of each chain; all there are if not given (32 where a posterior has no end of them).
    """
    parts = posterior.parts if isinstance(posterior, Mixture) else [posterior]
    count = samples or min(part.distinct or 32 for part in parts)
    if count < 4:
        raise PosterityError(f"a diagnosis needs at least four samples of each chain, got {count}")
    data = perhaps_unlabelled(data)
    chains = [torch.cat([_each(part, batch.inputs, count) for batch in pieces(data)], dim=1).cpu() for part in parts]
    return torch.stack(chains)


def diagnose(posterior: Posterior, data: Any, samples: int | None = None) -> Diagnostics:
    """Split-R̂, effective sample size and disagreement of chains on held-out data.

    Args:
        posterior: A mixture of chains (``fit(..., members=4)``), or one chain.
        data: Held-out data: (inputs, targets), a Dataset or a loader.
        samples: Of each chain; all there are if not given.
    """
    return agreement(traces(posterior, data, samples), posterior.likelihood.classifies)


def agreement(predicted: Tensor, classifies: bool) -> Diagnostics:
    """What ``diagnose`` says of these traces [chains, samples, inputs, classes or numbers]."""
    predicted = predicted.double()
    rhat, ess = split_rhat(predicted), effective_sample_size(predicted)
    means = predicted.mean(1)
    scale = 2 / predicted.shape[-1] if classifies else predicted.std((0, 1)).clamp_min(1e-12)
    distances = [((a - b).abs() / scale).mean() for a, b in _pairs(means)]
    labels = [(a.argmax(-1) != b.argmax(-1)).double().mean() for a, b in _pairs(means)] if classifies else []
    return Diagnostics(
        chains=len(predicted),
        samples=predicted.shape[1],
        rhat=(float(rhat.max()), float(rhat.median())),
        ess=(float(ess.min()), float(ess.median())),
        disagreement=_mean(distances),
        label_disagreement=_mean(labels) if classifies else None,
    )


@dataclass(frozen=True)
class Diversity:
    """How different the draws are, and how good: the picture of the deep-ensembles study.

    Attributes:
        accuracy: Of each draw, [draws].
        disagreement: Mean share of inputs on which a draw and another name different classes, [draws].
        normalised: The same divided by the draw's error rate: 1 would be mistakes made independently of all others.
    """

    accuracy: Tensor
    disagreement: Tensor
    normalised: Tensor


@torch.no_grad()
def diversity(posterior: Posterior, data: Any, draws: int = 32) -> Diversity:
    """Accuracy and disagreement of single draws: members, snapshots or samples.

    Args:
        posterior: Over classes.
        data: Labelled held-out data.
        draws: How many draws to compare.
    """
    if not posterior.likelihood.classifies:
        raise PosterityError("diversity compares named classes; this posterior predicts numbers")
    labels, targets = [], []
    for batch in counted_once(data):
        samples = _samples(posterior, batch.inputs, draws)
        labels.append(samples.argmax(-1).flatten(1).cpu())  # words count each
        targets.append(labelled(batch.targets, samples[0]).flatten())
    named, truth = torch.cat(labels, dim=1), torch.cat(targets)
    if len(named) < 2:
        raise PosterityError("diversity needs at least two draws")
    accuracy = (named == truth).double().mean(1)
    differs = (named[:, None] != named[None, :]).double().mean(-1)  # [draws, draws], 0 on the diagonal
    disagreement = differs.sum(1) / (len(named) - 1)
    return Diversity(accuracy, disagreement, disagreement / (1 - accuracy).clamp_min(1 / len(truth)))


def _each(posterior: Posterior, inputs: Any, draws: int) -> Tensor:
    """Predictions of single draws, [draws, inputs, classes or numbers]; each word or pixel is an input of its own."""
    samples = _samples(posterior, inputs, draws)
    return samples.flatten(1, -2) if samples.ndim > 2 else samples.unsqueeze(-1)


def _samples(posterior: Posterior, inputs: Any, draws: int) -> Tensor:
    here = map_inputs(inputs, lambda t: t.to(posterior.device))
    samples = posterior.predict(here, draws, keep_samples=True).samples
    assert samples is not None  # they were asked for
    return samples


def _halved(chains: Tensor) -> Tensor:
    """[chains, samples, ...] → [2·chains, samples//2, ...], the middle sample of an odd number left out."""
    if chains.ndim < 2 or chains.shape[1] < 4:
        raise PosterityError(
            f"chains must be [chains, samples, ...] with at least 4 samples, got {tuple(chains.shape)}"
        )
    half = chains.shape[1] // 2
    return torch.cat([chains[:, :half], chains[:, -half:]])


def _pairs(means: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(means[i], means[j]) for i in range(len(means)) for j in range(i)]


def _mean(values: Sequence[Tensor]) -> float:
    return float(torch.stack(list(values)).mean()) if values else 0.0
