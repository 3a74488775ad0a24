"""Whole data sets: reading them into tensors, splitting them, and seeing whether random transforms change them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from posterity.calling import as_batch, as_tensor, map_inputs, nested_tensors, num_examples
from posterity.random import generator_for
from posterity.types import Inputs, PosterityError

__all__ = ["as_tensors", "changes", "split_off"]

_LOOK = 64  # examples that are read twice: a flip of every second one goes unseen once in 2⁶⁴ times


def changes(data: Any) -> bool:
    """Whether a data set has other inputs each time it is read, as under random transforms: it must not be kept."""
    if not isinstance(data, Dataset) or isinstance(data, TensorDataset | IterableDataset):
        return False
    count = min(_LOOK, len(data))  # type: ignore[arg-type]
    if count == 0:
        return False
    twice = [nested_tensors(_collated(data, count)) for _ in range(2)]
    return not all(bool(torch.isclose(a, b, rtol=0, atol=0, equal_nan=True).all()) for a, b in zip(*twice, strict=True))


def _collated(data: Any, count: int) -> Any:
    """The first examples of a data set as one batch."""
    examples = [data[i] for i in range(count)]
    try:
        return default_collate(examples)
    except (RuntimeError, TypeError) as error:
        raise PosterityError(
            f"the examples of the data set do not make a batch ({error}): give a DataLoader with a collate_fn"
        ) from error


def as_tensors(data: Any) -> tuple[Inputs, Tensor]:
    """Inputs and targets of a pair of tensors or of a map-style Dataset, as whole tensors."""
    if isinstance(data, TensorDataset):
        data = data.tensors
    elif isinstance(data, IterableDataset):
        raise PosterityError("a data set without a length is read by a loader: give it as a DataLoader")
    elif isinstance(data, Dataset):
        if len(data) == 0:  # type: ignore[arg-type]
            raise PosterityError("the data set is empty")
        data = _collated(data, len(data))  # type: ignore[arg-type]
    batch = as_batch(data)
    if batch.weights is not None:
        raise PosterityError("weights come with the batches of a DataLoader or a list, not with whole tensors")
    targets = as_tensor(batch.targets, "targets")
    inputs = batch.inputs if isinstance(batch.inputs, dict | tuple | list) else as_tensor(batch.inputs, "inputs")
    if len(targets) == 0:
        raise PosterityError("the data set is empty")
    if num_examples(inputs) != len(targets):
        raise PosterityError(f"there are {num_examples(inputs)} inputs but {len(targets)} targets")
    return inputs, targets


def split_off(data: Any, fraction: float, seed: int) -> tuple[Any, Any]:
    """The data without a random fraction, and that fraction."""
    if isinstance(data, DataLoader | list):
        raise PosterityError(
            "a validation fraction needs tensors or a Dataset; give a validation loader beside a loader"
        )
    kept = None if changes(data) else as_tensors(data)
    total = len(data if kept is None else kept[1])
    order = torch.randperm(total, generator=generator_for(seed))
    held = max(1, round(fraction * total))
    if held >= total:
        raise PosterityError(f"holding out {held} of {total} examples leaves none to train on")

    def take(rows: Tensor) -> Any:
        return Subset(data, rows.tolist()) if kept is None else (map_inputs(kept[0], lambda t: t[rows]), kept[1][rows])

    return take(order[held:]), take(order[:held])
