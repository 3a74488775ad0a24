"""``evaluate``: is this posterior's confidence to be believed?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from posterity.calling import InputSpec
from posterity.data import DataSet
from posterity.data.pieces import perhaps_unlabelled, pieces
from posterity.evaluation.bootstrap import bootstrap
from posterity.evaluation.chains import chain_details, has_chains
from posterity.evaluation.classes import ClassJudge, entropy_shares
from posterity.evaluation.gather import Figures, Gathered, Judge, by_example, fingerprint, gather
from posterity.evaluation.numbers import RealJudge
from posterity.evaluation.ood import ood_figures
from posterity.evaluation.result import Scores
from posterity.evaluation.shift import Corrupt, corruptions_of, under_shift
from posterity.posteriors import Posterior
from posterity.random import generator_for
from posterity.types import PosterityError

__all__ = ["evaluate"]


def evaluate(
    posterior: Posterior,
    data: Any,
    *,
    ood: Mapping[str, Any] | None = None,
    shift: bool | Mapping[str, Corrupt] = False,
    draws: int = 32,
    resamples: int = 500,
    bins: int = 15,
    seed: int = 0,
) -> Scores:
    """Judge a posterior on data it has not seen.

    Where an example has several classes, as the words of a sentence or the pixels of an image have, each of them counts
    by itself, and the intervals are those of other examples, not of other words.

    Args:
        posterior: What ``fit`` or ``load`` gave.
        data: A DataSet (its test part), (inputs, targets), a Dataset or a loader.
        ood: Out-of-distribution data by name, of the same shape. A DataSet is brought to the units of ``data`` if that
            is a DataSet too; anything else must already be standardised as the training data were.
        shift: Also follow the figures along corruptions of the inputs: all that fit, or one's own by name.
        draws: Networks averaged.
        resamples: Bootstrap resamples for the intervals; 0 for none.
        bins: Bins of the calibration errors.
        seed: Draws the resamples and the corruptions' noise. Posteriors evaluated with the same seed on the same data
            are compared resample by resample.
    """
    if not isinstance(resamples, SupportsIndex) or resamples < 0:
        raise PosterityError(f"resamples must be a whole number from 0, got {resamples!r}")
    if not isinstance(ood, Mapping | None):
        raise PosterityError(f"ood must be a dictionary of data by name, got {type(ood).__name__}")
    if not isinstance(shift, bool | Mapping):
        raise PosterityError(f"shift must be True, False or a dictionary of corruptions by name, got {shift!r}")
    judge = _judge(posterior, data, bins)
    gathered = gather(posterior, data, draws, judge, nested=True)
    prediction, targets = gathered.prediction, gathered.targets
    own = judge.figures(prediction, targets)
    groups: list[tuple[tuple[int, ...], Figures]] = [((gathered.examples,), by_example(own, gathered))]
    details = judge.details(gathered) | _draws_curve(gathered)
    for name, other in (ood or {}).items():
        brought = other.in_units_of(data) if isinstance(other, DataSet) and isinstance(data, DataSet) else other
        outside = _outside(posterior, name, brought, draws, judge, gathered.spec)
        groups.append(((gathered.examples, outside.examples), _named(name, gathered, outside)))
        details["entropy"][name] = entropy_shares(outside.prediction)
    if has_chains(posterior):
        details["chains"] = chain_details(posterior, data)
    corruptions = corruptions_of(data, shift, seed)
    if corruptions:
        details["shift"], means = under_shift(posterior, data, corruptions, draws, judge)
        groups.append(((gathered.examples,), means))
    figures, replicates = _all(groups, resamples, seed)
    about = {
        "task": "classification" if posterior.likelihood.classifies else "regression",
        "examples": gathered.examples,
        "draws": prediction.draws,
        "ood": list(ood or {}),
        "fingerprint": f"{fingerprint(targets)}-{resamples}-{seed}",
        "predict_seconds": gathered.seconds,
    }
    return Scores(figures, replicates, details, about)


def _judge(posterior: Posterior, data: Any, bins: int) -> Judge:
    if posterior.likelihood.classifies:
        return ClassJudge(bins)
    units = data.target_standardiser if isinstance(data, DataSet) else None
    return RealJudge() if units is None else RealJudge(units.std, units.mean)


def _all(
    groups: list[tuple[tuple[int, ...], Figures]], resamples: int, seed: int
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Every figure, and its values on resampled data; groups of the same sizes are resampled alike.

    Where there are out-of-distribution sets, ``ood_auroc`` is the mean of their AUROC by entropy.
    """
    figures: dict[str, float] = {}
    replicates: dict[str, list[float]] = {}
    for sizes, function in groups:
        figures |= {name: float(value) for name, value in function(None).items()}
        if resamples and min(sizes) > 1:  # of one example every resample is that example, which says nothing of chance
            found = bootstrap(function, sizes, resamples, generator_for(seed))
            replicates |= {name: values.tolist() for name, values in found.items()}
    entropies = [name for name in figures if name.endswith("/auroc_entropy")]  # one an out-of-distribution set
    if entropies:
        figures["ood_auroc"] = sum(figures[name] for name in entropies) / len(entropies)
    if entropies and all(name in replicates for name in entropies):
        replicates["ood_auroc"] = torch.tensor([replicates[name] for name in entropies]).mean(0).tolist()
    return figures, replicates


def _named(name: str, inside: Gathered, outside: Gathered) -> Figures:
    def figures(weights: Tensor | None) -> dict[str, Tensor]:
        found = ood_figures(inside.prediction, outside.prediction, weights)
        return {f"{name}/{key}": value for key, value in found.items()}

    return by_example(figures, inside, outside)


def _outside(posterior: Posterior, name: str, other: Any, draws: int, judge: Judge, spec: InputSpec) -> Gathered:
    """The predictions of out-of-distribution inputs."""
    if not posterior.likelihood.classifies:
        raise PosterityError("out-of-distribution figures need class probabilities; this posterior predicts numbers")
    other = perhaps_unlabelled(other)
    own = InputSpec.of(next(pieces(other)).inputs)
    if own.shapes != spec.shapes:
        raise PosterityError(
            f"the out-of-distribution set {name!r} has inputs of shape {own.shapes[0]}, expected {spec.shapes[0]}"
        )
    return gather(posterior, other, draws, judge)


def _draws_curve(gathered: Gathered) -> dict[str, Any]:
    """Error and NLL against the number of draws."""
    if gathered.nested is None:
        return {}
    error, log_likelihood = gathered.nested.mean(-1).unbind(1)
    return {"draws": {"draws": gathered.counts, "error": error.tolist(), "nll": (-log_likelihood).tolist()}}
