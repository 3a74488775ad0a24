"""The pictures of the guide to SGD's path, from real runs.

python docs/figures/swag.py                       # all of them, into docs/images
python docs/figures/swag.py --only band           # plane, calibration, band, connection
python docs/figures/swag.py --train 60000         # with more than the first 5,000 training images
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import posterity as pst
from posterity import data
from posterity.models.convolutional import lenet5
from posterity.report import landscape as pictures
from posterity.run import Run

SGD = pst.Training(optimizer="sgd", lr=0.05, progress=False)


def small(name: str, options: argparse.Namespace) -> data.DataSet:
    """The first training images of a set, and all its test images."""
    return data.load(name).subset(torch.arange(options.train))


def network() -> nn.Module:
    """LeNet-5."""
    return lenet5((1, 28, 28))


class Epochs:
    """Keeps the weights after each epoch."""

    def __init__(self) -> None:
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_epoch(self, run: Run, figures: dict[str, float]) -> None:
        """Keep a copy."""
        self.weights.append({name: p.detach().clone() for name, p in run.module.named_parameters()})


def plane(options: argparse.Namespace) -> plt.Figure:
    """Test error around SWAG, along its two main directions; and through three SGD solutions."""
    clothes = small("fashion-mnist", options)
    some = tuple(t[:1000] for t in clothes.test)
    epochs = Epochs()
    training = replace(SGD, callbacks=(epochs,))
    swag = pst.fit(network(), pst.SWAG(rank=20, lr=0.02), clothes.train, epochs=options.epochs, training=training)
    members = pst.fit(network, pst.MAP(), clothes.train, epochs=options.epochs, members=3, training=SGD)
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    path = epochs.weights[options.epochs // 4 :]
    pictures.plane(axes[0], pst.landscape(swag, some, path=path, steps=options.steps), "error")
    axes[0].set_title("SWAG: SGD's path by epochs, and the mean")
    pictures.plane(axes[1], pst.landscape(members, some, steps=options.steps), "error")
    axes[1].set_title("three independent SGD solutions")
    return figure


def calibration(options: argparse.Namespace) -> plt.Figure:
    """Reliability on Fashion-MNIST, and entropies there and on MNIST's digits: SGD against SWAG."""
    clothes = small("fashion-mnist", options)
    digits = data.load("mnist")
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.9), layout="constrained")
    axes[0].plot([0, 1], [0, 1], color="grey", linewidth=0.8)
    for name, method, axis in (("SGD", pst.MAP(), axes[1]), ("SWAG", pst.SWAG(rank=20, lr=0.02), axes[2])):
        posterior = pst.fit(network(), method, clothes.train, epochs=options.epochs, training=SGD)
        scores = pst.evaluate(posterior, clothes, ood={"digits": digits}, resamples=0)
        bins = scores.details["reliability"]
        filled = np.asarray(bins["count"]) > 0
        confidence, accuracy = (np.asarray(bins[key])[filled] for key in ("confidence", "accuracy"))
        label = f"{name}: ECE {scores['ece']:.3f}, NLL {scores['nll']:.3f}"
        axes[0].plot(confidence, accuracy, marker=".", label=label)
        for part, label in (("test", "Fashion-MNIST"), ("digits", "MNIST digits")):
            shares = scores.details["entropy"][part]
            axis.stairs(shares, np.linspace(0, np.log(10), len(shares) + 1), fill=True, alpha=0.5, label=label)
        axis.set(title=f"{name}: AUROC {scores['digits/auroc_entropy']:.3f}", xlabel="entropy in nats", ylabel="share")
        axis.legend()
    axes[0].set(title="reliability", xlabel="confidence", ylabel="accuracy")
    axes[0].legend()
    return figure


def band(options: argparse.Namespace) -> plt.Figure:
    """A regression's 90% band: SGD's one curve with its noise, and SWAG's many."""
    waves = data.load("sine")
    x, y = waves.training()
    module = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1))
    training = pst.Training(optimizer="sgd", lr=0.02, batch_size=20, progress=False)
    line = torch.linspace(float(x.min()) - 1.5, float(x.max()) + 1.5, 300)[:, None]
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained", sharey=True)
    for axis, name, method in (
        (axes[0], "SGD", pst.MAP()),
        (axes[1], "MultiSWAG of 5", pst.SWAG(rank=20, lr=0.004)),
    ):
        posterior = pst.fit(module, method, (x, y), epochs=500, members=1 + 4 * (name != "SGD"), training=training)
        prediction = posterior.predict(line, draws=100, keep_samples=True)
        low, high = prediction.interval(0.9)
        axis.fill_between(line[:, 0], low.flatten(), high.flatten(), alpha=0.25, label="90% band")
        for curve in prediction.samples[:20].reshape(-1, 300):
            axis.plot(line[:, 0], curve, color="C0", linewidth=0.4, alpha=0.6)
        axis.scatter(x, y, s=5, color="black")
        axis.set(title=name, xlabel="x", ylim=(float(y.min()) - 1, float(y.max()) + 1))
        axis.legend()
    return figure


def connection(options: argparse.Namespace) -> plt.Figure:
    """From one SGD solution to another: straight and along a trained curve; and who disagrees with whom."""
    clothes = small("fashion-mnist", options)
    members = pst.fit(network, pst.MAP(), clothes.train, epochs=options.epochs, members=4, training=SGD)
    swag = pst.fit(network(), pst.SWAG(rank=20, lr=0.02), clothes.train, epochs=options.epochs, training=SGD)
    sampler = pst.SGHMC(lr=0.05)
    cyclical = pst.Cyclical(of=sampler, explore=0.8, samples=5)
    samples = pst.fit(network(), cyclical, clothes.train, epochs=options.epochs, training=pst.Training(progress=False))
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.9), layout="constrained")
    train = tuple(t[:2000] for t in clothes.training())
    pictures.connection(axes[0], pst.connect(members.parts[0], members.parts[1], train, steps=1500))
    groups = {"ensemble members": members, "SWAG draws": swag, "cyclical SGHMC samples": samples}
    pictures.diversity(axes[1], {name: pst.diversity(q, clothes.test, draws=20) for name, q in groups.items()})
    return figure


PARTS = {"plane": plane, "calibration": calibration, "band": band, "connection": connection}


def main() -> None:
    """Draw what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--train", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=21, help="grid points of a plane's side")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "images")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        PARTS[name](options).savefig(options.out / f"swag-{name}.png", dpi=100)
        print(f"swag-{name}.png", flush=True)


if __name__ == "__main__":
    main()
