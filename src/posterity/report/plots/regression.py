"""Predictive distributions of numbers: the band, its coverage, and where the targets fall in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from posterity.report import style
from posterity.report.plots.select import Results, chosen, detail, mean, place
from posterity.report.standing import done
from posterity.report.verdict import label

__all__ = ["band", "intervals", "pit"]


@style.styled
def band(results: Results, methods: Sequence[str] | None = None) -> Figure:
    """The predictive mean with its 95% interval and the epistemic part of it, and the targets; one panel a method."""
    methods = chosen(results, methods, "band")
    made, axes = style.figure(len(methods), 3.3, 2.6)
    for ax, method in zip(axes, methods, strict=True):
        found = {key: np.array(values) for key, values in detail(results, method, "band")[0].items()}
        x = found.get("input", np.arange(len(found["mean"])))
        tint = style.colour(place(results, method))
        ax.fill_between(x, found["low"], found["high"], color=tint, alpha=0.2, linewidth=0, label="95% interval")
        reach = 1.96 * found["epistemic"]
        ax.fill_between(
            x, found["mean"] - reach, found["mean"] + reach, color=tint, alpha=0.45, linewidth=0, label="epistemic part"
        )
        ax.plot(x, found["mean"], color=tint, linewidth=1.2, label="mean")
        ax.plot(x, found["target"], ".", color=style.INK, markersize=2.5, alpha=0.7, label="test targets")
        covered = np.mean([run["scores"]["figures"]["coverage_95"] for run in done(results, method)])
        ax.set(title=f"{label(method)}: {100 * covered:.0f}% inside", ylabel="target")
        ax.set_xlabel("input" if "input" in found else "test examples by predicted mean")
    style.legend(made, axes)
    return made


@style.styled
def intervals(results: Results, methods: Sequence[str] | None = None) -> Figure:
    """How many targets lie inside intervals of a level, against the level: on the diagonal they hold what they say."""
    methods = chosen(results, methods, "pit")
    made, axes = style.figure(min(1, len(methods)), 4.2, 3.2)
    axes[0].plot([0, 1], [0, 1], color=style.INK, linewidth=0.8, linestyle=":")
    for method in methods:
        shares = mean(detail(results, method, "pit"))
        half = len(shares) // 2
        inside = np.concatenate([[0], np.cumsum(shares[:half][::-1] + shares[half:])])
        axes[0].plot(
            np.linspace(0, 1, half + 1), inside, marker=".", label=label(method), **style.line(place(results, method))
        )
    axes[0].set(xlim=(0, 1), ylim=(0, 1), xlabel="level of the interval", ylabel="share of targets inside")
    style.legend(made, axes)
    return made


@style.styled
def pit(results: Results, methods: Sequence[str] | None = None) -> Figure:
    """Where targets fall in their predictive distribution: flat is right, a hump too wide, a valley too narrow."""
    methods = chosen(results, methods, "pit")
    made, axes = style.figure(len(methods), 2.3, 2.0)
    for ax, method in zip(axes, methods, strict=True):
        shares = mean(detail(results, method, "pit"))
        edges = np.linspace(0, 1, len(shares) + 1)
        ax.stairs(shares * len(shares), edges, fill=True, color=style.colour(place(results, method)), alpha=0.7)
        ax.axhline(1, color=style.INK, linewidth=0.8, linestyle=":")
        ax.set(xlim=(0, 1), xlabel="F(target)", ylabel="density", title=label(method))
    return made
