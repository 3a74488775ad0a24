"""Settings chosen on held-out training images by scripts that are no tables, as options for their final runs.

    python -m benchmarks.quality.sparse_mnist --row lenet-5-caffe $(python -m benchmarks.quality.chosen caffe DIR) …

Taken is the most accurate of the networks that are small enough, with a little to spare, or else the smallest.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = dict[str, Any]


def small_enough(runs: list[Run], size: Callable[[Run], float], least: float, error: Callable[[Run], float]) -> Run:
    """The most accurate of those whose ratio is at least so large, or the one with the largest."""
    enough = [run for run in runs if size(run) >= least]
    return min(enough, key=error) if enough else max(runs, key=size)


def caffe(runs: list[Run]) -> Run:
    return small_enough(runs, lambda run: run["ratio"], 290, lambda run: run["error"])


def vgg(runs: list[Run]) -> Run:
    sparse = [run for run in runs if "sparse" in run]
    return small_enough(sparse, lambda run: run["sparse"]["ratio"], 50, lambda run: run["sparse"]["error"])


RULES: dict[str, tuple[str, Callable[[list[Run]], Run], tuple[str, ...]]] = {
    "caffe": ("choice/lenet-5-caffe--*.json", caffe, ("temperature",)),
    "vgg": ("choice/vgg--*.json", vgg, ("temperature", "lr")),
}
"""Where the trials of a script are, which is taken, and what of its settings."""


def main() -> None:
    pattern, rule, keys = RULES[sys.argv[1]]
    best = rule([json.loads(file.read_text()) for file in sorted(Path(sys.argv[2]).glob(pattern))])
    print(*(f"--{key.replace('_', '-')} {best['settings'][key]}" for key in keys if key in best["settings"]))


if __name__ == "__main__":
    main()
