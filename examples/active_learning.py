"""Active learning on MNIST: which images are worth a label? From 20 labels on, ten more at a time.

BALD asks for the label of those images on which the draws of a posterior disagree most: the mutual information of label
and weights, which is ``prediction.epistemic``. Each run is one method and one seed; ``--plot`` puts runs side by side.

python examples/active_learning.py --method dropout --seed 0 --out runs      # and swag, ivon, mean-field, map
python examples/active_learning.py --method dropout --rule random --each 30 --seed 0 --out runs
python examples/active_learning.py --plot --out runs                         # active.png and active.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import posterity as pst
from posterity import data, models

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ONE_BY_ONE = pst.Compute(batched=False)  # which way is faster would be timed anew for every round's posterior
PRIOR = pst.priors.Normal(1.0)
METHODS: dict[str, tuple[pst.Method, float]] = {  # and its learning rate
    "map": (pst.MAP(prior=PRIOR), 1e-3),
    "dropout": (pst.Dropout(prior=PRIOR, rate=0.5, insert=("fc1", "fc2")), 1e-3),
    "mean-field": (pst.MeanField(prior=pst.priors.Normal(0.3), init_std=0.02, temperature=0.1), 1e-3),
    "swag": (pst.SWAG(prior=PRIOR, rank=20, lr=3e-3), 1e-3),
    "ivon": (pst.IVON(prior=PRIOR, hess_init=0.5, beta2=0.999, temperature=0.1), 0.3),
}


def first_labels(labels: Tensor, each: int, generator: torch.Generator) -> list[int]:
    """As many examples of every class, at random."""
    order = torch.randperm(len(labels), generator=generator)
    return torch.cat([order[labels[order] == c][:each] for c in labels.unique()]).tolist()


def chosen(posterior: pst.Posterior, inputs: Tensor, options: argparse.Namespace) -> Tensor:
    """The rows of the pool that are worth a label; the pool is in random order."""
    if options.rule == "random":
        return torch.arange(options.each)
    p = posterior.predict(inputs, draws=options.draws, compute=ONE_BY_ONE)
    worth = p.epistemic if options.rule == "bald" else p.entropy
    return worth.topk(options.each).indices.cpu()


def run(options: argparse.Namespace) -> None:
    """Train, test, ask for labels, and again; the curve is written after every round."""
    images, most, steps = (data.load("digits"), 50, 40) if options.tiny else (data.load("mnist"), options.most, 400)
    method, lr = METHODS[options.method]
    inputs, labels = (t.to(DEVICE) for t in images.training())
    test_inputs, test_labels = (t.to(DEVICE) for t in images.test)
    generator = torch.Generator().manual_seed(options.seed)
    known = first_labels(labels.cpu(), 2, generator)
    curve: list[tuple[int, float]] = []
    training = pst.Training(batch_size=64, lr=lr, steps=steps, record=True, progress=False)
    while True:
        torch.manual_seed(options.seed)  # every round starts from the same network
        posterior = pst.fit(
            network(images), method, (inputs[known], labels[known]), seed=options.seed, training=training
        )
        right = posterior.predict(test_inputs, draws=options.draws, compute=ONE_BY_ONE).label == test_labels
        curve.append((len(known), right.float().mean().item()))
        name = f"active-{options.method}-{options.rule}-{options.seed}.json"
        (options.out / name).write_text(json.dumps(curve))
        print(f"{len(known):5d} labels   accuracy {curve[-1][1]:.4f}", flush=True)
        if len(known) >= most or curve[-1][1] > 0.965:
            return
        left = torch.ones(len(labels), dtype=torch.bool).index_fill(0, torch.tensor(known), False).nonzero()[:, 0]
        pool = left[torch.randperm(len(left), generator=generator)[:10_000]]
        known += pool[chosen(posterior, inputs[pool], options)].tolist()


def network(images: data.DataSet) -> nn.Module:
    """A LeNet-5, or for the 8 × 8 digits of a trial its dense layers alone."""
    return models.lenet5_caffe(images.shape) if images.shape[-1] == 28 else models.mlp(64, 10, hidden=(32,))


def needed(curve: list[tuple[int, float]], accuracy: float = 0.95) -> float:
    """Labels at which the accuracy is reached for good: in this round and the next."""
    for (labels, one), (_, two) in zip(curve, [*curve[1:], curve[-1]], strict=True):
        if min(one, two) >= accuracy:
            return labels
    return float("nan")


def plot(out: Path) -> None:
    """Accuracy against labels, the mean over seeds, and the labels that 95% took."""
    runs: dict[tuple[str, str], list[list[tuple[int, float]]]] = defaultdict(list)
    for file in sorted(out.glob("active-*-*-*.json")):
        *method, rule, _ = file.stem.removeprefix("active-").split("-")
        runs["-".join(method), rule].append(json.loads(file.read_text()))
    if not runs:
        raise pst.PosterityError(f"there is no run in {out}: start with --method dropout --out {out}")
    figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
    found = {}
    for (method, rule), curves in runs.items():
        shared = sorted(set.intersection(*({labels for labels, _ in curve} for curve in curves)))
        average = [mean(dict(curve)[labels] for curve in curves) for labels in shared]
        style = "--" if rule == "random" else "-"
        axis.plot(shared, average, style, color=f"C{list(METHODS).index(method)}", label=f"{method}, {rule}")
        took, by_chance = ([needed(curve) for curve in some] for some in (curves, runs.get((method, "random"), [])))
        share = mean(took) / mean(by_chance) if by_chance else None
        found[f"{method}, {rule}"] = {"labels for 95%": took, "mean": mean(took), "share of random": share}
        told = "" if share is None else f", {share:.0%} of random choice"
        print(f"{method:<12}{rule:<10}labels for 95% accuracy: {took}{told}")
    axis.axhline(0.95, color="#222222", linewidth=0.8, linestyle=":")
    axis.set(xlabel="labels", ylabel="test accuracy", ylim=(0.6, 1.0))
    axis.legend(frameon=False)
    figure.savefig(out / "active.png", dpi=120)
    (out / "active.json").write_text(json.dumps(found, indent=1))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--method", choices=list(METHODS), default="dropout")
    arguments.add_argument("--rule", choices=["bald", "entropy", "random"], default="bald")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument(
        "--each", type=int, default=10, help="labels of a round; random choice loses nothing by more"
    )
    arguments.add_argument("--most", type=int, default=1400, help="labels at which to stop")
    arguments.add_argument("--draws", type=int, default=20)
    arguments.add_argument("--plot", action="store_true")
    arguments.add_argument("--tiny", action="store_true", help="50 labels of the embedded digits")
    arguments.add_argument("--out", type=Path, default=Path())
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    plot(options.out) if options.plot else run(options)


if __name__ == "__main__":
    try:
        main()
    except pst.PosterityError as error:
        sys.exit(str(error))
