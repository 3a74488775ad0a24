"""What an evaluation gives back: figures with their intervals and what the plots need; a dictionary and a JSON file.

Two evaluations on the same test set with the same seed were resampled alike, so their difference is judged resample by
resample: that is a paired comparison, much sharper than two intervals side by side.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from posterity.evaluation.bootstrap import Interval, interval
from posterity.evaluation.metrics import metric, unknown
from posterity.files import write_bytes
from posterity.types import PosterityError, check_level

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Comparison", "Difference", "Scores"]


@dataclass(frozen=True, eq=False, repr=False)
class Scores(Mapping[str, float]):
    """The figures of one posterior on one test set: ``scores["nll"]``, ``scores.interval("nll")``.

    Figures of an out-of-distribution set are called ``name/figure``.

    Attributes:
        figures: The value of every figure.
        replicates: Its values on resampled test sets.
        details: Curves and tables for plots, by name.
        about: What was evaluated on what: task, number of examples and draws, the test set's fingerprint.
    """

    figures: dict[str, float]
    replicates: dict[str, list[float]] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        if name not in self.figures:
            raise unknown(name, self.figures)
        return self.figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.figures)

    def __len__(self) -> int:
        return len(self.figures)

    def interval(self, name: str, level: float = 0.95) -> Interval:
        """Where the figure lies with this confidence, by the bootstrap over test examples."""
        check_level(level)
        found = interval(self[name], torch.tensor(self.replicates.get(name, []), dtype=torch.float64), level)
        known = metric(name)
        low, high = (min(max(end, known.low), known.high) for end in (found.low, found.high))
        return Interval(low, high, found.error)

    def compare(self, other: Scores) -> Comparison:
        """This posterior against another on the figures that both have."""
        if not isinstance(other, Scores):
            raise PosterityError(f"scores are compared with scores, got {type(other).__name__}")
        return Comparison({name: self._difference(other, name) for name in self if name in other.figures})

    def _difference(self, other: Scores, name: str) -> Difference:
        mine, theirs = (torch.tensor(s.replicates.get(name, []), dtype=torch.float64) for s in (self, other))
        same = self.about.get("fingerprint") == other.about.get("fingerprint") and len(mine) == len(theirs)
        if same:
            error = interval(0.0, mine - theirs).error
        else:
            error = math.hypot(interval(0.0, mine).error, interval(0.0, theirs).error)
        return Difference(self[name], other[name], self[name] - other[name], error, metric(name).better)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only; ``from_dict`` takes them back."""
        replicates = {name: [_rounded(v) for v in values] for name, values in self.replicates.items()}
        return _plain({"figures": self.figures, "replicates": replicates, "details": self.details, "about": self.about})

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Scores:
        """The scores that ``to_dict`` was taken from."""
        if not isinstance(state, Mapping) or "figures" not in state:
            raise PosterityError("these are no stored scores: a dictionary with 'figures' was expected")
        nan = float("nan")
        return cls(
            {name: nan if value is None else value for name, value in state["figures"].items()},
            {n: [nan if v is None else v for v in vs] for n, vs in state.get("replicates", {}).items()},
            dict(state.get("details", {})),
            dict(state.get("about", {})),
        )

    def save(self, path: str | Path) -> None:
        """Write the scores to a JSON file, whole or not at all."""
        write_bytes(path, json.dumps(self.to_dict()).encode())

    @classmethod
    def load(cls, path: str | Path) -> Scores:
        """Read what ``save`` wrote."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text()))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise PosterityError(f"{path} is not a readable file of scores: {error}") from error

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Label, value, 95% interval and meaning of every figure, as text."""
        return [(metric(name).label, *self._texts(name), metric(name).meaning) for name in self]

    def _texts(self, name: str) -> tuple[str, str]:
        low, high, _ = self.interval(name)
        span = "" if math.isnan(low) else f"{low:.4g} … {high:.4g}"
        return f"{self[name]:.4g}", span

    def table(self) -> Table:
        """The figures as a rich table."""
        from rich.table import Table  # here, because scores are made without the command line's packages

        table = Table(title=self._title(), title_justify="left")
        for head in ("figure", "value", "95% interval", "meaning"):
            table.add_column(head, justify="right" if head == "value" else "left")
        for row in self.rows():
            table.add_row(*row)
        return table

    def __repr__(self) -> str:
        rows = [f"  {label:<26}{value:>10}   {span}" for label, value, span, _ in self.rows()]
        return "\n".join([f"Scores({self._title()})", *rows])

    def _repr_html_(self) -> str:
        head = "<tr><th>figure</th><th>value</th><th>95% interval</th><th>meaning</th></tr>"
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows()
        )
        return f"<table><caption>{html.escape(self._title())}</caption>{head}{body}</table>"

    def _title(self) -> str:
        about = self.about
        return (
            f"{about.get('task', 'evaluation')}, {about.get('examples', '?')} examples, {about.get('draws', '?')} draws"
        )


class Difference(NamedTuple):
    """One figure of two posteriors: both values, their difference, its standard error, and which way is better.

    Without resamples the error is NaN, and nothing can be said of chance.
    """

    first: float
    second: float
    difference: float
    error: float
    better: int

    @property
    def tied(self) -> bool:
        """Whether the difference is within two standard errors, so that chance may have made it."""
        return abs(self.difference) <= 2 * self.error

    @property
    def verdict(self) -> str:
        """``first`` or ``second`` is better, or they are ``tied``; ``no contest`` without a better way or an error."""
        if not self.better or math.isnan(self.error):
            return "no contest"
        return "tied" if self.tied else "first" if self.difference * self.better > 0 else "second"


class Comparison(dict[str, Difference]):
    """Differences by figure."""

    def __getitem__(self, name: str) -> Difference:
        if name not in self:
            raise unknown(name, self)
        return super().__getitem__(name)

    def __repr__(self) -> str:
        head = f"{'':<28}{'first':>10}{'second':>10}{'difference':>12}   better"
        rows = [
            f"{metric(name).label:<28}{d.first:>10.4g}{d.second:>10.4g}{d.difference:>+12.2g}   {d.verdict}"
            for name, d in self.items()
        ]
        return "\n".join([head, *rows])


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for both."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def _rounded(value: float) -> float:
    """Six digits: what a resampled figure is worth, at half the size on disk."""
    return float(f"{value:.6g}")
