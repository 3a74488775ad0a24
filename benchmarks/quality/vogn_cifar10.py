"""LeNet-5 on CIFAR-10 without data augmentation: VOGN beside Adam, the first rows of the VOGN poster's table.

    python -m benchmarks.quality.vogn_cifar10 --select 0 --out runs/0.json     # one setting of SETTINGS; 0 to 5
    python -m benchmarks.quality.vogn_cifar10 --best runs/*.json --seed 0 --out seed0.json      # its row of the table
    python -m benchmarks.quality.vogn_cifar10 --times --out times.json         # epoch times, nothing else running

The protocol is the poster's: batch 128, 210 epochs, constant learning rate, a temperature that rises over the first
epochs, all training images for training and the test images for "validation". The setting with the best NLL on the last
5,000 training images (trained on the other 45,000) is taken; the test images are not looked at for it. A training step
is captured as a CUDA graph, anew when the temperature has changed, which is part of it. The time of an epoch at one
draw is measured without graphs and with them, for both methods.
"""

from __future__ import annotations

import argparse
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


SETTINGS = [
    Settings(lr=1e-4, prior_precision=30.0, beta2=0.0, draws=4),
    Settings(lr=2e-4, prior_precision=30.0, beta2=0.0, draws=4),
    Settings(lr=1e-4, prior_precision=10.0, beta2=0.0, draws=4),
    Settings(lr=2e-4, prior_precision=10.0, damping=2e-3, beta2=0.0, draws=4),
    Settings(lr=1e-4, prior_precision=100.0, beta2=0.0, draws=4),
    Settings(lr=2e-4, prior_precision=30.0, damping=2e-3, beta2=0.0, draws=4),
]


class Trainer:
    """Epochs over data that lies on the device; the step is a CUDA graph where asked for."""

    def __init__(self, train: Pair, step: Callable[[Tensor, Tensor], None], seed: int, graphs: bool) -> None:
        self.inputs, self.targets = train
        self.step, self.graphs = step, graphs
        self.rows = torch.zeros(BATCH, dtype=torch.long, device=self.inputs.device)
        self.order = torch.Generator(self.inputs.device).manual_seed(seed)
        self.noise: torch.Generator | None = None
        self.replay: Callable[[], None] | None = None

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

    def epoch(self, changed: bool = False) -> None:
        """One epoch; ``changed`` says that a number which is part of the step has."""
        n = len(self.targets) // BATCH
        order = torch.randperm(len(self.targets), generator=self.order, device=self.rows.device)[: n * BATCH]
        batches = order.view(n, BATCH)
        self.rows.copy_(batches[0])
        if self.graphs and (changed or self.replay is None):
            self.replay = self.captured().replay
        run = self.replay or self.once
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
        trainer.epoch(changed=settings.temperature(epoch) != settings.temperature(epoch - 1))
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


def best_of(files: list[Path]) -> Settings:
    """The setting with the best NLL on held-out training images."""
    tried = [json.loads(path.read_text()) for path in files]
    return Settings(**min(tried, key=lambda row: row["figures"]["nll"])["settings"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    parser.add_argument("--select", type=int, help="try this one of SETTINGS on held-out training images")
    parser.add_argument("--best", type=Path, nargs="*", default=[], help="what --select left")
    parser.add_argument("--times", action="store_true", help="measure epoch times only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=210)
    parser.add_argument("--images", type=int, default=50_000, help="use only so many training images")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    graphs = options.device == "cuda"
    images = data.load("cifar10")
    train: Pair = tuple(t[: options.images].to(options.device) for t in images.train)  # type: ignore[assignment]
    held: Pair = tuple(t.to(options.device) for t in images.test)  # type: ignore[assignment]
    begin = time.perf_counter()
    result: dict[str, object] = {}
    if options.times:
        result = {"without graphs": epoch_times(train, False)}
        result |= {"with graphs": epoch_times(train, True)} if graphs else {}
    elif options.select is not None:
        split = len(train[1]) - len(train[1]) // 10
        settings = SETTINGS[options.select]
        kept, held = tuple(t[:split] for t in train), tuple(t[split:] for t in train)
        posterior = vogn(kept, settings, options.seed, options.epochs, graphs)  # type: ignore[arg-type]
        result = {"settings": asdict(settings), "figures": scores(posterior, held)}
    else:
        settings = best_of(options.best)
        result = {"settings": asdict(settings), "seed": options.seed, "poster": POSTER, "must": MUST}
        result["Adam"] = scores(adam(train, options.seed, options.epochs, graphs), held)
        result["VOGN"] = scores(vogn(train, settings, options.seed, options.epochs, graphs), held)
    result["seconds"] = time.perf_counter() - begin
    options.out.write_text(json.dumps(result, indent=1))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
