"""How much a figure would change with another test set: the bootstrap (Efron 1979), all resamples at once.

Drawing n examples with replacement is the same as giving each a multinomial count, and every metric here takes counts
as weights; so one call with a matrix [resamples, n] gives all resampled figures.

The interval lays the spread of the resampled figures about their own mean around the figure itself. For averages that
is the percentile interval; a calibration error, which resampling makes larger (repeated examples look miscalibrated),
would otherwise lie outside its own interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from posterity.types import PosterityError

__all__ = ["Interval", "bootstrap", "interval", "resample"]

_ELEMENTS = 1_000_000
"""Counts held at a time: 4 MB, which stay in cache; larger blocks are slower."""


class Interval(NamedTuple):
    """Where a figure lies with 95% confidence, and its standard error."""

    low: float
    high: float
    error: float


def resample(n: int, resamples: int, generator: torch.Generator) -> Tensor:
    """Counts [resamples, n] of n draws with replacement from n examples."""
    if n < 1 or resamples < 1:
        raise PosterityError(f"a bootstrap needs examples and resamples, got {n} and {resamples}")
    drawn = torch.randint(n, (resamples, n), generator=generator)
    return torch.zeros(resamples, n).scatter_add_(1, drawn, torch.ones(1, 1).expand(resamples, n))


def bootstrap(
    figures: Callable[[Tensor], Mapping[str, Tensor]],
    sizes: tuple[int, ...],
    resamples: int,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Every figure on every resample.

    Args:
        figures: Named figures as a function of weights [resamples, sum of sizes], one value a row.
        sizes: Number of examples of each group; groups are resampled each by itself (test set, out-of-distribution).
        resamples: How many times.
        generator: Draws the examples. The same generator and sizes give the same resamples, so that two posteriors on
            one test set can be compared resample by resample.
    """
    parts = [figures(weights) for weights in _chunks(sizes, resamples, generator)]
    return {name: torch.cat([part[name].double() for part in parts]) for name in parts[0]}


def interval(value: float, replicates: Tensor, level: float = 0.95) -> Interval:
    """The interval of a figure from its resampled values; values that could not be computed are left out."""
    known = replicates[replicates.isfinite()].double()
    if len(known) < 2:
        return Interval(float("nan"), float("nan"), float("nan"))
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = (torch.quantile(known - known.mean(), tails) + value).tolist()
    return Interval(low, high, float(known.std()))


def _chunks(sizes: tuple[int, ...], resamples: int, generator: torch.Generator) -> Iterator[Tensor]:
    rows = max(1, _ELEMENTS // sum(sizes))
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        yield torch.cat([resample(n, count, generator) for n in sizes], 1)
