"""What becomes of the figures when the inputs slowly turn into something else: five severities of each corruption."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from posterity.calling import map_inputs, tensors_of
from posterity.data import SEVERITIES, DataSet, Kind, corrupt, corruptions_for
from posterity.data.pieces import whole
from posterity.data.units import Standardiser
from posterity.evaluation.gather import Figures, Judge, by_example, gather
from posterity.posteriors import Posterior
from posterity.random import generator_for
from posterity.types import Batch, PosterityError

__all__ = ["Corrupt", "corruptions_of", "under_shift"]

Corrupt = Callable[[Tensor, int], Tensor]
"""Inputs and a severity from 1 to 5 in, corrupted inputs out."""


def corruptions_of(data: Any, shift: bool | Mapping[str, Corrupt], seed: int = 0) -> dict[str, Corrupt]:
    """The corruptions to follow, by name.

    Args:
        data: What is evaluated on; a DataSet knows how its inputs were standardised.
        shift: False for none, True for all that fit the data, or one's own functions by name.
        seed: Draws the noise.
    """
    if isinstance(shift, Mapping):
        return dict(shift)
    if not shift:
        return {}
    described = isinstance(data, DataSet)
    kind = data.kind if described else _kind(data)
    standardiser = data.pixels if described and kind == Kind.IMAGE else None

    def named(name: str) -> Corrupt:
        def apply(x: Tensor, severity: int) -> Tensor:
            noise = generator_for(seed, x.device)
            if described or kind != Kind.TABULAR:
                return corrupt(x, name, severity, kind=kind, standardiser=standardiser, generator=noise)
            units = Standardiser.fit(x)  # a table in units of its own, where a column's std may be anything
            return units.invert(corrupt(units.apply(x), name, severity, kind=kind, standardiser=None, generator=noise))

        return apply

    return {name: named(name) for name in corruptions_for(kind)}


def under_shift(
    posterior: Posterior, data: Any, corruptions: Mapping[str, Corrupt], draws: int, judge: Judge
) -> tuple[dict[str, Any], Figures]:
    """The figures at severities 0 to 5 of each corruption, and their means over all but 0 as a function of weights."""
    batch = whole(data)
    if len(tensors_of(batch.inputs)) != 1:
        raise PosterityError("corruptions act on one tensor of inputs, but the network takes several")

    def shifted(batch: Batch) -> Figures:
        gathered = gather(posterior, batch, draws, judge)
        return by_example(judge.shifted(gathered.prediction, gathered.targets), gathered)

    def corrupted(corruption: Corrupt, severity: int) -> Batch:
        return Batch(map_inputs(batch.inputs, lambda x: corruption(x, severity)), batch.targets)

    known = shifted(batch)(None)
    curves, conditions = {}, []
    for name, corruption in corruptions.items():
        found = []
        for severity in SEVERITIES:
            conditions.append(shifted(corrupted(corruption, severity)))
            found.append(conditions[-1](None))
        curves[name] = {key: [float(value[key]) for value in (known, *found)] for key in known}

    def means(weights: Tensor | None) -> dict[str, Tensor]:
        each = [condition(weights) for condition in conditions]
        return {f"shift_{key}": torch.stack([values[key] for values in each]).mean(0) for key in known}

    return curves, means


def _kind(data: Any) -> Kind:
    """What inputs look like that come without a description: images in [0, 1], or a table."""
    tensors = tensors_of(whole(data).inputs)
    if len(tensors) == 1 and tensors[0].is_floating_point():
        low, high = float(tensors[0].min()), float(tensors[0].max())
        if tensors[0].ndim == 4 and low >= 0 and high <= 1:
            return Kind.IMAGE
        if tensors[0].ndim == 2:
            return Kind.TABULAR
    raise PosterityError(
        "shift=True needs images in [0, 1], a table or a DataSet; else give shift={name: function(inputs, severity)}"
    )
