"""The VGG's settings, chosen on held-out training images, as options for its final runs.

    python -m benchmarks.quality.sparse_cifar10 --width 1 $(python -m benchmarks.quality.chosen DIR) …

Taken is the most accurate of the networks that are small enough, with a little to spare, or else the smallest.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SMALL_ENOUGH = 50
Run = dict[str, Any]


def best(runs: list[Run]) -> Run:
    """Of the trials that got as far as a sparse network."""
    sparse = [run for run in runs if "sparse" in run]
    enough = [run for run in sparse if run["sparse"]["ratio"] >= SMALL_ENOUGH]
    if not enough:
        return max(sparse, key=lambda run: run["sparse"]["ratio"])
    return min(enough, key=lambda run: run["sparse"]["error"])


def main() -> None:
    files = sorted(Path(sys.argv[1]).glob("choice/vgg--*.json"))
    settings = best([json.loads(file.read_text()) for file in files])["settings"]
    print(*(f"--{key} {settings[key]}" for key in ("temperature", "lr")))


if __name__ == "__main__":
    main()
