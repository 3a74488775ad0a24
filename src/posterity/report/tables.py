"""The ranked table as text: for the terminal, for a README, for a spreadsheet."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from posterity.evaluation.metrics import metric
from posterity.report.standing import Cell, columns, standings
from posterity.report.verdict import label

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["as_csv", "as_markdown", "as_rich", "shown"]

_BEST, _TIED = "★", "●"


def shown(name: str, cell: Cell) -> str:
    """A figure with its standard error, in the digits it deserves."""
    if name in ("train_time", "predict_time"):
        return f"{cell.value:.1f}×" if cell.value < 10 else f"{cell.value:.0f}×"
    if name == "stored":
        return _short(cell.value)
    if name == "memory_mb":
        return f"{cell.value:.1f}" if cell.value < 100 else f"{cell.value:.0f}"
    percent = name == "accuracy" or name.startswith("coverage_")
    scale, digits = (100, 1) if percent else (1, 3)
    text = f"{scale * cell.value:.{digits}f}" + ("%" if percent else "")
    return text if math.isnan(cell.error) else f"{text} ± {scale * cell.error:.{digits}f}"


def mark(cell: Cell) -> str:
    """A star for the best, a dot for what is tied with it."""
    return _BEST if cell.best and cell.tied else _TIED if cell.tied else ""


def as_rich(results: Mapping[str, Any]) -> Table:
    """The ranked table for a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    names, lines = columns(results), standings(results)
    table = Table(
        box=SIMPLE_HEAD,
        padding=0,  # so that all columns fit 80 characters
        show_edge=False,
        title=f"{escape(results['title'])}: ranked by NLL; {_BEST} best, {_TIED} tied with it",
        title_justify="left",
        caption_justify="left",
        min_width=None if names else 72,  # the reasons of failures are as wide as the table, which may have no figure
    )
    table.add_column("method", no_wrap=True, min_width=max((len(label(line.name)) for line in lines), default=0))
    for name in names:
        cells = [_in_two(name, line.cells[name]) for line in lines if name in line.cells]
        head = metric(name).label.replace(" ", "\n")
        # No number is broken in two, however narrow the terminal is.
        width = max(len(part) for text in (head, *cells) for part in text.splitlines())
        table.add_column(head, justify="right", min_width=width)
    for line in lines:
        if not line.cells:
            table.caption = f"{table.caption or ''}{label(line.name)} failed: {escape(line.reason)}\n"
            continue
        cells = ["–" if name not in line.cells else _in_two(name, line.cells[name]) for name in names]
        tied = [name in line.cells and line.cells[name].tied for name in names]
        styled = [f"[bold]{text}[/bold]" if best else text for text, best in zip(cells, tied, strict=True)]
        table.add_row(label(line.name), *styled)
    return table


def _in_two(name: str, cell: Cell) -> str:
    """A marked figure, and its standard error below."""
    return mark(cell) + shown(name, cell).replace(" ± ", "\n±")


def as_markdown(results: Mapping[str, Any]) -> str:
    """The ranked table for a README."""
    names = columns(results)
    rows = [["method", *(metric(name).label for name in names)], ["---", *("--:" for _ in names)]]
    for line in standings(results):
        if not line.cells:
            reason = " ".join(line.reason.split()).replace("|", "\\|")  # a cell is one line, and ends at a bar
            rows.append([label(line.name), f"failed: {reason}", *("" for _ in names[1:])])
            continue
        texts = []
        for name in names:
            cell = line.cells.get(name)
            text = "–" if cell is None else shown(name, cell)
            texts.append(f"**{text}**" if cell is not None and cell.tied else text)
        rows.append([label(line.name), *texts])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def as_csv(results: Mapping[str, Any]) -> str:
    """Means and standard errors for a spreadsheet."""
    names, out = columns(results), io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["method", *(head for name in names for head in (name, f"{name}_error"))])
    for line in standings(results):
        cells = [line.cells.get(name) for name in names]
        writer.writerow([line.name, *(v for c in cells for v in (("", "") if c is None else (c.value, c.error)))])
    return out.getvalue()


def _short(count: float) -> str:
    """17.6k, 1.2M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return f"{count:.0f}"
