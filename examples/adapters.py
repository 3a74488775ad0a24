"""A big pre-trained network, made Bayesian where it is fine-tuned: low-rank adapters with a posterior.

A transformer of 20 million weights first learns to guess missing words. Then adapters of rank 8 beside its attention,
and a new head, learn the sentiment of sentences: by plain PyTorch, and by three posteriors over these weights alone.

python examples/adapters.py                # SST-2, a GPU: adapters-0.json and adapters.png
python examples/adapters.py --tiny         # a few embedded digits, read as 64 grey words: a trial without a GPU
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posterity as pst
from posterity import data, models
from posterity.posteriors import Empirical

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
UNKNOWN = 1
METHODS = {
    "IVON": (pst.IVON(hess_init=0.1, beta2=0.9999), 0.1),
    "SWAG": (pst.SWAG(rank=10), 1e-3),
    "Laplace": (pst.Laplace(), 1e-3),
}


def sentences(tiny: bool) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], int]:
    """Word numbers and labels to learn from and to test, and how many words there are."""
    if not tiny:
        sst2 = data.load("sst2")
        return sst2.train, sst2.test, len(sst2.vocabulary)
    digits = data.load("digits")
    few = [(x[:n], y[:n]) for n, (x, y) in ((64, digits.train), (32, digits.test))]
    train, test = (((digits.standardiser.invert(x) * 16).round().long().flatten(1) + 2, y) for x, y in few)
    return train, test, 19


def with_a_gap(tokens: Tensor, copies: int) -> tuple[Tensor, Tensor]:
    """Sentences with one word made unknown, and that word: what the network is pre-trained on."""
    tokens = tokens[(tokens > UNKNOWN).any(1)].repeat(copies, 1)
    place = torch.multinomial((tokens > UNKNOWN).float(), 1, generator=torch.Generator().manual_seed(0))
    return tokens.scatter(1, place, UNKNOWN), tokens.gather(1, place).squeeze(1)


def plain(network: nn.Module, train: tuple[Tensor, Tensor], epochs: int, seed: int) -> pst.Posterior:
    """Fine-tuning as everybody writes it: the yardstick for time, memory and calibration."""
    network = copy.deepcopy(network).to(DEVICE).train()
    x, y = (t.to(DEVICE) for t in train)
    optimizer = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * -(-len(x) // 64))
    torch.manual_seed(seed)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), device=DEVICE).split(64):
            optimizer.zero_grad()
            F.cross_entropy(network(x[batch]), y[batch]).backward()
            optimizer.step()
            schedule.step()
    point = {name: p.detach() for name, p in network.named_parameters()}
    return Empirical(network, pst.likelihoods.Categorical(), [point])


def measured(train: Callable[[], pst.Posterior], repeats: int) -> tuple[pst.Posterior, float, float]:
    """The posterior, the best time of several runs in seconds, and the peak of GPU memory in MB."""
    times = []
    for _ in range(repeats):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats() if DEVICE == "cuda" else None
        start = time.perf_counter()
        posterior = train()
        torch.cuda.synchronize() if DEVICE == "cuda" else None
        times.append(time.perf_counter() - start)
    return posterior, min(times), torch.cuda.max_memory_allocated() / 2**20 if DEVICE == "cuda" else float("nan")


def reliability(axis: plt.Axes, title: str, p: pst.Prediction, labels: Tensor) -> None:
    """How often it is right, against how sure it is."""
    edges = torch.linspace(0, 1, 11)
    which = torch.bucketize(p.confidence, edges[1:-1])
    bins = [(p.label == labels)[which == b].float().mean().item() for b in range(10)]
    axis.bar(edges[:-1] + 0.05, bins, width=0.09, color="#0072B2")
    axis.plot([0, 1], [0, 1], color="#222222", linestyle=":")
    axis.set(title=title, xlabel="confidence", xlim=(0, 1), ylim=(0, 1))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--repeats", type=int, default=2, help="runs of which the fastest counts")
    arguments.add_argument("--tiny", action="store_true")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--out", type=Path, default=Path())
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    train, test, words = sentences(options.tiny)
    size = {"width": 16, "heads": 2, "depth": 1} if options.tiny else {"width": 512, "heads": 8, "depth": 4}
    epochs, draws = (24, 4) if options.tiny else (10, 32)
    base = models.Transformer(words, train[0].shape[1], words, **size)
    print(f"pre-training {sum(p.numel() for p in base.parameters()):,} weights", flush=True)
    gaps = with_a_gap(train[0], copies=4)
    base = pst.fit(base, pst.MAP(), gaps, epochs=epochs, training=pst.Training(lr=3e-4, clip=1.0)).module

    base.head = nn.Linear(size["width"], int(train[1].max()) + 1).to(DEVICE)
    network = pst.adapters(base, rank=8, which="blocks.*.attention")
    network.head.requires_grad_(True)
    with torch.no_grad():
        x = test[0][:50].to(DEVICE)
        assert torch.equal(network.eval()(x), base.eval()(x)), "adapters that start at zero change nothing"
    print(f"fine-tuning {sum(p.numel() for p in network.parameters() if p.requires_grad):,} of them", flush=True)

    def bayesian(method: pst.Method, lr: float) -> Callable[[], pst.Posterior]:
        training = pst.Training(batch_size=64, lr=lr)
        return lambda: pst.fit(network, method, train, epochs=epochs, seed=options.seed, training=training)

    runs = {"plain fine-tuning": lambda: plain(network, train, epochs, options.seed)}
    runs |= {name: bayesian(*settings) for name, settings in METHODS.items()}
    runs["plain fine-tuning"]()  # the first run warms the GPU up
    figure, axes = plt.subplots(1, len(runs), figsize=(12, 3.2), sharey=True, layout="constrained")
    found: dict[str, dict[str, float]] = {}
    for axis, (name, run) in zip(axes, runs.items(), strict=True):
        posterior, seconds, memory = measured(run, options.repeats)
        scores = pst.evaluate(posterior, test, draws=draws, resamples=0)
        found[name] = {key: scores[key] for key in ("accuracy", "nll", "ece")} | {"seconds": seconds, "MB": memory}
        first = found["plain fine-tuning"]
        ratios = f"   time ×{seconds / first['seconds']:.2f}   memory ×{memory / first['MB']:.2f}"
        print(f"{name:<18}" + "   ".join(f"{k} {v:.3f}" for k, v in found[name].items()) + ratios, flush=True)
        reliability(axis, name, posterior.predict(test[0], draws), test[1])
    figure.savefig(options.out / "adapters.png", dpi=110)
    (options.out / f"adapters-{options.seed}.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    try:
        main()
    except pst.PosterityError as error:
        sys.exit(str(error))
