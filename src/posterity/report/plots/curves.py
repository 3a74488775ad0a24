"""Figures against something: severity of a corruption, number of draws, epochs, cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from posterity.evaluation.metrics import metric
from posterity.report import style
from posterity.report.plots.select import Results, chosen, detail, mean, place
from posterity.report.standing import RANKS, done, standings
from posterity.report.verdict import label

__all__ = ["cost", "draws", "shift", "temperature", "training"]


@style.styled
def shift(
    results: Results, methods: Sequence[str] | None = None, figures: Sequence[str] | None = None, corruption: str = ""
) -> Figure:
    """Figures against the severity of a corruption, or of their mean, one panel a figure."""
    methods = chosen(results, methods, "shift")
    first = detail(results, methods[0], "shift")[0] if methods else {}
    names = list(figures or (next(iter(first.values())) if first else ()))
    made, axes = style.figure(len(names), 3.3, 2.7)
    for method in methods:
        seeds = detail(results, method, "shift")
        for ax, name in zip(axes, names, strict=True):
            curves = [s[c][name] for s in seeds for c in s if corruption in ("", c)]
            ax.plot(range(6), mean(curves), label=label(method), marker=".", **style.line(place(results, method)))
    for ax, name in zip(axes, names, strict=True):
        ax.set(xlabel=f"severity of {corruption or 'corruption'}", ylabel=metric(name).label)
        ax.set_xticks(range(6))
    style.legend(made, axes)
    return made


@style.styled
def draws(results: Results, methods: Sequence[str] | None = None, figures: Sequence[str] = ("error", "nll")) -> Figure:
    """Error and NLL against the number of draws averaged: the NLL keeps improving."""
    methods = chosen(results, methods, "draws")
    made, axes = style.figure(len(figures) if methods else 0, 3.5, 2.8)
    regression = results["task"] == "regression"
    for method in methods:
        seeds = detail(results, method, "draws")
        counts, index = seeds[0]["draws"], place(results, method)
        dot = "o" if len(counts) > 1 else style.marker(index)
        for ax, name in zip(axes, figures, strict=True):
            ax.plot(counts, mean([s[name] for s in seeds]), marker=dot, label=label(method), **style.line(index))
    for ax, name in zip(axes, figures, strict=True):
        error = "squared error" if regression else "error rate"
        ax.set(xscale="log", xlabel="draws averaged", ylabel=error if name == "error" else "NLL")
        ax.set_xticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
        ax.minorticks_off()
    style.legend(made, axes)
    return made


@style.styled
def training(results: Results, methods: Sequence[str] | None = None) -> Figure:
    """The training loss by epoch, the mean over seeds."""
    methods = [m for m in chosen(results, methods) if done(results, m)[0]["history"]]
    made, axes = style.figure(min(1, len(methods)), 4.2, 3.2)
    for method in methods:
        histories = [[epoch["loss"] for epoch in run["history"]] for run in done(results, method)]
        length = min(map(len, histories))
        loss = mean([h[:length] for h in histories])
        axes[0].plot(np.arange(1, length + 1), loss, label=label(method), **style.line(place(results, method)))
    axes[0].set(xlabel="epoch", ylabel="training loss, nats an example")
    if results["task"] == "classification":
        axes[0].set_yscale("log")
    style.legend(made, axes)
    return made


@style.styled
def cost(results: Results, methods: Sequence[str] | None = None, figure: str | None = None) -> Figure:
    """Quality against training time: the lower left corner is where one wants to be."""
    name = figure or RANKS
    lines = {line.name: line for line in standings(results, [name, "train_time"]) if len(line.cells) == 2}
    methods = [method for method in chosen(results, methods) if method in lines]
    made, axes = style.figure(min(1, len(methods)), 4.2, 3.2)
    ax = axes[0]
    for method in methods:
        cells, i = lines[method].cells, place(results, method)
        spread = 0 if np.isnan(cells[name].error) else cells[name].error
        x, y = cells["train_time"].value, cells[name].value
        look: dict[str, Any] = {"color": style.colour(i), "marker": style.marker(i), "label": label(method)}
        ax.errorbar(x, y, yerr=2 * spread, linestyle="", markersize=7, elinewidth=1, capsize=2, **look)
    ax.set(xscale="log", xlabel="training time relative to MAP", ylabel=f"{metric(name).label} ± 2 standard errors")
    low, high = ax.get_xlim()
    ticks = [t for t in (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= t <= high]
    ax.set_xticks(ticks, [f"{t:g}×" for t in ticks])
    ax.minorticks_off()
    style.legend(made, axes)
    return made


@style.styled
def temperature(results: Results, methods: Sequence[str] | None = None, figure: str = "ece") -> Figure:
    """A figure before and after temperature scaling."""
    methods = [m for m in chosen(results, methods) if "temperature" in done(results, m)[0]["figures"]]
    made, axes = style.figure(min(1, len(methods)), 4.2, 0.32 * len(methods) + 1.0)
    ax = axes[0]
    for row, method in enumerate(methods):
        runs = done(results, method)
        before = float(np.mean([run["scores"]["figures"][figure] for run in runs]))
        after = float(np.mean([run["figures"][f"{figure}_tempered"] for run in runs]))
        tint = style.colour(place(results, method))
        ax.plot([before, after], [row, row], color=tint, linewidth=1.4)
        ax.plot(before, row, "o", color=tint, label="before" if row == 0 else None)
        ax.plot(after, row, "o", color=tint, markerfacecolor="none", label="after" if row == 0 else None)
    ax.set_yticks(range(len(methods)), [label(m) for m in methods])
    ax.set_ylim(len(methods) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.set_xlabel(f"{metric(figure).label} before (full) and after (open)")
    return made
