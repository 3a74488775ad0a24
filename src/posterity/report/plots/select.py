"""Picking what to draw out of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posterity.report.standing import done
from posterity.types import PosterityError

__all__ = ["chosen", "detail", "place"]

Results = Mapping[str, Any]


def chosen(results: Results, methods: Sequence[str] | None, detail: str | None = None) -> list[str]:
    """The methods to draw: those asked for, else all that finished (and have this detail)."""
    if methods is not None:
        empty = [name for name in methods if not done(results, name)]
        if empty:
            raise PosterityError(f"{empty[0]!r} has no finished run to plot")
        return list(methods)
    finished = [name for name in results["methods"] if done(results, name)]
    return [m for m in finished if detail is None or detail in done(results, m)[0]["scores"]["details"]]


def place(results: Results, method: str) -> int:
    """Where a method stands in the results: its colour, whichever methods are drawn."""
    return list(results["methods"]).index(method)


def detail(results: Results, method: str, name: str) -> list[Any]:
    """This detail of every seed of a method that has it."""
    runs = [run["scores"]["details"] for run in done(results, method)]
    found = [details[name] for details in runs if name in details]
    if not found:
        raise PosterityError(f"the results of {method!r} hold no {name!r}")
    return found


def mean(values: Sequence[Any]) -> np.ndarray:
    """The mean over seeds; what is missing (null) is left out."""
    table = np.array(values, dtype=float)
    known = np.isfinite(table)
    total = np.where(known, table, 0).sum(0)
    return np.where(known.any(0), total / np.maximum(known.sum(0), 1), np.nan)
