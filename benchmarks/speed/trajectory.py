"""Speed of the trajectory methods and samplers, as ratios within one run.

    python benchmarks/speed/trajectory.py                 # CPU rows: one thread, CPU time
    python benchmarks/speed/trajectory.py --device cuda   # GPU rows: wall time between synchronisations
    python benchmarks/speed/trajectory.py --only collect draw --out figures.json

Rounds are interleaved: every contestant runs once a round, and the median over rounds counts.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

import posterity as pst
from posterity.flat import Layout
from posterity.methods.collect import Trajectory
from posterity.models.convolutional import lenet5_caffe
from posterity.models.dense import lenet_300_100
from posterity.models.residual import resnet18
from posterity.optim.sgmcmc import PSGLD, SGHMC, SGLD
from posterity.posteriors.batchnorm import refreshed
from posterity.probability.gaussians import LowRankNormal
from posterity.types import Batch

MUST_BE = {
    "collect": 6.0,
    "draw": 28.0,
    "SGLD, LeNet-300-100": 1.45,
    "SGHMC, LeNet-300-100": 1.45,
    "SGLD, LeNet-5-Caffe": 1.05,
    "SGHMC, LeNet-5-Caffe": 1.05,
    "whole SWAG fit": 1.02,
    "BatchNorm refresh": 0.7,
    "memory": 23.0,
}


def clock(device: torch.device) -> Callable[[], float]:
    """CPU time on a CPU; on a GPU wall time, when all its work is done."""
    if device.type == "cpu":
        return time.process_time

    def synchronised() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return synchronised


def medians(contestants: dict[str, Callable[[], object]], device: torch.device, rounds: int, inner: int = 1):
    """Seconds of one call of each contestant."""
    now, seconds = clock(device), {name: [] for name in contestants}
    for run in contestants.values():
        run()
    for _ in range(rounds):
        for name, run in contestants.items():
            start = now()
            for _ in range(inner):
                run()
            seconds[name].append((now() - start) / inner)
    return {name: statistics.median(times) for name, times in seconds.items()}


def resnet(device: torch.device) -> nn.Module:
    return resnet18((3, 32, 32)).to(device)


def collect_and_draw(device: torch.device, rounds: int) -> dict[str, float]:
    """One snapshot and one draw, against copying the parameters into another flat vector."""
    params = dict(resnet(device).named_parameters())
    layout = Layout.of(params)
    flat, room = layout.flatten(params), layout.flatten(params)
    path = Trajectory(layout, 20, device=device)
    for _ in range(21):  # the first times round, rows are still being paged in
        path.add(params)
    q = LowRankNormal(path.mean, path.variance.sqrt(), path.deviations, 0.16)
    generator = torch.Generator(device).manual_seed(0)
    contestants = {
        "copy": lambda: room.copy_(flat),
        "collect": lambda: path.add(params),
        "draw": lambda: q.sample(generator),
    }
    seconds = medians(contestants, device, rounds)
    return {name: seconds[name] / seconds["copy"] for name in ("collect", "draw")}


def memory(device: torch.device) -> dict[str, float]:
    """What a collector of rank 20 takes, in copies of the parameters, scratch and all."""
    params = dict(resnet(device).named_parameters())
    layout = Layout.of(params)
    size = 4 * layout.total

    def in_use() -> int:
        if device.type == "cuda":
            return torch.cuda.max_memory_allocated(device)
        return 4096 * int(Path("/proc/self/statm").read_text().split()[1])

    before = in_use()
    path = Trajectory(layout, 20, device=device)
    for _ in range(22):
        path.add(params)
    return {"memory": (in_use() - before) / size}


def training_step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Callable[[], None]:
    def step() -> None:
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def samplers(device: torch.device, rounds: int) -> dict[str, float]:
    """A whole training step at batch 128, against the same with torch's SGD."""
    x, y = torch.randn(128, 1, 28, 28, device=device), torch.randint(10, (128,), device=device)
    generator, ratios = torch.Generator(device).manual_seed(0), {}
    for name, make, inner in (("LeNet-300-100", lenet_300_100, 20), ("LeNet-5-Caffe", lenet5_caffe, 3)):
        contestants = {}
        for label, build in {
            "SGD": lambda p: torch.optim.SGD(p, 1e-3),
            "SGLD": lambda p: SGLD(p, 1e-3, 60_000, generator=generator),
            "PSGLD": lambda p: PSGLD(p, 1e-5, 60_000, generator=generator),
            "SGHMC": lambda p: SGHMC(p, 1e-4, 60_000, generator=generator),
        }.items():
            module = make((1, 28, 28)).to(device)
            contestants[label] = training_step(module, build(module.parameters()), x, y)
        seconds = medians(contestants, device, rounds, inner)
        ratios |= {f"{label}, {name}": s / seconds["SGD"] for label, s in seconds.items() if label != "SGD"}
    return ratios


def whole_fit(device: torch.device, rounds: int) -> dict[str, float]:
    """50 epochs of LeNet-300-100 on 6,400 random images: SWAG of rank 20 against plain SGD."""
    x, y = torch.randn(6400, 1, 28, 28, device=device), torch.randint(10, (6400,), device=device)
    module = lenet_300_100((1, 28, 28))
    training = pst.Training(optimizer="sgd", lr=0.01, progress=False, device=str(device))
    contestants = {
        "SGD": lambda: pst.fit(module, pst.MAP(), (x, y), epochs=50, training=training),
        "SWAG": lambda: pst.fit(module, pst.SWAG(rank=20), (x, y), epochs=50, training=training),
    }
    seconds = medians(contestants, device, rounds)
    return {"whole SWAG fit": seconds["SWAG"] / seconds["SGD"]}


def refresh(device: torch.device, rounds: int) -> dict[str, float]:
    """BatchNorm statistics of 32 draws over 20 batches of 128, against torch's update_bn on each in turn.

    Batches lie on the device for both; with a loader that reads from disk one pass instead of 32 saves that much more.
    """
    module = resnet(device)
    batches = [Batch(torch.randn(128, 3, 32, 32, device=device), torch.zeros(128)) for _ in range(20)]
    draws = [
        {name: p.detach() * (1 + 0.01 * torch.randn_like(p)) for name, p in module.named_parameters()}
        for _ in range(32)
    ]

    def separate() -> None:
        network = copy.deepcopy(module)
        for params in draws:
            network.load_state_dict(params, strict=False)
            update_bn([batch.inputs for batch in batches], network)

    seconds = medians({"separate": separate, "together": lambda: refreshed(module, draws, batches)}, device, rounds)
    return {"BatchNorm refresh": seconds["together"] / seconds["separate"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="*", help="collect, memory, samplers, fit, refresh")
    parser.add_argument("--out", type=Path, help="a JSON file for the ratios")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.set_num_threads(1)
    parts = {
        "memory": lambda: memory(device),
        "collect": lambda: collect_and_draw(device, options.rounds),
        "samplers": lambda: samplers(device, options.rounds),
        "fit": lambda: whole_fit(device, max(3, options.rounds // 5)),
    }
    if device.type == "cuda":
        parts["refresh"] = lambda: refresh(device, max(3, options.rounds // 5))
    ratios: dict[str, float] = {}
    for name, measure in parts.items():
        if not options.only or name in options.only:
            found = measure()
            ratios |= found
            for what, ratio in found.items():
                print(f"{what:24s} {ratio:7.3f}   must be ≤ {MUST_BE.get(what, '–')}", flush=True)
    if options.out:
        options.out.write_text(json.dumps({"device": str(device), "ratios": ratios}, indent=2))


if __name__ == "__main__":
    main()
