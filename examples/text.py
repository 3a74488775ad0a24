"""Film reviews with a Bayesian transformer: which sentences should a person read again?

python examples/text.py --out text            # SST-2, all methods: ten minutes on a CPU core

One line makes a network of embeddings and attention Bayesian: the method that `fit` is given. A sentence can be unclear
in itself (aleatoric), or be unlike what the network has learned from (epistemic).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

import posterity as pst
from posterity import data, models
from posterity.data import DataSet, Kind, Task, Vocabulary

METHODS = {  # name: the method, how many restarts, its learning rate; chosen on held-out sentences (results.md)
    "MAP": (pst.MAP(), 1, 1e-3),
    "MeanField": (pst.MeanField(temperature=0.1), 1, 1e-3),
    "IVON": (pst.IVON(lr=1.0, hess_init=0.1, beta2=0.9995, temperature=0.01), 1, None),
    "SWAG": (pst.SWAG(rank=10), 1, 1e-3),
    "deep ensemble": (pst.MAP(), 5, 1e-3),
}


def toy_reviews() -> DataSet:
    """Made-up reviews, for a machine without SST-2: the adjectives decide."""
    chance = random.Random(0)
    words = (("dull", "clumsy", "tedious", "flat"), ("fresh", "moving", "funny", "sharp"))
    labels = [chance.randrange(2) for _ in range(300)]
    texts = [f"a {chance.choice(words[y])} film with a {chance.choice(words[y])} plot" for y in labels]
    vocabulary = Vocabulary.fit(texts)
    inputs, targets = vocabulary.encode(texts), torch.tensor(labels)
    return DataSet(
        "toy reviews",
        Task.CLASSIFICATION,
        Kind.TEXT,
        train=(inputs[:200], targets[:200]),
        test=(inputs[200:], targets[200:]),
        classes=("negative", "positive"),
        vocabulary=vocabulary,
    )


def fitted(name: str, reviews: DataSet, options: argparse.Namespace) -> pst.Posterior:
    """The posterior of one method; nothing but the method differs."""
    method, members, lr = METHODS[name]
    words, length = len(reviews.vocabulary), reviews.shape[0]
    return pst.fit(
        lambda: models.Transformer(words, length, 2, width=options.width, depth=2, dropout=0.1),
        method,
        reviews.train,
        epochs=options.epochs,
        members=members,
        training=pst.Training(batch_size=32, lr=lr),
    )


def judged(posterior: pst.Posterior, reviews: DataSet) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Figures on the test sentences, and accuracy against coverage."""
    scores = pst.evaluate(posterior, reviews, resamples=0)
    curve = scores.details["coverage"]
    half = min(range(len(curve["coverage"])), key=lambda i: abs(curve["coverage"][i] - 0.5))
    figures = {name: scores[name] for name in ("accuracy", "nll", "ece", "aurc")}
    return figures | {"accuracy at half coverage": curve["accuracy"][half]}, curve


def least_sure(posterior: pst.Posterior, reviews: DataSet, count: int = 5) -> dict[str, list[str]]:
    """The sentences with the most of each kind of uncertainty."""
    inputs, targets = reviews.test
    p = posterior.predict(inputs)
    found = {}
    for kind in ("aleatoric",) if p.draws == 1 else ("aleatoric", "epistemic"):
        values = getattr(p, kind)
        found[kind] = [
            f"{values[i]:.2f} nats, P(positive) {p.probs[i, 1]:.2f}, is {reviews.classes[targets[i]]}: "
            + reviews.vocabulary.decode(inputs[i])
            for i in values.argsort(descending=True)[:count].tolist()
        ]
    return found


def draw(curves: dict[str, dict[str, list[float]]], figures: dict[str, dict[str, float]], path: Path) -> None:
    """Accuracy where each method is most sure, and what its probabilities are worth."""
    picture = Figure(figsize=(8, 3), layout="constrained")
    left, right = picture.subplots(1, 2, width_ratios=(3, 2))
    for name, curve in curves.items():
        start = len(curve["coverage"]) // 20  # the first few sentences are noise
        left.plot(curve["coverage"][start:], curve["accuracy"][start:], label=name)
    left.set(xlabel="share of the sentences answered, the surest first", ylabel="accuracy")
    left.legend(frameon=False, fontsize=8)
    names = list(figures)[::-1]
    right.barh(names, [figures[name]["nll"] for name in names], color=[f"C{i}" for i in range(len(names))][::-1])
    right.set_xlabel("NLL on test sentences, nats")
    picture.savefig(path, dpi=110)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("text"))
    arguments.add_argument("--epochs", type=int, default=8)
    arguments.add_argument("--width", type=int, default=64)
    arguments.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    arguments.add_argument("--tiny", action="store_true", help="made-up reviews, a few seconds")
    options = arguments.parse_args()
    if options.tiny:
        options.epochs, options.width, options.methods = 4, 16, ["MAP", "MeanField"]
    options.out.mkdir(parents=True, exist_ok=True)
    reviews = toy_reviews() if options.tiny else data.load("sst2")
    figures, curves = {}, {}
    for name in options.methods:
        posterior = fitted(name, reviews, options)
        figures[name], curves[name] = judged(posterior, reviews)
        sentences = least_sure(posterior, reviews)
        report = {"figures": figures, "curves": curves, "least sure of the last": sentences}
        (options.out / "figures.json").write_text(json.dumps(report, indent=2))
        print(f"{name:<14}" + ", ".join(f"{key} {value:.3f}" for key, value in figures[name].items()))
        for kind, rows in sentences.items():
            print(f"  most {kind}:", *rows, sep="\n    ")
    draw(curves, figures, options.out / "text.png")


if __name__ == "__main__":
    try:
        main()
    except pst.PosterityError as error:
        sys.exit(str(error))
