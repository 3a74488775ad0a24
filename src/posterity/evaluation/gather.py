"""All test examples through the posterior: one prediction and one tensor of targets; of the draws only sums stay."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from posterity.calling import InputSpec, map_inputs, tensors_of
from posterity.data.pieces import counted_once
from posterity.posteriors import Posterior
from posterity.posteriors.empirical import evenly
from posterity.prediction import Prediction
from posterity.types import PosterityError

__all__ = ["Figures", "Gathered", "Judge", "by_example", "fingerprint", "gather"]

Figures = Callable[[Tensor | None], dict[str, Tensor]]
"""Named figures as a function of weights."""


class Judge(Protocol):
    """What differs between classes and numbers."""

    def rows(self, prediction: Any, targets: Tensor) -> tuple[Any, Tensor, int]:
        """A row for all that is judged by itself, an example or each of its positions; and how many an example has."""
        ...

    def light(self, prediction: Any) -> Any:
        """The prediction without its single draws, on the CPU."""
        ...

    def joined(self, parts: list[Any]) -> Any:
        """One prediction of all pieces."""
        ...

    def only(self, prediction: Any, chosen: list[int]) -> Any:
        """The prediction of some of the draws alone; needs its samples."""
        ...

    def each(self, prediction: Any, targets: Tensor) -> Tensor:
        """Error and log-likelihood of each row, [2, n]."""
        ...

    def figures(self, prediction: Any, targets: Tensor) -> Figures:
        """Every figure as a function of weights."""
        ...

    def shifted(self, prediction: Any, targets: Tensor) -> Figures:
        """The few figures that are followed under shift."""
        ...

    def details(self, gathered: Gathered) -> dict[str, Any]:
        """Curves and tables for plots."""
        ...


@dataclass(eq=False)
class Gathered:
    """The predictions of a posterior on a data set.

    Attributes:
        prediction: All rows together.
        targets: Their targets.
        examples: How many examples they belong to.
        owner: The example of each row; None where each is an example of its own.
        spec: Shape and type of the inputs.
        along: The inputs themselves where each is one number: plots of a regression run along them.
        counts: Numbers of draws, 1, 2, 4, … up to all.
        nested: Error and log-likelihood of each row when only so many draws are averaged, [counts, 2, n].
        seconds: What predicting took.
    """

    prediction: Any
    targets: Tensor
    examples: int
    owner: Tensor | None
    spec: InputSpec
    along: Tensor | None
    counts: list[int]
    nested: Tensor | None
    seconds: float

    def of_rows(self, weights: Tensor) -> Tensor:
        """Weights of examples [..., examples] as weights of rows: all positions of an example come or go together."""
        return weights if self.owner is None else weights[..., self.owner]


def by_example(figures: Figures, *gathered: Gathered) -> Figures:
    """Figures as a function of the weights of examples instead of rows; several data sets follow one another."""

    def of(weights: Tensor | None) -> dict[str, Tensor]:
        if weights is None:
            return figures(None)
        parts = weights.split([each.examples for each in gathered], -1)
        return figures(torch.cat([each.of_rows(part) for each, part in zip(gathered, parts, strict=True)], -1))

    return of


def gather(posterior: Posterior, data: Any, draws: int, judge: Judge, nested: bool = False) -> Gathered:
    """Predict every example.

    Args:
        posterior: What is evaluated.
        data: A DataSet (its test part), (inputs, targets), a Dataset or a loader.
        draws: Networks averaged.
        judge: Knows what to keep of a prediction.
        nested: Also what fewer draws would have given.
    """
    parts: list[Prediction] = []
    targets: list[Tensor] = []
    fewer: list[Tensor] = []
    along: list[Tensor] = []
    owners: list[Tensor] = []
    counts: list[int] = []
    examples = 0
    spec = InputSpec((), ())
    seconds = 0.0
    for batch in counted_once(data):
        inputs = map_inputs(batch.inputs, lambda t: t.to(posterior.device))
        start = time.perf_counter()
        prediction = posterior.predict(inputs, draws, keep_samples=nested)
        seconds += time.perf_counter() - start
        prediction, own_targets, each = judge.rows(prediction, batch.targets.detach().cpu())
        targets.append(own_targets)
        owners.append(torch.arange(examples, examples + len(batch.targets)).repeat_interleave(each))
        examples += len(batch.targets)
        spec = InputSpec.of(batch.inputs)
        along += [t.detach().cpu()[:, 0] for t in tensors_of(batch.inputs) if spec.shapes == ((1,),)]
        if nested and prediction.samples is not None:
            counts = sorted({min(2**k, len(prediction.samples)) for k in range(int(draws).bit_length() + 1)})
            chosen = [evenly(k, len(prediction.samples)) for k in counts]
            fewer.append(torch.stack([judge.each(judge.only(prediction, some), targets[-1]) for some in chosen]))
        parts.append(judge.light(prediction))
    if not parts:
        raise PosterityError("there are no examples to evaluate on")
    return Gathered(
        prediction=judge.joined(parts),
        targets=torch.cat(targets),
        examples=examples,
        owner=torch.cat(owners) if examples < sum(map(len, owners)) else None,
        spec=spec,
        along=torch.cat(along) if along else None,
        counts=counts,
        nested=torch.cat(fewer, -1) if fewer else None,
        seconds=seconds,
    )


def fingerprint(targets: Tensor) -> str:
    """Tells whether two evaluations saw the same test set, in the same order."""
    return hashlib.sha256(targets.contiguous().double().numpy().tobytes()).hexdigest()[:16]
