"""A big pre-trained network, made Bayesian where it is fine-tuned: low-rank adapters with a posterior.

A transformer of 12.6 million weights first learns to read MNIST. Then adapters of rank 8 beside its dense layers, and a
new head, learn Fashion-MNIST from 2,000 labels: by plain PyTorch, and by three posteriors over these weights alone.

python examples/adapters.py                # a GPU: adapters-0.json and adapters.png
python examples/adapters.py --tiny         # embedded digits, then the same digits mirrored: a trial without a GPU
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posterity as pst
from posterity import data
from posterity.models.text import EncoderBlock
from posterity.posteriors import Empirical

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Pair = tuple[Tensor, Tensor]
METHODS = {  # and their learning rates, chosen on training images that were held out
    "IVON": (
        pst.IVON(prior=pst.priors.Normal(0.0173), hess_init=0.03, beta2=0.999, temperature=0.003, clip_radius=0.01),
        1.0,
    ),
    "SWAG": (pst.SWAG(prior=pst.priors.Normal(0.25), rank=10, lr=3e-3), 1e-3),
    # "fisher" takes one backward pass over the data, where "ggn" takes one a class
    "Laplace": (pst.Laplace(prior=pst.priors.Normal(0.25), structure="last-layer", curvature="fisher"), 1e-3),
}


class VisionTransformer(nn.Module):
    """Patches of 4 × 4 pixels as words."""

    def __init__(self, side: int, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=4)
        self.positions = nn.Parameter(0.02 * torch.randn((side // 4) ** 2, width))
        self.blocks = nn.ModuleList(EncoderBlock(width, max(1, width // 64), dropout=0.0) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT + self.positions
        everywhere = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        for block in self.blocks:
            x = block(x, everywhere)
        return self.head(self.norm(x).mean(1))


def tasks(tiny: bool) -> tuple[Pair, Pair, Pair]:
    """What to pre-train on, to fine-tune on, and to test."""
    if not tiny:
        clothes = data.load("fashion-mnist").subset(torch.arange(2000))
        return data.load("mnist").training(), clothes.training(), clothes.test
    first, second = data.load("digits").training(), data.load("digits").test
    return first, (first[0][:64].flip(-1), first[1][:64]), (second[0][:64].flip(-1), second[1][:64])


def plain(network: nn.Module, train: Pair, epochs: int, seed: int) -> pst.Posterior:
    """Fine-tuning as everybody writes it: the yardstick for time, memory and calibration."""
    network, (x, y) = copy.deepcopy(network).train(), (t.to(DEVICE) for t in train)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * -(-len(x) // 128))
    torch.manual_seed(seed)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), device=DEVICE).split(128):
            optimizer.zero_grad()
            F.cross_entropy(network(x[batch]), y[batch]).backward()
            optimizer.step()
            schedule.step()
    return Empirical(network, pst.likelihoods.Categorical(), [dict(network.named_parameters())])


def measured(train: Callable[[], pst.Posterior]) -> tuple[pst.Posterior, float, float]:
    """The posterior, the time in seconds, and the peak of GPU memory in MB."""
    torch.cuda.reset_peak_memory_stats() if DEVICE == "cuda" else None
    start, posterior = time.perf_counter(), train()
    torch.cuda.synchronize() if DEVICE == "cuda" else None
    seconds = time.perf_counter() - start
    return posterior, seconds, torch.cuda.max_memory_allocated() / 2**20 if DEVICE == "cuda" else float("nan")


def reliability(axis: plt.Axes, title: str, scores: Mapping[str, Any]) -> None:
    """How often it is right (up), against how sure it is."""
    axis.bar(scores["edges"][:-1], scores["accuracy"], width=0.9 / len(scores["accuracy"]), align="edge")
    axis.plot([0, 1], [0, 1], color="#222222", linestyle=":")
    axis.set(title=title, xlabel="confidence", xlim=(0, 1), ylim=(0, 1))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--epochs", type=int, default=30)
    arguments.add_argument("--tiny", action="store_true")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--out", type=Path, default=Path())
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(options.seed)
    first, train, test = tasks(options.tiny)
    width, depth, epochs, draws = (16, 1, 24, 4) if options.tiny else (512, 4, options.epochs, 16)
    base = VisionTransformer(test[0].shape[-1], width, depth)
    print(f"pre-training {sum(p.numel() for p in base.parameters()):,} weights", flush=True)
    base = pst.fit(base, pst.MAP(), first, epochs=3, training=pst.Training(lr=3e-4, clip=1.0)).module
    base.head = nn.Linear(width, 10).to(DEVICE)
    network = pst.adapters(base, rank=8, which="blocks.*")
    network.head.requires_grad_(True)
    x = test[0][:50].to(DEVICE)
    assert torch.equal(network.eval()(x), base.eval()(x)), "adapters that start at zero change nothing"
    print(f"fine-tuning {sum(p.numel() for p in network.parameters() if p.requires_grad):,} of them", flush=True)
    runs: dict[str, Callable[[], pst.Posterior]] = {"plain": partial(plain, network, train, epochs, options.seed)}
    for name, (method, lr) in METHODS.items():
        how = {"epochs": epochs, "seed": options.seed, "training": pst.Training(batch_size=128, lr=lr)}
        runs[name] = partial(pst.fit, network, method, train, **how)
    once = {name: measured(run)[1] for name, run in runs.items()}
    figure, axes = plt.subplots(1, len(runs), figsize=(12, 3.2), sharey=True, layout="constrained")
    found: dict[str, dict[str, float]] = {}
    for axis, (name, run) in zip(axes, runs.items(), strict=True):
        posterior, again, memory = measured(run)
        scores, posterior = pst.evaluate(posterior, test, draws=draws, resamples=0), None
        found[name] = {key: scores[key] for key in ("accuracy", "nll", "ece")}
        found[name] |= {"seconds": min(once[name], again), "MB": memory}
        found[name] |= {f"{key} ratio": found[name][key] / found["plain"][key] for key in ("seconds", "MB")}
        print(f"{name:<18}" + "   ".join(f"{k} {v:.3f}" for k, v in found[name].items()), flush=True)
        reliability(axis, name, scores.details["reliability"])
    axes[0].set_ylabel("accuracy")
    figure.savefig(options.out / "adapters.png", dpi=110)
    (options.out / f"adapters-{options.seed}.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    try:
        main()
    except pst.PosterityError as error:
        sys.exit(str(error))
