"""The regression guard: measures the fast subset anew and flags every ratio that has grown by more than a fifth.

    python -m benchmarks.speed.check              # make bench-check; exit code 1 when a ratio has grown
    python -m benchmarks.speed.check --update     # keep what is measured now as what to compare with

Ratios are to the plain PyTorch step of the same run, so they mean the same on another machine of the kind; run it on a
quiet one.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from benchmarks.speed import core, natural_gradient, trajectory
from benchmarks.speed.harness import Bench

STORED = Path(__file__).parents[1] / "results" / "guard.json"
ALLOWED = 1.2
PARTS = {
    "fit": core.fit_step,
    "samplers": trajectory.samplers,
    "collect": trajectory.collect,
    "natural gradient": natural_gradient.lenet,
    "natural gradient, convolutions": natural_gradient.caffe,
}


def measured(rounds: int) -> dict[str, float]:
    """Every ratio of the fast subset."""
    torch.set_num_threads(1)
    bench = Bench(torch.device("cpu"), rounds)
    for part in PARTS.values():
        part(bench)
    return {f"{case}: {name}": row.ratio for case, rows in bench.results.items() for name, row in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="store what is measured")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    now = measured(options.rounds)
    if options.update:
        STORED.write_text(json.dumps({"torch": torch.__version__, "ratios": now}, indent=1))
        return
    before = json.loads(STORED.read_text())["ratios"]
    grown = {name: (before[name], ratio) for name, ratio in now.items() if ratio > ALLOWED * before.get(name, ratio)}
    for name, (old, new) in grown.items():
        print(f"{name}: {old:.2f} has become {new:.2f}")
    print(f"{len(now)} ratios, {len(grown)} grown by more than {ALLOWED - 1:.0%}")
    sys.exit(bool(grown))


if __name__ == "__main__":
    main()
