"""SST-2: how accurate a small transformer stays as its weights go, by SparseVD, ARD, magnitude and at random.

    python -m benchmarks.quality.sparse_text --method sparse-vd --seed 0 --out results/sparse_text
    python -m benchmarks.quality.sparse_text --figure --out results/sparse_text     # the curve, from the JSON files

One process trains one method with one seed at every level (a weight of the KL, or a share of weights kept), and writes
METHOD--SEED.json after each. All weights may go, embeddings included; all runs have the same network, learning rate and
number of steps, and nothing was chosen by their results. Magnitude is compared within a layer: embeddings start twenty
times larger than the other weights, which one threshold for all would wipe out. In the literature tuned magnitude
pruning and variational dropout tie (Gale et al. 2019).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import posterity as pst
from benchmarks.quality.sparse_mnist import error, plain_network
from posterity import data, masks, models
from posterity.methods.tempering import LinearKL

WEIGHTS = (0.01, 0.03, 0.1, 0.3, 1.0)
KEPT = (0.3, 0.1, 0.03, 0.01, 0.003)
VD = {"kl_schedule": LinearKL(fraction=0.3), "clip_start": 0.5, "finetune": 0.2}

METHODS: dict[str, tuple[tuple[float, ...], Callable[[float], pst.Method]]] = {
    "dense": ((1.0,), lambda level: pst.MAP()),
    "sparse-vd": (WEIGHTS, lambda level: pst.SparseVD(temperature=level, **VD)),
    "ard": (WEIGHTS, lambda level: pst.ARD(temperature=level, **VD)),
    "magnitude": (KEPT, lambda level: pst.Pruning(keep=level, per_layer=True)),
    "random": (KEPT, lambda level: pst.Pruning(keep=level, per_layer=True, criterion="random")),
}


def one(name: str, level: float, seed: int, reviews: data.DataSet, epochs: int) -> dict[str, Any]:
    """One network: its error and how many of its weights are left."""
    training = pst.Training(batch_size=64, lr=2e-3, record=True, progress=False)
    begun = time.perf_counter()
    posterior = pst.fit(
        lambda: models.make("transformer", reviews),
        METHODS[name][1](level),
        reviews.training(),
        epochs=epochs,
        seed=seed,
        training=training,
    )
    network = plain_network(posterior)
    weights = masks.weights(dict(network.named_parameters()))
    left = {key: [int((w != 0).sum()), w.numel()] for key, w in weights.items()}
    kept, total = (sum(counts) for counts in zip(*left.values(), strict=True))
    return {
        "level": level,
        "error": error(network, reviews.test),
        "train_error": error(network, reviews.training()),
        "ratio": total / max(1, kept),
        "left": left,
        "seconds": time.perf_counter() - begun,
    }


def points(folder: Path, name: str) -> list[list[tuple[float, float]]]:
    """By level, the (ratio, error rate) of every seed."""
    runs = [json.loads(path.read_text())["levels"] for path in sorted(folder.glob(f"{name}--*.json"))]
    return [[(found["ratio"], found["error"] / 100) for found in level] for level in zip(*runs, strict=True)]


def figure(folder: Path, path: Path) -> None:
    """Error against compression, all methods together; ratios that were not asked for are averaged over seeds, too."""
    from matplotlib.figure import Figure

    from posterity.report.sparsity import compression_curve

    def averaged(level: list[tuple[float, float]]) -> list[tuple[float, float]]:
        middle = sum(ratio for ratio, _ in level) / len(level)
        return [(middle, wrong) for _, wrong in level]

    names = [name for name in METHODS if name != "dense"]
    curves = {name: [pair for level in points(folder, name) for pair in averaged(level)] for name in names}
    dense = [wrong for level in points(folder, "dense") for _, wrong in level]
    made = Figure(figsize=(5.2, 3.6), layout="constrained")
    compression_curve(made.subplots(), curves, sum(dense) / len(dense))
    made.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=METHODS, default="sparse-vd")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--train", type=int, help="only so many sentences")
    parser.add_argument("--levels", type=float, nargs="*", help="instead of the method's own")
    parser.add_argument("--figure", action="store_true", help="draw what is in the folder")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.figure:
        figure(options.out, Path(__file__).parents[2] / "docs" / "images" / "sparse-text.png")
        return
    reviews = data.load("sst2")
    if options.train:
        reviews = reviews.subset(torch.arange(options.train))
    levels = []
    for level in options.levels or METHODS[options.method][0]:
        levels.append(one(options.method, level, options.seed, reviews, options.epochs))
        print(json.dumps({key: value for key, value in levels[-1].items() if key != "left"}), flush=True)
        written = {"method": options.method, "seed": options.seed, "epochs": options.epochs, "levels": levels}
        (options.out / f"{options.method}--{options.seed}.json").write_text(json.dumps(written, indent=1))


if __name__ == "__main__":
    main()
