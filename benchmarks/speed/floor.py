"""The physical floor of a training step: what its arithmetic and its memory traffic would take at measured peak rates.

    python -m benchmarks.speed.floor --out benchmarks/results/floor_cpu.json
    python -m benchmarks.speed.floor --device cuda --out benchmarks/results/floor_h200.json

A step of Adam does the FLOPs of forward and backward, and moves at least ten numbers a weight: the weight is read in
the forward and in the backward pass, its gradient is written, then gradient, two moments and weight are read, and the
moments and the weight written. Nothing forbids to do both at once, so the floor is the longer of the two. A Bayesian
step does more than Adam's, so that it is measured against a floor which it cannot reach: the floor of any training.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed.harness import Bench, run
from posterity.models import lenet5_caffe, lenet_300_100, resnet18

WORDS = 10  # numbers moved a weight
NETWORKS = {  # with the batch they are timed at
    "LeNet-300-100": (lenet_300_100, (1, 28, 28), 128),
    "LeNet-5-Caffe": (lenet5_caffe, (1, 28, 28), 128),
    "ResNet-18": (resnet18, (3, 32, 32), 128),
}


def rates(bench: Bench) -> None:
    """Bytes and FLOPs a second: the best of many rounds of a copy and of a square matrix product in float32."""
    gpu = bench.device.type == "cuda"
    source = torch.randn(2**28 if gpu else 2**25, device=bench.device)
    target, side = torch.empty_like(source), 8192 if gpu else 1536
    a, b = torch.randn(2, side, side, device=bench.device)
    copied = min(bench.time(lambda: target.copy_(source))[0] for _ in range(bench.rounds + 1))
    product = min(bench.time(lambda: a @ b)[0] for _ in range(bench.rounds + 1))
    bench.figure("bytes a second", 2 * 4 * source.numel() / copied, "B/s")
    bench.figure("FLOPs a second", 2 * side**3 / product, "FLOP/s")


def seconds(figures: dict[str, float], flops: float, weights: float) -> float:
    """The floor of a step, from the measured rates."""
    return max(flops / figures["FLOPs a second"], 4 * WORDS * weights / figures["bytes a second"])


def networks(bench: Bench) -> None:
    """The floor of one Adam step of each network of the tables."""
    for name, (make, shape, batch) in NETWORKS.items():
        network = make(shape)
        flops, weights = step_flops(network, shape, batch), sum(p.numel() for p in network.parameters())
        bench.figure(f"floor, {name}", seconds(bench.figures, flops, weights), "s")


def step_flops(network: nn.Module, shape: tuple[int, ...], batch: int) -> int:
    """Counted in one forward and backward pass, on no device."""
    network = network.to("meta")
    inputs, targets = torch.randn(batch, *shape, device="meta"), torch.zeros(batch, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(network(inputs), targets).backward()
    return counter.get_total_flops()


if __name__ == "__main__":
    run(__doc__, {"rates": rates, "networks": networks})
