"""Chains for those who look at them: what the report shows of a posterior that has chains, and the way to ArviZ.

R̂, effective sample size and disagreement are those of ``posterity.evaluation.diagnostics``, here as quantiles over
held-out predictions: a median hides one prediction that does not mix, and a maximum says nothing of the rest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posterity.calling import map_inputs
from posterity.data.pieces import pieces
from posterity.evaluation.diagnostics import agreement, effective_sample_size, split_rhat, traces
from posterity.posteriors import Empirical, Mixture, Posterior
from posterity.types import Batch, PosterityError

__all__ = ["RHAT_LEVELS", "chain_details", "has_chains", "to_arviz"]

RHAT_LEVELS = (0.5, 0.95, 1.0)
"""The quantiles of R̂ that are shown, the worst last; those of the effective sample size are their mirror images."""
_INPUTS = 200
_LENGTH = 200


def has_chains(posterior: Posterior) -> bool:
    """Whether there is a path of samples to look along: weights in an order, at least four of them a chain."""
    parts = posterior.parts if isinstance(posterior, Mixture) else [posterior]
    return all(isinstance(part, Empirical) and part.distinct >= 4 for part in parts)


def chain_details(posterior: Posterior, data: Any) -> dict[str, Any]:
    """Quantiles of R̂ and effective sample size, disagreement, and the trace that mixes worst, for the report.

    Args:
        posterior: One for which ``has_chains`` holds.
        data: Held-out data; at most 200 inputs spread over it are looked at.
    """
    predicted = traces(posterior, _some(data)).double()
    rhat, ess = split_rhat(predicted), effective_sample_size(predicted)
    found = agreement(predicted, posterior.likelihood.classifies)
    worst = predicted.flatten(2)[..., int(rhat.flatten().argmax())]
    return {
        "chains": found.chains,
        "samples": found.samples,
        "rhat": [_quantile(rhat, level) for level in RHAT_LEVELS],
        "ess": [_quantile(ess, 1 - level) for level in RHAT_LEVELS],
        "disagreement": found.disagreement,
        "label_disagreement": found.label_disagreement,
        "symptoms": found.symptoms(),
        "trace": [[round(value, 5) for value in chain] for chain in _spread(worst.T, _LENGTH).T.tolist()],
    }


def to_arviz(posterior: Posterior, data: Any, samples: int | None = None) -> Any:
    """The chains' predictions as ArviZ reads them: an ``xarray.Dataset`` for ``arviz.summary``, ``plot_trace``, ...

    Its one variable ``prediction`` has the dimensions chain, draw, input and output.

    Args:
        posterior: A mixture of chains (``fit(..., members=4)``), or one chain.
        data: Held-out data: (inputs, targets), a Dataset or a loader.
        samples: Of each chain; all there are if not given.
    """
    try:
        from arviz import convert_to_dataset
    except ImportError as error:
        raise PosterityError("to_arviz needs ArviZ: pip install arviz") from error
    predicted = traces(posterior, data, samples).numpy()
    return convert_to_dataset({"prediction": predicted}, dims={"prediction": ["input", "output"]})


def _some(data: Any) -> Batch:
    """A few of the first thousands of examples, evenly spread."""
    batch = next(pieces(data))
    return Batch(map_inputs(batch.inputs, lambda t: _spread(t, _INPUTS)), _spread(batch.targets, _INPUTS))


def _spread(rows: Tensor, most: int) -> Tensor:
    """At most so many rows, from the first to the last."""
    return rows[torch.linspace(0, len(rows) - 1, min(most, len(rows))).round().long().to(rows.device)]


def _quantile(values: Tensor, level: float) -> float:
    """One of the values themselves: between one and infinity there is nothing to interpolate."""
    return float(values.flatten().quantile(level, interpolation="nearest"))
