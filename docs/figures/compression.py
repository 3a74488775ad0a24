"""The pictures of the guide to smaller networks, from real runs: LeNet-300-100 on MNIST, by magnitude and by SparseVD.

python docs/figures/compression.py                    # into docs/images
python docs/figures/compression.py --train 60000 --epochs 50 --seeds 3
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

import posterity as pst
from posterity import data, models
from posterity.compression import WeightFilm
from posterity.compression.criterion import accuracy
from posterity.methods.tempering import LinearKL
from posterity.report import sparsity as pictures

WAYS = {
    "magnitude": lambda keep: pst.Pruning(keep=keep),
    "magnitude, one shot at the end": lambda keep: pst.Pruning(keep=keep, ramp="one-shot", start=0.99, stop=1.0),
    "random": lambda keep: pst.Pruning(keep=keep, criterion="random"),
}
RATIOS = (2, 5, 10, 20, 50, 100)


def fit(mnist: data.DataSet, method: pst.Method, epochs: int, seed: int = 0, callbacks: tuple = ()) -> pst.Posterior:
    """A pruned LeNet-300-100."""
    training = pst.Training(lr=1e-3, progress=False, callbacks=callbacks)
    return pst.fit(
        lambda: models.make("lenet_300_100", mnist),
        method,
        mnist.training(),
        epochs=epochs,
        seed=seed,
        training=training,
    )


def film(mnist: data.DataSet, options: argparse.Namespace) -> None:
    """One run at 20x: the second layer's weights by epoch, and the zeros of every layer."""
    watch = WeightFilm("fc2.weight")
    fit(mnist, pst.Pruning(keep=1 / 20), options.epochs, callbacks=(watch,))
    develop(watch, options.out, "pruning")


def sparse_film(mnist: data.DataSet, options: argparse.Namespace) -> None:
    """The same of sparse variational dropout, which finds out by itself how many weights go."""
    watch = WeightFilm("fc2.weight", weights=lambda run: run.module.mean())
    method = pst.SparseVD(kl_schedule=LinearKL(fraction=0.3), clip_start=0.5, finetune=0.15)
    fit(mnist, method, 2 * options.epochs, callbacks=(watch,))
    develop(watch, options.out, "sparse-vd")


def develop(watch: WeightFilm, folder: Path, name: str) -> None:
    """The film strip, and the zeros of every layer."""
    pictures.film_strip(watch.frames, count=5).savefig(folder / f"{name}-film.png", dpi=110)
    made = Figure(figsize=(4.4, 3), layout="constrained")
    pictures.sparsity_by_layer(made.subplots(), watch.epochs, watch.sparsity)
    made.savefig(folder / f"{name}-sparsity.png", dpi=110)


def curve(mnist: data.DataSet, options: argparse.Namespace) -> None:
    """Test error of every way to prune, at every ratio."""
    test = [mnist.test]

    def error(method: pst.Method, seed: int) -> float:
        posterior = fit(mnist, method, options.epochs, seed)
        module = posterior.module
        module.load_state_dict(posterior.mean(), strict=False)
        return 1 - accuracy(module, test)

    dense = sum(error(pst.MAP(), seed) for seed in range(options.seeds)) / options.seeds
    curves = {
        name: [(ratio, error(make(1 / ratio), seed)) for ratio in RATIOS for seed in range(options.seeds)]
        for name, make in WAYS.items()
    }
    made = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = pictures.compression_curve(made.subplots(), curves, dense)
    axes.set(yscale="log", yticks=(5, 10, 20, 50, 100), yticklabels=("5", "10", "20", "50", "100"))
    axes.minorticks_off()
    made.savefig(options.out / "pruning-curve.png", dpi=110)


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=10_000, help="training images")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", choices=("film", "sparse_film", "curve"), help="one of the pictures")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "images")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    mnist = data.load("mnist").subset(torch.arange(options.train))
    for picture in (film, sparse_film, curve):
        if options.only in (None, picture.__name__):
            picture(mnist, options)


if __name__ == "__main__":
    main()
