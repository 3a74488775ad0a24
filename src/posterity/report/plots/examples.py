"""Single predictions, and whole decision surfaces."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posterity.report import style
from posterity.report.plots.select import Results, chosen, detail
from posterity.report.verdict import label
from posterity.types import PosterityError

__all__ = ["examples", "picture", "surfaces"]

_ALEATORIC, _EPISTEMIC = style.colour(5), style.colour(1)
_TALL = 1.46
"""Height of an example's cell, in widths."""


@style.styled
def examples(results: Results, method: str, across: int = 4) -> Figure:
    """The most uncertain and the most certain test pictures with their class probabilities and both uncertainties."""
    found = [e for e in detail(results, method, "examples")[0] if "picture" in e]
    if not found:
        raise PosterityError(f"the examples of {method!r} are not pictures")
    rows = -(-len(found) // across)
    made = Figure(figsize=(1.2 * across, 1.75 * rows + 0.3), layout="constrained")
    ax = made.subplots()
    ax.set_axis_off()
    ax.set_title(f"{label(method)}: most uncertain first, most certain last")
    top = max(e["aleatoric"] + e["epistemic"] for e in found)
    for i, example in enumerate(found):
        _example(ax, example, i % across, -_TALL * (i // across), results["classes"], top)
    ax.set(xlim=(0, across), ylim=(-_TALL * rows, 0.02))  # at last: every picture would choose its own
    return made


@style.styled
def surfaces(results: Results, methods: Sequence[str] | None = None) -> Figure:
    """For inputs in a plane: boundaries of the mean and of single draws, and the entropy; a row a method."""
    methods = chosen(results, methods, "surface")
    made, axes = style.figure(3 * len(methods), 2.4, 2.2, across=3)
    for row, method in enumerate(methods):
        found = detail(results, method, "surface")[0]
        mean_ax, draws_ax, entropy_ax = axes[3 * row : 3 * row + 3]
        x, y = found["x"], found["y"]
        mean_ax.contourf(x, y, found["probability"], levels=np.linspace(0, 1, 11), cmap="RdBu", alpha=0.6)
        mean_ax.contour(x, y, found["probability"], levels=[0.5], colors=style.INK, linewidths=1.4)
        for drawn in found["draws"] or [found["probability"]]:
            draws_ax.contour(x, y, drawn, levels=[0.5], colors=style.INK, linewidths=0.7, alpha=0.7)
        shades = entropy_ax.contourf(
            x, y, found["entropy"], levels=np.linspace(0, np.log(2) + 1e-6, 12), cmap="cividis"
        )
        made.colorbar(shades, ax=entropy_ax, ticks=[0, 0.3, 0.6], shrink=0.85)
        for ax, title in ((mean_ax, "mean"), (draws_ax, "draws"), (entropy_ax, "entropy, nats")):
            _points(ax, found, faint=ax is entropy_ax)
            ax.set(xticks=[], yticks=[], title=f"{label(method)}: {title}")
            ax.grid(False)
    return made


def picture(example: dict[str, Any]) -> np.ndarray:
    """The pixels of a stored example, [height, width] or [height, width, 3]."""
    pixels = np.frombuffer(base64.b64decode(example["picture"]["bytes"]), np.uint8).reshape(example["picture"]["shape"])
    return pixels[:, :, 0] if pixels.shape[2] == 1 else pixels


def _example(ax: Axes, example: dict[str, Any], x: float, y: float, names: Sequence[str], top: float) -> None:
    """Title, picture, bars of probabilities and strip of uncertainties, in a cell whose top left is (x, y)."""
    right = example["label"] == example["target"]
    said, truth = (style.short(names[example[key]]) for key in ("label", "target"))
    told, ink = (said, style.INK) if right else (f"{said} (is {truth})", style.colour(1))
    ax.text(x + 0.5, y - 0.02, told, ha="center", va="top", fontsize=8, color=ink)
    extent = (x + 0.15, x + 0.85, y - 0.86, y - 0.16)
    ax.imshow(picture(example), cmap="gray", vmin=0, vmax=255, extent=extent, aspect="auto", interpolation="nearest")
    probs = example["probs"]
    step, ground = 0.9 / len(probs), y - 1.24
    shades = [style.colour(2) if k == example["target"] else "#9a9a9a" for k in range(len(probs))]
    left = [x + 0.05 + step * k for k in range(len(probs))]
    ax.bar(left, [0.33 * p for p in probs], 0.85 * step, ground, align="edge", color=shades, linewidth=0)
    ax.plot([x + 0.05, x + 0.95], [ground, ground], color=style.INK, linewidth=0.5)
    if len(probs) <= 10:
        for k, position in enumerate(left):
            ax.text(position + 0.42 * step, ground - 0.015, str(k), ha="center", va="top", fontsize=5)
    wide = 0.9 / (top or 1.0)
    for start, part, tint in ((0, "aleatoric", _ALEATORIC), (example["aleatoric"], "epistemic", _EPISTEMIC)):
        ax.barh(y - 1.37, wide * example[part], 0.05, x + 0.05 + wide * start, color=tint, linewidth=0)


def _points(ax: Axes, found: dict[str, Any], faint: bool) -> None:
    points, labels = np.array(found["points"]), np.array(found["labels"])
    for k, tint in ((0, "#b2182b"), (1, "#2166ac")):
        own = points[labels == k]
        ax.scatter(own[:, 0], own[:, 1], s=4, color=tint, alpha=0.35 if faint else 0.7, linewidth=0)
