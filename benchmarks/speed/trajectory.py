"""Speed of the trajectory methods and samplers.

python -m benchmarks.speed.trajectory                 # on the CPU; the BatchNorm refresh is measured on a GPU only
python -m benchmarks.speed.trajectory --device cuda --out figures.json
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

import posterity as pst
from benchmarks.speed.harness import Bench, run
from posterity.flat import Layout
from posterity.methods.collect import Trajectory
from posterity.models import lenet5_caffe, lenet_300_100, resnet18
from posterity.optim import PSGLD, SGHMC, SGLD
from posterity.posteriors.batchnorm import refreshed
from posterity.probability.gaussians import LowRankNormal
from posterity.types import Batch, Params

RANK = 20


def parameters(device: torch.device) -> Params:
    """Those of ResNet-18 with the CIFAR stem, 11 million."""
    return dict(resnet18((3, 32, 32)).to(device).named_parameters())


def memory(bench: Bench) -> None:
    """What a collector takes, in copies of the parameters, scratch and all; first, while the process is small."""
    params = parameters(bench.device)
    layout = Layout.of(params)

    def in_use() -> int:
        if bench.device.type == "cuda":
            return torch.cuda.max_memory_allocated(bench.device)
        return 4096 * int(Path("/proc/self/statm").read_text().split()[1])

    Trajectory(layout, 0, device=bench.device).add(params)  # loads what code the first one needs
    before = in_use()
    path = Trajectory(layout, RANK, device=bench.device)
    for _ in range(RANK + 2):
        path.add(params)
    taken = round((in_use() - before) / (4 * layout.total), 2)  # of pages, some are always half full
    bench.figure("SWAG collector of rank 20, ResNet-18", taken, "copies of the parameters", limit=RANK + 3)


def collect(bench: Bench) -> None:
    """One snapshot and one draw, against copying the parameters from one flat vector into another."""
    params = parameters(bench.device)
    layout = Layout.of(params)
    flat, room = layout.flatten(params), layout.flatten(params)
    path = Trajectory(layout, RANK, device=bench.device)
    for _ in range(RANK + 1):  # once round the ring, until all its pages are there
        path.add(params)
    q = LowRankNormal(path.mean, path.variance.sqrt(), path.deviations, 0.16)
    generator = torch.Generator(bench.device).manual_seed(0)
    contestants = {
        "copy of the parameters": lambda: room.copy_(flat),
        "collect": lambda: path.add(params),
        "draw": lambda: q.sample(generator),
    }
    bench.compare("SWAG of rank 20, ResNet-18", contestants, limits={"collect": 6.0, "draw": 28.0})


def training_step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Callable[[], None]:
    def step() -> None:
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def samplers(bench: Bench) -> None:
    """A whole training step at batch 128, against the same with torch's SGD."""
    device = bench.device
    x, y = torch.randn(128, 1, 28, 28, device=device), torch.randint(10, (128,), device=device)
    generator = torch.Generator(device).manual_seed(0)
    optimizers = {
        "SGD": lambda p: torch.optim.SGD(p, 1e-3),
        "SGLD": lambda p: SGLD(p, 1e-3, 60_000, generator=generator),
        "SGHMC": lambda p: SGHMC(p, 1e-4, 60_000, generator=generator),
        "PSGLD": lambda p: PSGLD(p, 1e-5, 60_000, generator=generator),
    }
    for name, make, calls, limit in (
        ("LeNet-300-100", lenet_300_100, 20, 1.45),
        ("LeNet-5-Caffe", lenet5_caffe, 3, 1.05),
    ):
        contestants = {}
        for label, build in optimizers.items():
            module = make((1, 28, 28)).to(device)
            contestants[label] = training_step(module, build(module.parameters()), x, y)
        bench.compare(f"training step, {name}", contestants, calls, {"SGLD": limit, "SGHMC": limit})


def fit(bench: Bench) -> None:
    """50 epochs of LeNet-300-100 on 6,400 random images: SWAG against plain SGD."""
    x, y = torch.randn(6400, 1, 28, 28, device=bench.device), torch.randint(10, (6400,), device=bench.device)
    module = lenet_300_100((1, 28, 28))
    training = pst.Training(optimizer="sgd", lr=0.01, progress=False, device=str(bench.device))
    few = Bench(bench.device, max(3, bench.rounds // 7), bench.results)
    contestants = {
        "SGD": lambda: pst.fit(module, pst.MAP(), (x, y), epochs=50, training=training),
        "SWAG": lambda: pst.fit(module, pst.SWAG(rank=RANK), (x, y), epochs=50, training=training),
    }
    few.compare("whole fit of 50 epochs, LeNet-300-100", contestants, limits={"SWAG": 1.02})


def refresh(bench: Bench) -> None:
    """BatchNorm statistics of 32 draws over 50 batches of 128, against torch's update_bn on each in turn.

    Batches lie on the device for both; with a loader that reads from disk, one pass instead of 32 saves that much more.
    """
    if bench.device.type != "cuda":
        return
    module = resnet18((3, 32, 32)).to(bench.device)
    batches = [Batch(torch.randn(128, 3, 32, 32, device=bench.device), torch.zeros(128)) for _ in range(50)]
    draws = [
        {name: p.detach() * (1 + 0.01 * torch.randn_like(p)) for name, p in module.named_parameters()}
        for _ in range(32)
    ]

    def separate() -> None:
        network = copy.deepcopy(module)
        for params in draws:
            network.load_state_dict(params, strict=False)
            update_bn([batch.inputs for batch in batches], network)

    few = Bench(bench.device, max(3, bench.rounds // 7), bench.results)
    contestants = {"32 separate passes": separate, "one pass": lambda: refreshed(module, draws, batches)}
    few.compare("BatchNorm refresh of 32 draws, ResNet-18", contestants, limits={"one pass": 0.7})


if __name__ == "__main__":
    run(__doc__, {"memory": memory, "collect": collect, "samplers": samplers, "fit": fit, "refresh": refresh})
