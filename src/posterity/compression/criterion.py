"""Which weights go: at a threshold, down to a fraction, or as far as accuracy allows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posterity import calling, masks
from posterity.data.pieces import counted_once
from posterity.devices import device_of
from posterity.masks import Masks
from posterity.prediction.targets import labelled
from posterity.types import Inputs, Params, PosterityError, PosterityWarning, check_fraction, check_number

__all__ = ["Criterion", "accuracy", "choose"]

_DEFAULT_LOG_ALPHA = 3.0
_MISLED = 2.0
"""SWAG's scores move outputs 2.6 to 3 times as far as sizes do; those of VI, Laplace and chains at most 1.6 times."""


@dataclass(frozen=True)
class Criterion:
    """Which weights go: at most one of the three.

    Attributes:
        threshold: Weights with log alpha ≥ threshold go.
        keep: The fraction of weights that stays.
        max_drop: How much validation accuracy may be lost, as a fraction: 0.002 is a fifth of a percent.
        per_layer: ``keep`` and ``max_drop`` count within each layer, not over the network.
    """

    threshold: float | None = None
    keep: float | None = None
    max_drop: float | None = None
    per_layer: bool = False

    def __post_init__(self) -> None:
        given = [n for n in ("threshold", "keep", "max_drop") if getattr(self, n) is not None]
        if len(given) > 1:
            raise PosterityError(f"give one of threshold, keep and max_drop, got {' and '.join(given)}")
        if self.max_drop is not None:
            check_fraction(max_drop=self.max_drop)
        if self.threshold is not None:
            check_number(threshold=self.threshold)


def choose(
    criterion: Criterion, dense: nn.Module, variance: Params, pruned: bool, validation: Any, example: Inputs
) -> Masks:
    """Which weights stay; without a criterion the zeros of a network that is ``pruned`` already decide."""
    params = dict(dense.named_parameters())
    if criterion.keep is None and criterion.max_drop is None:
        decided = pruned and criterion.threshold is None
        return _not_zero(params) if decided else _masks_at_threshold(params, variance, criterion.threshold)
    scores = masks.magnitude(params)
    if variance:
        certain = masks.signal_to_noise(params, variance)
        _doubt(dense, certain, {name: scores[name] for name in certain}, example)
        scores = certain
    fraction = criterion.keep
    if fraction is None:
        fraction = _fraction_for_drop(dense, scores, criterion, validation)
    return masks.top_fraction(scores, fraction, criterion.per_layer)


@torch.no_grad()
def _doubt(dense: nn.Module, certain: Params, large: Params, example: Inputs) -> None:
    """Warn where variances mislead: along an optimizer's path (SWAG) they are largest where the data pull most."""
    if float(torch.cat([score.reshape(-1) for score in certain.values()]).median()) < 1:
        return  # the half that goes is noise

    def outputs_of(network: nn.Module) -> Tensor:
        return calling.call(network, calling.map_inputs(example, torch.clone))  # which it may write into

    outputs = outputs_of(dense)
    by_signal, by_size = (
        float((outputs_of(masks.apply(dense, masks.top_fraction(scores, 0.5))) - outputs).norm())
        / float(outputs.norm().clamp_min(1e-12))
        for scores in (certain, large)
    )
    if by_signal > max(_MISLED * by_size, 0.1):
        warnings.warn(
            "the largest variances are those of weights that matter: without the half that signal to noise gives up "
            f"the outputs move by {by_signal:.0%}, without the smallest half by {by_size:.0%}; to prune by size, "
            "compress posterior.module",
            PosterityWarning,
            stacklevel=5,
        )


def _masks_at_threshold(params: Mapping[str, Tensor], variance: Params, threshold: float | None) -> Masks:
    """By log alpha where there are variances; otherwise the zeros that are there already."""
    if threshold is not None and not variance:
        raise PosterityError("a threshold on log alpha needs variances, and this has none: give keep= or max_drop=")
    if variance:
        limit = _DEFAULT_LOG_ALPHA if threshold is None else threshold
        chosen = masks.below(masks.log_alpha(params, variance), limit)
        if not any(bool(value.any()) for value in chosen.values()):
            total = sum(value.numel() for value in chosen.values())
            raise PosterityError(f"threshold={limit:g} removes all {total:,} weights: raise it, or give keep=")
        return chosen
    chosen = _not_zero(params)
    if all(bool(value.all()) for value in chosen.values()):
        raise PosterityError("there are no variances and no zeros to compress by: give keep= or max_drop=")
    return chosen


def _not_zero(params: Mapping[str, Tensor]) -> Masks:
    return {name: value != 0 for name, value in masks.weights(params).items()}


def _fraction_for_drop(dense: nn.Module, scores: Params, criterion: Criterion, validation: Any) -> float:
    if validation is None or criterion.max_drop is None:
        raise PosterityError("max_drop needs validation data: give validation=")
    floor = accuracy(dense, validation) - criterion.max_drop

    def accuracy_with(fraction: float) -> float:
        return accuracy(masks.apply(dense, masks.top_fraction(scores, fraction, criterion.per_layer)), validation)

    return masks.smallest_keep(accuracy_with, floor)


def accuracy(network: nn.Module, data: Any) -> float:
    """The fraction of labels that are the highest output, or the sign of the one logit there is for each."""
    right = total = 0
    device = device_of(network)
    with torch.no_grad():
        for batch in counted_once(data, size=1):
            if batch.targets.is_floating_point():
                raise PosterityError("accuracy needs integer labels, got targets of type " + str(batch.targets.dtype))
            outputs = calling.call(network, calling.map_inputs(batch.inputs, lambda tensor: tensor.to(device)))
            if outputs.numel() == batch.targets.numel():  # one logit, as Bernoulli has: that of yes against no
                outputs = torch.stack([-outputs, outputs], -1).view(*batch.targets.shape, 2)
            right += int((outputs.argmax(-1).cpu() == labelled(batch.targets, outputs)).sum())
            total += batch.targets.numel()
    if total == 0:
        raise PosterityError("the validation data is empty")
    return right / total
