"""Pictures of ``posterity.evaluation.landscape`` and ``diagnostics``: results in, matplotlib axes out.

``plane`` draws loss or error on a plane with the solutions and the path on it, ``connection`` the ways between two
solutions, ``diversity`` accuracy against disagreement, ``chains`` how the traces of several chains lie to each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from posterity.evaluation.connection import Connection
from posterity.evaluation.diagnostics import Diversity
from posterity.evaluation.landscape import Landscape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

__all__ = ["chains", "connection", "diversity", "plane"]


def plane(axes: Axes, found: Landscape, what: str = "loss") -> Axes:
    """Contours of the loss or the error on a plane, with the points that span it, the path and the mean.

    Args:
        axes: Where to draw.
        found: What ``landscape`` gave.
        what: ``"loss"`` or ``"error"``.
    """
    surface = (found.loss if what == "loss" else found.error).double().numpy()
    # Levels crowd towards the minimum, where the basins are; a wall far away would use them up otherwise.
    low, high = surface.min(), np.quantile(surface, 0.95)
    levels = low + (max(high - low, 1e-12)) * np.linspace(0, 1, 16) ** 2
    drawn = axes.contourf(found.x, found.y, surface, levels=levels, cmap="viridis", extend="max")
    axes.contour(found.x, found.y, surface, levels=levels, colors="white", linewidths=0.3, alpha=0.5)
    axes.figure.colorbar(drawn, ax=axes, label=_name(found, what))
    if len(found.path):
        axes.plot(*found.path.T.numpy(), color="white", linewidth=0.8, marker=".", markersize=3, label="path")
    if len(found.points) <= 5:
        axes.scatter(*found.points.T.numpy(), color="white", edgecolor="black", zorder=3, label="solutions")
    x, y = found.centre.tolist()
    axes.scatter(x, y, color="crimson", marker="*", s=90, zorder=4, label="mean")
    axes.set(xlabel="distance along the first direction", ylabel="distance along the second", aspect="equal")
    axes.legend(loc="upper right", fontsize="small")
    return axes


def connection(axes: Axes, found: Connection) -> Axes:
    """The loss along the straight line and along the trained curve."""
    for loss, label in ((found.straight_loss, "straight line"), (found.curve_loss, "trained curve")):
        axes.plot(found.t.numpy(), loss.double().numpy(), label=label)
    axes.set(xlabel="position between the two solutions", ylabel="loss")
    axes.legend()
    return axes


def diversity(axes: Axes, groups: Mapping[str, Diversity]) -> Axes:
    """Disagreement over error rate against accuracy, one colour a group (members, snapshots, draws)."""
    for name, found in groups.items():
        axes.scatter(found.accuracy.numpy(), found.normalised.numpy(), s=14, alpha=0.7, label=name)
    axes.set(xlabel="accuracy of a single network", ylabel="disagreement / error rate")
    axes.legend()
    return axes


def chains(axes: Axes, traces: Tensor, at: int = 0) -> Axes:
    """The traces of one prediction, one line a chain.

    Args:
        axes: Where to draw.
        traces: What ``diagnostics.traces`` gave, [chains, samples, inputs, classes].
        at: Which input.
    """
    steepest = int(traces[:, :, at].std((0, 1)).argmax())
    for index, chain in enumerate(traces[:, :, at, steepest]):
        axes.plot(chain.numpy(), linewidth=0.9, label=f"chain {index + 1}")
    axes.set(xlabel="sample", ylabel="prediction")
    axes.legend(fontsize="small")
    return axes


def _name(found: Landscape, what: str) -> str:
    if what == "loss":
        return "mean negative log-likelihood"
    return "share of wrong labels" if found.classifies else "mean squared error"
