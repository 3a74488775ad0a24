"""A training step of VOGN, IVON and K-FAC as ratios to torch's Adam and AdamW with their default settings.

python benchmarks/speed/natural_gradient.py [--out results.json]

On a CPU: one thread, CPU time, batch 128. On a GPU: ResNet-18 with the CIFAR stem, batch 128, in float32 (TF32) and in
bfloat16 autocast, wall time between synchronisations, and the peak memory. Steps of all optimizers take turns, each
after one untimed step of its own; medians. Learning rates are zero, so that all see the same network throughout.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from posterity.models import alexnet, lenet5_caffe, lenet_300_100, resnet18
from posterity.optim import IVON, KFAC, VOGN

Step = Callable[[], None]
BATCH, CLASSES, N = 128, 10, 50_000


def plain(kind: type[torch.optim.Optimizer], net: nn.Module, forward: Callable[[nn.Module], torch.Tensor]) -> Step:
    optimizer = kind(net.parameters(), lr=0.0)

    def step() -> None:
        optimizer.zero_grad()
        forward(net).backward()
        optimizer.step()

    return step


def sampled(optimizer: torch.optim.Optimizer, net: nn.Module, forward: Callable[[nn.Module], torch.Tensor]) -> Step:
    def step() -> None:
        with optimizer.sampled_weights():
            forward(net).backward()
        optimizer.step()

    return step


def steps(make: Callable[[], nn.Module], shape: tuple[int, ...], device: str, autocast: bool) -> dict[str, Step]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, *shape, generator=g).to(device)
    y = torch.randint(CLASSES, (BATCH,), generator=g).to(device)

    def forward(net: nn.Module) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16) if autocast else nullcontext():
            outputs = net(x)
        return F.cross_entropy(outputs.float(), y)

    nets = [make().to(device).train() for _ in range(5)]
    ours = {
        "vogn": (VOGN(nets[2], 0.0, N, init_precision=1.0), nets[2]),
        "ivon": (IVON(nets[3].parameters(), 0.0, N), nets[3]),
        "kfac, inverted every 50 steps": (KFAC(nets[4], 0.0, N, refresh=50), nets[4]),
    }
    return {
        "adam": plain(torch.optim.Adam, nets[0], forward),
        "adamw": plain(torch.optim.AdamW, nets[1], forward),
        **{name: sampled(optimizer, net, forward) for name, (optimizer, net) in ours.items()},
    }


def seconds(step: Step, device: str) -> float:
    if device == "cpu":
        start = time.process_time()
        step()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / 5


def memory(step: Step) -> float:
    """Peak bytes above what is held between steps."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - held


def measure(all_steps: dict[str, Step], rounds: int, device: str) -> dict[str, dict[str, float]]:
    times: dict[str, list[float]] = {name: [] for name in all_steps}
    for step in all_steps.values():
        step()
        step()
    for _ in range(rounds):
        for name, step in all_steps.items():
            step()
            times[name].append(seconds(step, device))
    medians = {name: statistics.median(t) for name, t in times.items()}
    table = {}
    for name, step in all_steps.items():
        base = "adamw" if name == "ivon" else "adam"
        table[name] = {"ms": 1e3 * medians[name], "ratio": medians[name] / medians[base]}
        if device == "cuda":
            table[name]["memory"] = memory(step) / memory(all_steps[base])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    mnist, cifar = (1, 28, 28), (3, 32, 32)
    cases = {
        "LeNet-300-100": (lambda: lenet_300_100(mnist, CLASSES), mnist, False, 4),
        "LeNet-5-Caffe": (lambda: lenet5_caffe(mnist, CLASSES), mnist, False, 1),
        "AlexNet-CIFAR": (lambda: alexnet(cifar, CLASSES), cifar, False, 1),
    }
    if options.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        cases = {
            "ResNet-18": (lambda: resnet18(cifar, CLASSES), cifar, False, 1),
            "ResNet-18, bfloat16": (lambda: resnet18(cifar, CLASSES), cifar, True, 1),
            "LeNet-5-Caffe": (lambda: lenet5_caffe(mnist, CLASSES), mnist, False, 1),
        }
    results = {}
    for name, (make, shape, autocast, times) in cases.items():
        table = measure(steps(make, shape, options.device, autocast), times * options.rounds, options.device)
        results[name] = table
        for method, figures in table.items():
            against = "AdamW" if method == "ivon" else "Adam"
            more = f", memory {figures['memory']:.2f}" if "memory" in figures else ""
            print(f"{name}: {method} {figures['ms']:.2f} ms, {figures['ratio']:.3f} × {against}{more}", flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"device": options.device, "batch": BATCH, "steps": results}, indent=2))


if __name__ == "__main__":
    main()
