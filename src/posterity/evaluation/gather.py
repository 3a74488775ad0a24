"""All test examples through the posterior: whatever form the data come in, one prediction and one tensor of targets.

Loader batches are put together to large pieces first, so that the posterior's draws are made once for thousands of
examples and not once for every batch; of the draws only sums stay.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from posterity.calling import InputSpec, as_batch, map_inputs, num_examples, tensors_of
from posterity.data import DataSet
from posterity.posteriors import Posterior
from posterity.prediction import Prediction
from posterity.types import Batch, Inputs, PosterityError

__all__ = ["Gathered", "Judge", "fingerprint", "gather", "pieces", "whole"]

PIECE = 10_000
"""Examples predicted at a time."""


class Judge(Protocol):
    """What differs between classes and numbers."""

    def light(self, prediction: Any) -> Any:
        """The prediction without its single draws, on the CPU."""
        ...

    def joined(self, parts: list[Any]) -> Any:
        """One prediction of all pieces."""
        ...

    def first(self, prediction: Any, count: int) -> Any:
        """The prediction of the first draws alone; needs its samples."""
        ...

    def each(self, prediction: Any, targets: Tensor) -> Tensor:
        """Error and log-likelihood of each example, [2, n]."""
        ...

    def figures(self, prediction: Any, targets: Tensor) -> Callable[[Tensor | None], dict[str, Tensor]]:
        """Every figure as a function of weights."""
        ...

    def shifted(self, prediction: Any, targets: Tensor) -> Callable[[Tensor | None], dict[str, Tensor]]:
        """The few figures that are followed under shift."""
        ...

    def details(self, gathered: Gathered) -> dict[str, Any]:
        """Curves and tables for plots."""
        ...


@dataclass(eq=False)
class Gathered:
    """The predictions of a posterior on a data set.

    Attributes:
        prediction: All examples together.
        targets: Their targets.
        spec: Shape and type of the inputs.
        along: The inputs themselves where each is one number: plots of a regression run along them.
        counts: Numbers of draws, 1, 2, 4, … up to all.
        nested: Error and log-likelihood of each example when only so many draws are averaged, [counts, 2, n].
        seconds: What predicting took.
    """

    prediction: Any
    targets: Tensor
    spec: InputSpec
    along: Tensor | None
    counts: list[int]
    nested: Tensor | None
    seconds: float


def gather(posterior: Posterior, data: Any, draws: int, judge: Judge) -> Gathered:
    """Predict every example.

    Args:
        posterior: What is evaluated.
        data: A DataSet (its test part), (inputs, targets), a Dataset or a loader.
        draws: Networks averaged.
        judge: Knows what to keep of a prediction.
    """
    parts: list[Prediction] = []
    targets: list[Tensor] = []
    nested: list[Tensor] = []
    along: list[Tensor] = []
    counts: list[int] = []
    spec = InputSpec((), ())
    seconds = 0.0
    for batch in pieces(data):
        inputs = map_inputs(batch.inputs, lambda t: t.to(posterior.device))
        start = time.perf_counter()
        prediction = posterior.predict(inputs, draws, keep_samples=True)
        seconds += time.perf_counter() - start
        targets.append(batch.targets.detach().cpu())
        spec = _spec(batch)
        along += [t.detach().cpu()[:, 0] for t in tensors_of(batch.inputs) if spec.shapes == ((1,),)]
        if prediction.samples is not None:
            counts = sorted({min(2**k, len(prediction.samples)) for k in range(draws.bit_length() + 1)})
            nested.append(torch.stack([judge.each(judge.first(prediction, k), targets[-1]) for k in counts]))
        parts.append(judge.light(prediction))
    if not parts:
        raise PosterityError("there are no examples to evaluate on")
    joined = (torch.cat(lists, -1) if lists else None for lists in (along, nested))
    return Gathered(judge.joined(parts), torch.cat(targets), spec, next(joined), counts, next(joined), seconds)


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


def whole(data: Any) -> Batch:
    """All examples as one batch, for what must see them together (corruptions, pictures)."""
    found = list(pieces(data, size=2**62))
    if len(found) != 1:
        raise PosterityError(f"examples must have one shape to be taken together, got {len(found)} shapes")
    return found[0]


def fingerprint(targets: Tensor) -> str:
    """Tells whether two evaluations saw the same test set, in the same order."""
    return hashlib.sha256(targets.contiguous().double().numpy().tobytes()).hexdigest()[:16]


def _batches(data: Any) -> Iterator[Batch]:
    if isinstance(data, DataSet):
        data = data.test
    if isinstance(data, Tensor):  # inputs alone: enough for out-of-distribution data
        data = (data, torch.zeros(len(data), dtype=torch.long))
    if isinstance(data, Batch) or (isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], Tensor)):
        if num_examples(data[0]) != len(data[1]):
            raise PosterityError(f"got {num_examples(data[0])} inputs and {len(data[1])} targets")
        yield as_batch(data)
        return
    if isinstance(data, Dataset):
        data = DataLoader(data, batch_size=1000)
    if not isinstance(data, Iterable):
        raise PosterityError(f"data must be a loader, a Dataset or (inputs, targets), got {type(data).__name__}")
    yield from map(as_batch, data)


def _spec(batch: Batch) -> InputSpec:
    return InputSpec.of(batch.inputs)


def _stacked(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    columns = iter([torch.cat(tensors) for tensors in zip(*(tensors_of(b.inputs) for b in batches), strict=True)])
    inputs: Inputs = map_inputs(batches[0].inputs, lambda _: next(columns))
    return Batch(inputs, torch.cat([b.targets for b in batches]))
