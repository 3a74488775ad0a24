"""Clothes of which most are T-shirts: what a long tail does to a classifier, and three ways to treat it.

The training set keeps 100 times as many examples of the first class as of the last; the test set has all classes
equally often. Plain training learns the frequencies along with the clothes. Class-balanced sampling shows the few boots
over and over; logit adjustment tells the likelihood how frequent each class is; and a posterior over networks, here an
ensemble, says of which classes it has seen too little: beside it one that saw as many images, all classes alike.

python examples/long_tail.py --figure long-tail.png
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch

import posterity as pst
from posterity import data, models

HEAD, TAIL = slice(0, 3), slice(7, 10)


def fits(train, even, network, epochs: int) -> dict[str, pst.Posterior]:
    """A posterior for each treatment of the tail, and one without a tail."""
    plain, balanced = pst.Training(batch_size=128), pst.Training(batch_size=128, balance=True)
    adjusted = pst.likelihoods.Categorical(frequencies=train[1].bincount())
    ensemble = {"members": 5, "epochs": epochs}
    return {
        "plain": pst.fit(network, pst.MAP(), train, epochs=epochs, training=plain),
        "balanced sampling": pst.fit(network, pst.MAP(), train, epochs=epochs, training=balanced),
        "logit adjustment": pst.fit(network, pst.MAP(), train, likelihood=adjusted, epochs=epochs, training=plain),
        "adjusted ensemble": pst.fit(network, pst.MAP(), train, likelihood=adjusted, training=plain, **ensemble),
        "no tail, ensemble": pst.fit(network, pst.MAP(), even, training=plain, **ensemble),
    }


def draw(found: dict[str, pst.evaluation.ByClass], counts, classes: tuple[str, ...], path: str) -> None:
    """Class by class: how many are recognised, and how much of the doubt more data would take away."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", width_ratios=(1.6, 1))
    places, width = np.arange(len(classes)), 0.8 / len(found)
    colours = dict(zip(found, ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#999999"), strict=True))
    for index, (name, result) in enumerate(found.items()):
        left.bar(places + (index - 2) * width, result.accuracy.numpy(), width, label=name, color=colours[name])
    for shift, name in ((-0.2, "adjusted ensemble"), (0.2, "no tail, ensemble")):
        right.bar(places + shift, 1000 * found[name].epistemic.numpy(), 0.4, color=colours[name])
    left.set(ylabel="accuracy on the class's test images", ylim=(0, 1))
    right.set(ylabel="epistemic uncertainty\nin thousandths of a nat")
    names = [f"{label} {count}" for label, count in zip(classes, counts, strict=True)]
    for axis in (left, right):
        axis.set_xticks(places, names, rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=len(found), frameon=False)
    figure.savefig(path, dpi=100)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", default="fashion-mnist")
    arguments.add_argument("--imbalance", type=float, default=100.0)
    arguments.add_argument("--epochs", type=int, default=10)
    arguments.add_argument("--figure", help="a file to draw the classes in")
    options = arguments.parse_args()

    whole = data.load(options.data)
    images = whole.long_tailed(options.imbalance)
    even = whole.subset(
        torch.randperm(len(whole.train[1]), generator=torch.Generator().manual_seed(0))[: len(images.train[1])]
    )
    counts = images.train[1].bincount().tolist()
    print("training examples by class:", *counts)

    def network() -> torch.nn.Module:
        return models.mlp(images.train[0][0].numel(), len(counts), hidden=(200, 100))

    found = {}
    print(f"{'':<20}{'accuracy':>10}{'first 3':>10}{'last 3':>10}{'NLL':>8}{'  epistemic, first 3 and last 3':>16}")
    for name, posterior in fits(images.train, even.train, network, options.epochs).items():
        x, y = even.test if name.startswith("no tail") else images.test  # each in the units of its training set
        result = found[name] = pst.by_class(posterior.predict(x), y)
        share = result.count / result.count.sum()
        head, tail = result.accuracy[HEAD].mean(), result.accuracy[TAIL].mean()
        print(
            f"{name:<20}{result.accuracy @ share.double():>10.3f}{head:>10.3f}{tail:>10.3f}"
            f"{result.nll @ share.double():>8.3f}"
            f"{result.epistemic[HEAD].mean():>12.3f}{result.epistemic[TAIL].mean():>8.3f}"
        )
    if options.figure:
        draw(found, counts, images.classes, options.figure)


if __name__ == "__main__":
    try:
        main()
    except pst.PosterityError as error:
        sys.exit(str(error))
