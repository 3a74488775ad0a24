"""Examples in large pieces, whatever form they come in.

What is done once a batch (drawing weights, say) is done once for thousands of examples when loader batches are put
together first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from posterity.calling import InputSpec, as_batch, as_tensor, check_finite, map_inputs, num_examples, tensors_of
from posterity.data.dataset import DataSet
from posterity.types import Batch, Inputs, PosterityError

__all__ = ["counted_once", "perhaps_unlabelled", "pieces", "to_choose_by", "to_train_on", "whole"]

PIECE = 10_000
"""Examples of a piece, unless told otherwise."""


def pieces(data: Any, size: int = PIECE) -> Iterator[Batch]:
    """Batches of up to about ``size`` examples from a DataSet (its test part), a pair, a Dataset or a loader."""
    kept: list[Batch] = []
    for batch in _batches(data):
        if kept and (_spec(kept[0]) != _spec(batch) or sum(len(b.targets) for b in kept) >= size):
            yield _stacked(kept)
            kept = []
        kept.append(batch)
    if kept:
        yield _stacked(kept)


def counted_once(data: Any, size: int = PIECE) -> Iterator[Batch]:
    """The same, for what counts every example once: weights of examples are refused, and inputs that are no numbers."""
    for batch in pieces(data, size):
        if batch.weights is not None:
            raise PosterityError("every example counts once here, but these batches hold weights")
        check_finite(batch.inputs)
        yield batch


def to_train_on(data: Any) -> Any:
    """The training part of a DataSet; anything else as it is."""
    return data.training() if isinstance(data, DataSet) else data


def to_choose_by(data: Any) -> Any:
    """The validation part of a DataSet, never its test part; anything else as it is."""
    if not isinstance(data, DataSet):
        return data
    if data.validation is None:
        raise PosterityError("the data set has no validation part: split one off by with_validation before the fit")
    return data.validation


def perhaps_unlabelled(data: Any) -> Any:
    """Inputs alone with targets of zero, for those who look at predictions only; anything else as it is."""
    if isinstance(data, Tensor | np.ndarray):
        return as_tensor(data, "inputs"), torch.zeros(len(data), dtype=torch.long)
    return data


def whole(data: Any) -> Batch:
    """All examples as one batch, for what must see them together (corruptions, pictures)."""
    found = list(pieces(data, size=2**62))
    if len(found) != 1:
        raise PosterityError(f"examples must have one shape to be taken together, got {len(found)} shapes")
    return found[0]


def _batches(data: Any) -> Iterator[Batch]:
    if isinstance(data, DataSet):
        data = data.test
    if isinstance(data, tuple) and not isinstance(data, Batch):
        data = tuple(as_tensor(part, "each part") if isinstance(part, np.ndarray) else part for part in data)
    if isinstance(data, Tensor | np.ndarray):
        raise PosterityError("targets are needed, too, and these are inputs alone: give (inputs, targets)")
    if isinstance(data, Batch) or (isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], Tensor)):
        if num_examples(data[0]) != len(data[1]):
            raise PosterityError(f"got {num_examples(data[0])} inputs and {len(data[1])} targets")
        yield as_batch(data)
        return
    if isinstance(data, Dataset):
        data = DataLoader(data, batch_size=1000)
    if not isinstance(data, Iterable) or isinstance(data, Iterator):  # an iterator is empty once it was looked into
        raise PosterityError(f"data must be a loader, a Dataset or (inputs, targets), got {type(data).__name__}")
    yield from map(as_batch, data)


def _spec(batch: Batch) -> InputSpec:
    return InputSpec.of(batch.inputs)


def _stacked(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    columns = iter([torch.cat(tensors) for tensors in zip(*(tensors_of(b.inputs) for b in batches), strict=True)])
    inputs: Inputs = map_inputs(batches[0].inputs, lambda _: next(columns))
    targets = torch.cat([b.targets for b in batches])
    if all(b.weights is None for b in batches):
        return Batch(inputs, targets)
    weights = [torch.ones(len(b.targets), device=targets.device) if b.weights is None else b.weights for b in batches]
    return Batch(inputs, targets, torch.cat(weights))
