"""LeNet-5 on CIFAR-10 without data augmentation: VOGN beside Adam, the first rows of the VOGN poster's table.

    python -m benchmarks.quality.vogn_cifar10 --select --out results     # settings on the last 5,000 training images
    python -m benchmarks.quality.vogn_cifar10 --out results              # the table: 3 seeds, 210 epochs, test images

The protocol is the poster's: batch 128, 210 epochs, constant learning rate, a temperature that rises over the first
epochs, all training images for training and the test images for "validation". Settings were chosen on the split of
``--select`` and not on the test images. The data lies on the device. There a whole training step is captured as a CUDA
graph, anew for each epoch, since the temperature is part of it. The time of an epoch at one draw is measured without
graphs and with them, for both methods.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posterity as pst
from posterity import data
from posterity.models import lenet5
from posterity.optim import VOGN
from posterity.posteriors import Empirical

Pair = tuple[Tensor, Tensor]
FIGURES = ("accuracy", "nll", "ece", "misclassification_auroc")
POSTER = {  # validation accuracy, NLL, ECE, AUROC, seconds an epoch relative to Adam
    "Adam": {"accuracy": 0.6767, "nll": 0.937, "ece": 0.021, "misclassification_auroc": 0.794},
    "VOGN": {"accuracy": 0.6732, "nll": 0.938, "ece": 0.046, "misclassification_auroc": 0.800},
}
MUST = {"accuracy": 0.673, "nll": 0.938, "ece": 0.046, "misclassification_auroc": 0.800}
BATCH, TEST_DRAWS = 128, 64


@dataclass(frozen=True)
class Settings:
    """Of one VOGN run; the poster's are lr 1e-4, damping 1e-3, prior precision 100, and almost no memory (beta2)."""

    lr: float = 1e-4
    prior_precision: float = 100.0
    damping: float = 1e-3
    beta2: float = 0.9
    draws: int = 2
    cold: float = 0.1
    warm_epochs: int = 30

    def temperature(self, epoch: int) -> float:
        return self.cold + (1 - self.cold) * min(1.0, epoch / self.warm_epochs)


class Trainer:
    """Epochs over data that lies on the device; the step is a CUDA graph where asked for."""

    def __init__(self, train: Pair, step: Callable[[Tensor, Tensor], None], seed: int, graphs: bool) -> None:
        self.inputs, self.targets = train
        self.step, self.graphs = step, graphs
        self.rows = torch.zeros(BATCH, dtype=torch.long, device=self.inputs.device)
        self.order = torch.Generator(self.inputs.device).manual_seed(seed)
        self.noise: torch.Generator | None = None

    def once(self) -> None:
        self.step(self.inputs[self.rows], self.targets[self.rows])

    def captured(self) -> torch.cuda.CUDAGraph:
        """One step as a graph; two steps run before it, as capturing asks for."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.once()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        if self.noise is not None:
            graph.register_generator_state(self.noise)
        with torch.cuda.graph(graph):
            self.once()
        return graph

    def epoch(self) -> None:
        n = len(self.targets) // BATCH
        order = torch.randperm(len(self.targets), generator=self.order, device=self.rows.device)[: n * BATCH]
        batches = order.view(n, BATCH)
        self.rows.copy_(batches[0])
        run = self.captured().replay if self.graphs else self.once
        for rows in batches:
            self.rows.copy_(rows)
            run()


def vogn(train: Pair, settings: Settings, seed: int, epochs: int, graphs: bool) -> pst.Posterior:
    net = network(seed, train)
    noise = torch.Generator(train[0].device).manual_seed(seed)
    optimizer = VOGN(
        net,
        settings.lr,
        len(train[1]),
        prior_precision=settings.prior_precision,
        damping=settings.damping,
        beta2=settings.beta2,
        init_precision=None,
        generator=noise,
    )

    def step(x: Tensor, y: Tensor) -> None:
        for _ in range(settings.draws):
            with optimizer.sampled_weights():
                F.cross_entropy(net(x), y).backward()
        optimizer.step()

    trainer = Trainer(train, step, seed, graphs)
    trainer.noise = noise
    for epoch in range(epochs):
        for group in optimizer.param_groups:
            group["temperature"] = settings.temperature(epoch)
        trainer.epoch()
    return optimizer.posterior(net, pst.likelihoods.Categorical())


def adam(train: Pair, seed: int, epochs: int, graphs: bool) -> pst.Posterior:
    """The poster's baseline: lr 1e-3, weight decay 0.01."""
    net = network(seed, train)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=0.01, capturable=graphs)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    trainer = Trainer(train, step, seed, graphs)
    for _ in range(epochs):
        trainer.epoch()
    return Empirical(net, pst.likelihoods.Categorical(), [dict(net.named_parameters())])


def network(seed: int, train: Pair) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return lenet5((3, 32, 32)).to(train[0].device)


def scores(posterior: pst.Posterior, held: Pair) -> dict[str, float]:
    found = pst.evaluate(posterior, held, draws=TEST_DRAWS, resamples=0)
    return {figure: found[figure] for figure in FIGURES}


def epoch_times(train: Pair, graphs: bool, rounds: int = 3) -> dict[str, float]:
    """Seconds of an epoch at one draw, epochs of the two methods in turn; the first of each is not counted."""

    def seconds(fit: Callable[[int], object]) -> float:
        spent = []
        for epochs in (1, 2):
            torch.cuda.synchronize() if train[0].is_cuda else None
            begin = time.perf_counter()
            fit(epochs)
            torch.cuda.synchronize() if train[0].is_cuda else None
            spent.append(time.perf_counter() - begin)
        return spent[1] - spent[0]

    one = replace(Settings(), draws=1)
    times: dict[str, list[float]] = {"Adam": [], "VOGN": []}
    for _ in range(rounds + 1):
        times["Adam"].append(seconds(lambda n: adam(train, 0, n, graphs)))
        times["VOGN"].append(seconds(lambda n: vogn(train, one, 0, n, graphs)))
    medians = {name: statistics.median(taken[1:]) for name, taken in times.items()}
    return {**medians, "ratio": medians["VOGN"] / medians["Adam"]}


def select(train: Pair, held: Pair, options: argparse.Namespace) -> list[dict[str, object]]:
    """A small grid on held-out training images, best NLL first."""
    rows = []
    grid = list(itertools.product((1e-4, 3e-4, 1e-3), (30.0, 100.0), (1e-3, 3e-4), (0.0, 0.9)))
    part, parts = options.part
    for lr, precision, damping, beta2 in grid[part::parts]:
        settings = Settings(lr, precision, damping, beta2, options.draws)
        found = scores(vogn(train, settings, 0, options.epochs, options.graphs), held)
        rows.append({**asdict(settings), **found})
        print(json.dumps(rows[-1]), flush=True)
        write(options, rows)
    return sorted(rows, key=lambda row: row["nll"])


def write(options: argparse.Namespace, result: object) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    name = f"vogn_cifar10_select_{options.part[0]}.json" if options.select else "vogn_cifar10.json"
    (options.out / name).write_text(json.dumps(result, indent=2))


def table(train: Pair, held: Pair, options: argparse.Namespace) -> dict[str, object]:
    settings = replace(Settings(), draws=options.draws)
    rows: dict[str, list[dict[str, float]]] = {"Adam": [], "VOGN": []}
    for seed in range(options.seeds):
        rows["Adam"].append(scores(adam(train, seed, options.epochs, options.graphs), held))
        rows["VOGN"].append(scores(vogn(train, settings, seed, options.epochs, options.graphs), held))
        print(f"seed {seed}: " + "; ".join(f"{k} {v[-1]}" for k, v in rows.items()), flush=True)
    mean = {k: {f: statistics.mean(row[f] for row in v) for f in FIGURES} for k, v in rows.items()}
    spread = {k: {f: statistics.pstdev([row[f] for row in v]) for f in FIGURES} for k, v in rows.items()}
    times = {"without graphs": epoch_times(train, False)}
    if options.graphs:
        times["with graphs"] = epoch_times(train, True)
    for name in rows:
        print(f"{name}: " + ", ".join(f"{f} {mean[name][f]:.4f} ± {spread[name][f]:.4f}" for f in FIGURES))
    for figure, bound in MUST.items():
        better = mean["VOGN"][figure] >= bound if figure in ("accuracy", "misclassification_auroc") else None
        met = better if better is not None else mean["VOGN"][figure] <= bound
        print(f"VOGN {figure}: {mean['VOGN'][figure]:.4f}, bound {bound}: {'met' if met else 'NOT MET'}")
    print(f"epoch times: {times}; the ratio must be at most 1.5")
    return {"settings": asdict(settings), "seeds": rows, "mean": mean, "std": spread, "poster": POSTER, "times": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder for the JSON files")
    parser.add_argument("--select", action="store_true")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="--select only: the i-th of n shares")
    parser.add_argument("--epochs", type=int, help="210 for the table, 60 for --select")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draws", type=int, default=Settings.draws, help="training draws")
    parser.add_argument("--images", type=int, default=50_000, help="use only so many training images")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    options = parser.parse_args()
    options.epochs = options.epochs or (60 if options.select else 210)
    options.graphs = options.device == "cuda" and not options.eager
    images = data.load("cifar10")
    inputs, targets = (t[: options.images].to(options.device) for t in images.train)
    begin = time.perf_counter()
    if options.select:
        split = len(targets) - len(targets) // 10
        result: object = select((inputs[:split], targets[:split]), (inputs[split:], targets[split:]), options)
    else:
        held = tuple(t.to(options.device) for t in images.test)
        result = table((inputs, targets), held, options)
    write(options, {"seconds": time.perf_counter() - begin, "result": result})


if __name__ == "__main__":
    main()
