"""Clothes of which most are T-shirts: what a long tail does to a classifier, and three ways to treat it.

The training set keeps 100 times as many examples of the first class as of the last; the test set has all classes
equally often. Plain training learns the frequencies along with the clothes. Class-balanced sampling shows the few boots
over and over; logit adjustment tells the likelihood how frequent each class is; and a posterior over networks says of
which classes it has seen too little.

python examples/long_tail.py --figure long-tail.png
"""

from __future__ import annotations

import argparse

import posterity as pst
from posterity import data, models

HEAD, TAIL = slice(0, 3), slice(7, 10)


def fits(train, network, epochs: int) -> dict[str, pst.Posterior]:
    """A posterior for each treatment of the tail."""
    plain, balanced = pst.Training(batch_size=128), pst.Training(batch_size=128, balance=True)
    adjusted = pst.likelihoods.Categorical(frequencies=train[1].bincount())
    ensemble = {"members": 5, "epochs": epochs}
    return {
        "plain": pst.fit(network, pst.MAP(), train, epochs=epochs, training=plain),
        "balanced sampling": pst.fit(network, pst.MAP(), train, epochs=epochs, training=balanced),
        "logit adjustment": pst.fit(network, pst.MAP(), train, likelihood=adjusted, epochs=epochs, training=plain),
        "adjusted ensemble": pst.fit(network, pst.MAP(), train, likelihood=adjusted, training=plain, **ensemble),
    }


def draw(found: dict[str, pst.evaluation.ByClass], counts, classes: tuple[str, ...], path: str) -> None:
    """Class by class: how many are recognised, and how much of the doubt more data would take away."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", width_ratios=(1.5, 1))
    places, width = range(len(classes)), 0.8 / len(found)
    for index, (name, result) in enumerate(found.items()):
        left.bar([p + (index - 1.5) * width for p in places], result.accuracy, width, label=name)
    names = [f"{label}\n{count}" for label, count in zip(classes, counts, strict=True)]
    left.set_xticks(list(places), names, rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
    left.set(ylabel="accuracy on the test images of the class", ylim=(0, 1))
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=len(found), frameon=False)
    doubt = found["adjusted ensemble"]
    right.scatter(counts, doubt.epistemic, color="C3", zorder=3)
    for count, value, label in zip(counts, doubt.epistemic, classes, strict=True):
        right.annotate(label, (count, value), textcoords="offset points", xytext=(5, 3), fontsize=8)
    right.set(xscale="log", xlabel="training examples of the class", ylabel="epistemic uncertainty, nats")
    right.margins(x=0.15)
    figure.savefig(path, dpi=100)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", default="fashion-mnist")
    arguments.add_argument("--imbalance", type=float, default=100.0)
    arguments.add_argument("--epochs", type=int, default=15)
    arguments.add_argument("--figure", help="a file to draw the classes in")
    options = arguments.parse_args()

    images = data.load(options.data).long_tailed(options.imbalance)
    counts = images.train[1].bincount().tolist()
    print("training examples by class:", *counts)
    network = models.mlp(images.train[0][0].numel(), len(counts), hidden=(200, 100))
    found = {}
    print(f"{'':<20}{'accuracy':>10}{'first 3':>10}{'last 3':>10}{'NLL':>8}{'  epistemic, first 3 and last 3':>16}")
    for name, posterior in fits(images.train, network, options.epochs).items():
        result = found[name] = pst.by_class(posterior.predict(images.test[0]), images.test[1])
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
    main()
