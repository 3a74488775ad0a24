"""Chains: the trace of the prediction that mixes worst, and what each chain makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from posterity.report import style
from posterity.report.plots.select import Results, chosen, detail
from posterity.report.verdict import label

__all__ = ["chains"]


@style.styled
def chains(results: Results, methods: Sequence[str] | None = None) -> Figure:
    """Trace and density of the prediction with the largest R̂, a colour a chain, one panel a method."""
    methods = chosen(results, methods, "chains")
    made, axes = style.figure(len(methods), 4.4, 2.5, across=2)
    for ax, method in zip(axes, methods, strict=True):
        found = detail(results, method, "chains")[0]
        trace = np.array(found["trace"])
        side = ax.inset_axes((1.03, 0, 0.28, 1), sharey=ax)
        edges = np.histogram_bin_edges(trace, bins=20)
        for index, chain in enumerate(trace):
            look: dict[str, Any] = {"color": style.colour(index), "orientation": "horizontal", "baseline": 0}
            ax.plot(chain, color=style.colour(index), linewidth=0.9)
            shares = np.histogram(chain, edges)[0] / len(chain)
            side.stairs(shares, edges, fill=True, alpha=0.3, linewidth=0, **look)
            side.stairs(shares, edges, linewidth=1.1, **look)
        title = f"{label(method)}: the prediction that mixes worst"
        ax.set(xlim=(0, trace.shape[1] - 1), xlabel="sample", ylabel="prediction", title=title)
        side.tick_params(labelleft=False, labelbottom=False)
        side.set(xlabel="share", xlim=(0, None))
    return made
