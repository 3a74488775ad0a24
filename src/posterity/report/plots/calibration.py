"""Is the confidence to be believed: reliability, coverage, entropies, calibration of every class."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from posterity.report import style
from posterity.report.plots.select import Results, chosen, detail, mean, place
from posterity.report.standing import done
from posterity.report.verdict import label

__all__ = ["classes", "coverage", "entropies", "reliability"]


@style.styled
def reliability(results: Results, methods: Sequence[str] | None = None) -> Figure:
    """Accuracy against confidence, one panel a method; below, how many examples each bin holds."""
    methods = chosen(results, methods, "reliability")
    made, axes = style.figure(len(methods), 2.3, 2.5)
    for ax, method in zip(axes, methods, strict=True):
        seeds = detail(results, method, "reliability")
        edges = np.array(seeds[0]["edges"])
        accuracy, sure = (mean([s[key] for s in seeds]) for key in ("accuracy", "confidence"))
        count = mean([s["count"] for s in seeds])
        width, tint = np.diff(edges), style.colour(place(results, method))
        ax.plot([0, 1], [0, 1], color=style.INK, linewidth=0.8, linestyle=":")
        ax.bar(edges[:-1], np.nan_to_num(accuracy), width, align="edge", color=tint, alpha=0.75, linewidth=0)
        gap = np.nan_to_num(sure - accuracy)
        ax.bar(edges[:-1], gap, width, np.nan_to_num(accuracy), align="edge", fill=False, edgecolor=tint, linewidth=0.7)
        share = count / count.sum()
        ax.bar(edges[:-1], -0.22 * share / share.max(), width, align="edge", color=style.INK, alpha=0.35, linewidth=0)
        ax.text(0.02, -0.2, f"n = {count.sum():.0f}", fontsize=7)
        ax.set(xlim=(0, 1), ylim=(-0.25, 1.02), xlabel="confidence", ylabel="accuracy", title=label(method))
        ax.set_yticks([0, 0.5, 1])
    return made


@style.styled
def coverage(results: Results, methods: Sequence[str] | None = None) -> Figure:
    """Accuracy on the most certain examples against the share of examples answered."""
    methods = chosen(results, methods, "coverage")
    made, axes = style.figure(min(1, len(methods)), 4.2, 3.2)
    floor = 1.0
    for method in methods:
        seeds = detail(results, method, "coverage")
        accuracy = mean([s["accuracy"] for s in seeds])
        floor = min(floor, float(accuracy[len(accuracy) // 20 :].min()))
        axes[0].plot(seeds[0]["coverage"], accuracy, label=label(method), **style.line(place(results, method)))
    room = 0.05 * (1 - floor) + 1e-3
    axes[0].set(
        xlim=(0, 1), ylim=(floor - room, 1 + room), xlabel="share of examples answered", ylabel="accuracy on them"
    )
    style.legend(made, axes)
    return made


@style.styled
def entropies(results: Results, methods: Sequence[str] | None = None) -> Figure:
    """Histograms of predictive entropy on known and foreign inputs, one panel a method."""
    methods = chosen(results, methods, "entropy")
    made, axes = style.figure(len(methods), 2.6, 2.3)
    top = math.log(max(2, len(results["classes"])))
    for ax, method in zip(axes, methods, strict=True):
        seeds = detail(results, method, "entropy")
        for i, name in enumerate(seeds[0]):
            shares = mean([s[name] for s in seeds])
            edges = np.linspace(0, top, len(shares) + 1)
            tint = style.INK if name == "test" else style.colour(i)
            ax.stairs(shares, edges, fill=True, alpha=0.3 if name == "test" else 0.35, color=tint, linewidth=0)
            ax.stairs(shares, edges, color=tint, linewidth=1.1, label="known" if name == "test" else name)
        ax.set(xlim=(0, top), xlabel="entropy, nats", ylabel="share of inputs", title=label(method))
        ax.set_yscale("symlog", linthresh=0.1)
        ax.set_ylim(0, 1.2)
        ax.set_yticks([0, 0.05, 0.1, 1], ["0", ".05", ".1", "1"])
        ax.minorticks_off()
    style.legend(made, axes)
    return made


_NAMED = 20
"""How many classes have room for their names."""


@style.styled
def classes(results: Results, methods: Sequence[str] | None = None) -> Figure:
    """The calibration error of each class's probability, by method: a heat map."""
    methods = chosen(results, methods, "classes")
    every = max(1, -(-len(results["classes"]) // _NAMED))  # of many classes only some are named
    names = [style.short(name) for name in results["classes"][::every]]
    table = np.array([_class_errors(results, method) for method in methods])
    longest = max(map(len, names), default=0)
    width, height = max(3.2, 0.42 * len(names) + 1.6), max(2.2, 0.3 * len(methods) + 1.1) + 0.05 * max(0, longest - 6)
    made, axes = style.figure(min(1, len(methods)), width, height)
    ax = axes[0]
    shown = ax.imshow(100 * table, cmap="cividis", aspect="auto", vmin=0)
    ax.grid(False)
    ax.set_xticks(range(0, table.shape[1], every), names)
    if longest > 3:  # turned about their ends, so that each stays below its own column
        ax.tick_params("x", rotation=45)
        for tick in ax.get_xticklabels():
            tick.set(ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(methods)), [label(m) for m in methods])
    ax.set_xlabel("class")
    if table.shape[1] <= 12:
        middle = 100 * table.max() / 2  # of the colours, which start at zero
        for (i, j), value in np.ndenumerate(100 * table):
            ink = "#ffffff" if value < middle else "#000000"
            ax.text(j, i, f"{value:.1f}", ha="center", va="center", fontsize=7, color=ink)
    made.colorbar(shown, ax=ax, label="calibration error, points", shrink=0.9)
    return made


def _class_errors(results: Results, method: str) -> np.ndarray:
    errors = []
    for run in done(results, method):
        found = run["scores"]["details"]["classes"]
        gap, count = (np.array(found[key], dtype=float) for key in ("gap", "count"))
        errors.append((np.nan_to_num(np.abs(gap)) * count).sum(1) / count.sum(1))
    return np.mean(errors, 0)
