"""A stream of tasks in figures and on a page: who remembers, who forgets, and whether confidence stays honest.

Results are ``{"benchmark": name, "methods": {name: [record, ...]}}``, with what ``Learned.record`` gives for each seed.
"""

from __future__ import annotations

import html
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from posterity.continual.result import average
from posterity.files import write_bytes
from posterity.report import style
from posterity.report.page import document
from posterity.report.verdict import listed

__all__ = ["COLUMNS", "accuracy_matrix", "cells", "over_tasks", "write_page"]

Record = Mapping[str, Any]
Results = Mapping[str, Any]

COLUMNS: Mapping[str, tuple[str, str]] = {
    "accuracy": ("average accuracy", "over all tasks, after the last"),
    "forgetting": ("forgetting", "how far tasks have fallen from their best accuracy"),
    "backward_transfer": ("backward transfer", "how tasks have changed since they were learned"),
    "forward_transfer": ("forward transfer", "what tasks gain from earlier ones before they are learned"),
    "nll": ("NLL", "negative log-likelihood in nats, averaged over all tasks after the last"),
    "ece": ("ECE", "calibration error, averaged over all tasks after the last"),
    "seconds": ("seconds", "of learning"),
}
"""The figures of the table: their heads and meanings."""

_PERCENT = {"accuracy", "forgetting", "backward_transfer", "forward_transfer"}


def cells(records: Sequence[Record]) -> dict[str, str]:
    """A row of the table: means over seeds, with their standard deviation where there are several."""
    found = {}
    for name in COLUMNS:
        values = [record["figures"][name] for record in records if name in record["figures"]]
        scale, digits, unit = (100, 1, "%") if name in _PERCENT else (1, 0 if name == "seconds" else 3, "")
        spread = f" ± {scale * statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        found[name] = f"{scale * statistics.mean(values):.{digits}f}{unit}{spread}" if values else "–"
    return found


@style.styled
def accuracy_matrix(record: Record) -> Figure:
    """The accuracy on every task (columns) after every task (rows)."""
    rows = [row["accuracy"] for row in record["rows"]]
    wide = max(map(len, rows))  # a stream that has grown knew fewer tasks at first
    matrix = 100 * np.array([[*row, *[None] * (wide - len(row))] for row in rows], dtype=float)
    count = len(matrix)
    made, (ax,) = style.figure(1, 1.6 + 0.42 * matrix.shape[1], 1.1 + 0.36 * count)
    _heat(ax, matrix)
    ax.set(xlabel="accuracy on task, %", ylabel="after task")
    ax.set_xticks(range(matrix.shape[1]), [str(k + 1) for k in range(matrix.shape[1])])
    ax.set_yticks(range(count), [str(t + 1) for t in range(count)])
    return made


def _heat(ax: Axes, matrix: np.ndarray) -> None:
    """Numbers on their colours; tasks that have not come yet have none."""
    learned = (np.tri(*matrix.shape) > 0) & np.isfinite(matrix)
    low = min(50.0, float(matrix[learned].min()))
    ax.imshow(np.ma.array(matrix, mask=~learned), cmap="YlGnBu", vmin=low, vmax=100, aspect="auto")
    ax.grid(False)
    for t, k in np.argwhere(np.isfinite(matrix)):
        value = matrix[t, k]
        dark = learned[t, k] and value - low > 0.6 * (100 - low)
        ink = "white" if dark else "black" if learned[t, k] else style.INK
        ax.text(k, t, f"{value:.0f}" if value < 99.95 else "100", ha="center", va="center", color=ink, fontsize=7.5)


@style.styled
def over_tasks(results: Results, figure: str = "accuracy") -> Figure:
    """A figure's average over the tasks so far, after every task; a band of one standard deviation over seeds."""
    made, (ax,) = style.figure(1, 4.4, 3.3)
    scale = 100 if figure == "accuracy" else 1
    for index, (name, records) in enumerate(results["methods"].items()):
        curves = scale * np.array([average([row[figure] for row in r["rows"]]) for r in records])
        tasks, mean = np.arange(1, curves.shape[1] + 1), curves.mean(0)
        ax.plot(tasks, mean, marker=style.marker(index), label=name, **style.line(index))
        if len(curves) > 1:
            spread = curves.std(0, ddof=1)
            ax.fill_between(tasks, mean - spread, mean + spread, color=style.colour(index), alpha=0.15, linewidth=0)
    label = {"accuracy": "average accuracy, %", "nll": "average NLL, nats", "ece": "average calibration error"}[figure]
    ax.set(xlabel="tasks learned", ylabel=label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.legend(made, [ax])
    return made


def write_page(results: Results, folder: Path, version: str) -> Path:
    """Write report.html, and every figure as SVG and PNG under figures/; the path of the page."""
    curves = {f"{name}_over_tasks": over_tasks(results, name) for name in ("accuracy", "nll", "ece")}
    fields = {f"matrix_{_slug(name)}": accuracy_matrix(runs[0]) for name, runs in results["methods"].items()}
    shared, matrices = ({name: _written(folder, name, made) for name, made in p.items()} for p in (curves, fields))
    first = next(iter(results["methods"].values()))[0]
    main = "".join(
        [
            f'<p class="verdict">{html.escape(_verdict(results))}</p>',
            _table(results),
            _section("Over tasks", "Averages over the tasks learned so far, after each task.", shared, "middle"),
            _section(
                "Accuracy matrices",
                "Each row is after a task, each column on a task; those without colour have not been learned "
                "yet. Forgetting is a column that fades downwards.",
                matrices,
                "middle",
            ),
            _made(results),
        ]
    )
    title = f"{results['benchmark']}: learning that goes on"
    write_bytes(folder / "report.html", document(title, f"{len(first['tasks'])} tasks", main, version).encode())
    return folder / "report.html"


def _verdict(results: Results) -> str:
    means = {
        name: statistics.mean(r["figures"]["accuracy"] for r in records) for name, records in results["methods"].items()
    }
    shown = {name: f"{100 * mean:.1f}%" for name, mean in means.items()}
    best, least = shown[max(means, key=means.__getitem__)], shown[min(means, key=means.__getitem__)]
    right = f"after the last task: {best} of a task's test examples are right on average"
    if len(means) > 1 and best == least:
        return f"{listed(shown)} know equally much {right}."
    text = f"{_knowing(shown, best)} most {right}"
    return f"{text}." if len(means) == 1 else f"{text}; {_knowing(shown, least)} least, {least}."


def _knowing(shown: Mapping[str, str], value: str) -> str:
    """The methods with this figure; figures that read the same count as equal."""
    names = [name for name, text in shown.items() if text == value]
    return f"{listed(names)} {'knows' if len(names) == 1 else 'know'}"


def _table(results: Results) -> str:
    heads = '<th scope="col"><button type="button">learned by</button></th>' + "".join(
        f'<th scope="col" title="{html.escape(meaning, quote=True)}">'
        f'<button type="button">{html.escape(head)}</button></th>'
        for head, meaning in COLUMNS.values()
    )
    rows = ""
    for index, (name, records) in enumerate(results["methods"].items()):
        dot = f'<span class="swatch" style="background:{style.colour(index)}"></span>'
        row = "".join(
            f'<td data-value="{_sorted_by(cell)}">{html.escape(cell)}</td>' for cell in cells(records).values()
        )
        rows += f'<tr><th scope="row">{dot}{html.escape(name)}</th>{row}</tr>'
    return (
        f'<div class="scroll" tabindex="0"><table class="sortable"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        '<p class="note">± is the standard deviation over seeds. Hold the pointer over a head to see what it means.</p>'
    )


def _sorted_by(cell: str) -> str:
    """The number that a cell begins with."""
    return cell.partition(" ")[0].rstrip("%–")


def _written(folder: Path, name: str, made: Figure) -> str:
    """Write a figure as SVG and PNG; the SVG once more, for the page."""
    text = style.svg(made, name)
    write_bytes(folder / "figures" / f"{name}.svg", text.encode())
    write_bytes(folder / "figures" / f"{name}.png", style.png(made))
    return text


def _section(title: str, about: str, figures: Mapping[str, str], size: str) -> str:
    panels = "".join(
        f"<figure>{style.inline(text, name.replace('_', ' '))}<figcaption>{html.escape(_caption(name))}"
        "</figcaption></figure>"
        for name, text in figures.items()
    )
    return f'<section><h2>{title}</h2><p>{about}</p><div class="grid {size}">{panels}</div></section>'


def _slug(name: str) -> str:
    """A name that files and links can have."""
    return re.sub(r"[^\w-]+", "-", name)


def _caption(name: str) -> str:
    return name.removeprefix("matrix_").replace("_", " ")


def _made(results: Results) -> str:
    lines = "".join(
        f"<dt>{html.escape(name)}</dt><dd><code>{html.escape(records[0]['strategy'])}</code></dd>"
        for name, records in results["methods"].items()
    )
    return f"<section><h2>How it was made</h2><p>Settings of every way of learning.</p><dl>{lines}</dl></section>"
