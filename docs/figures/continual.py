"""The figures of the guide to learning that goes on, from the runs of benchmarks/quality/continual.py.

python docs/figures/continual.py       # reads benchmarks/results/continual.json, writes docs/images/continual-*.png
"""

from __future__ import annotations

import json
from pathlib import Path

from posterity.report import style
from posterity.report.continual import accuracy_matrix, over_tasks

ROOT = Path(__file__).parents[2]
SHOWN = ("fine-tuning", "ewc", "mean-field", "vogn", "functional, 200", "vogn, rehearsing 200", "joint")


def main() -> None:
    """Draw and write both."""
    found = json.loads((ROOT / "benchmarks/results/continual.json").read_text())["permuted-mnist"]
    rows = {name: found["methods"][name] for name in SHOWN if name in found["methods"]}
    pictures = {
        "continual-accuracy": over_tasks({**found, "methods": rows}),
        "continual-matrix": accuracy_matrix(rows["vogn"][0]),
    }
    for name, made in pictures.items():
        made.set_facecolor("white")
        (ROOT / "docs/images" / f"{name}.png").write_bytes(style.png(made))


if __name__ == "__main__":
    main()
