"""The figure of docs/guides/hcl.md, from a file that benchmarks/quality/hcl.py left.

python docs/figures/hcl.py benchmarks/results/hcl/functional-0.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np

NAMES = {
    "log_likelihood": "log p(x | current task)",
    "latent": "log p(f(x) | current task)",
    "log_det": "log |det ∂f/∂x|",
}
AROUND = 40
"""Batches on either side of a change."""


def whole(axis: plt.Axes, trace: dict, detection: dict) -> None:
    """The log-likelihood of every batch, coloured by the task that it was taken for."""
    tasks, values = np.array(trace["task"]), np.array(trace["log_likelihood"], dtype=float)
    for task in range(int(tasks.max()) + 1):
        own = np.flatnonzero(tasks == task)
        axis.plot(own, values[own], ".", markersize=2, color=f"C{task}", label=f"task {task + 1}")
    aside = np.flatnonzero(tasks < 0)
    axis.plot(aside, values[aside], "x", markersize=5, color="black", label="set aside")
    for step in detection["true"]:
        axis.axvline(step, color="grey", linewidth=0.8, linestyle=":", zorder=0)
    low, high = np.nanquantile(values, [0.002, 1.0])
    axis.set(
        xlabel="batch", ylabel=NAMES["log_likelihood"], ylim=(low - 0.05 * (high - low), high + 0.15 * (high - low))
    )
    shown = axis.legend(ncols=9, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    for dot in shown.legend_handles:
        dot.set_markersize(6)


def change(axis: plt.Axes, trace: dict, detection: dict, number: int) -> None:
    """The three statistics around one change, in standard deviations of the batches before it."""
    at = detection["true"][number]
    turn = next(row["step"] for row in detection["found"] if row["step"] >= at)
    steps = np.arange(at - AROUND, turn + 1)  # from the next batch on, the current task is the new one
    for (name, text), colour in zip(NAMES.items(), ("#4c72b0", "#dd8452", "#55a868"), strict=True):
        values = np.array(trace[name], dtype=float)[steps]
        before = values[steps < at]
        score = (values - before.mean()) / before.std()
        axis.plot(steps - at, score, ".-", color=colour, label=text, linewidth=0.8, markersize=4)
    axis.axvline(-0.5, color="grey", linewidth=0.8, linestyle=":")
    axis.axvline(turn - at, color="black", linewidth=0.8)
    axis.axhspan(-5, 5, color="grey", alpha=0.15, linewidth=0)
    axis.set(
        yscale="symlog",
        xlim=(-AROUND, 4),
        xlabel="batches after the change",
        title=f"task {number + 1} to {number + 2}",
    )


def main() -> None:
    """Draw one run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "images" / "hcl-detection.png")
    options = parser.parse_args()
    result = json.loads(options.result.read_text())
    trace, detection = result["trace"], result["detection"]
    figure = plt.figure(figsize=(11, 6.4), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=(1.15, 1))
    whole(upper.subplots(), trace, detection)
    axes = lower.subplots(1, len(detection["true"]), sharey=True)
    for number, axis in enumerate(axes):
        change(axis, trace, detection, number)
    axes[0].set_ylabel("standard deviations")
    lower.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.savefig(options.out, dpi=100)


if __name__ == "__main__":
    main()
