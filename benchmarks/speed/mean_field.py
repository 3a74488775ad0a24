"""A mean-field training step as a ratio to the deterministic Adam step in the same run.

    OMP_NUM_THREADS=1 python benchmarks/speed/mean_field.py                 # CPU rows: LeNet-300-100, LeNet-5-Caffe
    python benchmarks/speed/mean_field.py --device cuda --out speed.json    # GPU rows: ResNet-18, batch 512

Interleaved rounds, medians; CPU time on a CPU, events on a GPU. The deterministic step is torch.optim.Adam as it comes;
``fused`` is the same with fused=True, which all Bayesian steps use. Memory (GPU) is the peak over the deterministic
peak.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from posterity.devices import channels_last
from posterity.layers import kl, variational
from posterity.methods import SparseVD
from posterity.models import lenet5_caffe, lenet_300_100, resnet18
from posterity.probability import priors

NUM_DATA = 60_000
MUST_BE = {
    ("LeNet-300-100", "reparameterised"): 1.5,
    ("LeNet-300-100", "local"): 2.3,
    ("LeNet-5-Caffe", "reparameterised"): 1.10,
    ("LeNet-5-Caffe", "local"): 2.0,
    ("LeNet-5-Caffe", "flipout"): 2.1,
    ("LeNet-5-Caffe", "SparseVD"): 2.1,
    ("ResNet-18", "reparameterised"): 1.05,
    ("ResNet-18", "local"): 1.6,
}


def step(net: nn.Module, x: torch.Tensor, y: torch.Tensor, *, fused: bool) -> Callable[[], None]:
    """One whole training step; with the KL where the network has one."""
    bayesian = hasattr(net, "kl")
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, fused=fused)

    def run() -> None:
        loss = F.cross_entropy(net(x), y)
        if bayesian:
            loss = loss + kl(net) / NUM_DATA
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def steps(make: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor) -> dict[str, Callable[[], None]]:
    """Every kind of step on one architecture."""
    prior = priors.Normal(0.1)

    def converted(estimator: str) -> nn.Module:
        return variational(make(), estimator=estimator, prior=prior).to(x.device)

    works = {
        "deterministic": step(make().to(x.device), x, y, fused=False),
        "fused": step(make().to(x.device), x, y, fused=True),
    }
    for estimator in ("reparameterised", "local", "flipout"):
        works[estimator] = step(converted(estimator), x, y, fused=True)
    works["SparseVD"] = step(SparseVD().prepare(make()).to(x.device), x, y, fused=True)
    return works


def seconds(work: Callable[[], None], gpu: bool, calls: int) -> float:
    if not gpu:
        start = time.process_time()
        for _ in range(calls):
            work()
        return (time.process_time() - start) / calls
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / calls / 1000


def peak_memory(work: Callable[[], None]) -> int:
    """Bytes above what was allocated before the step."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measure(name: str, works: dict[str, Callable[[], None]], rounds: int, calls: int, gpu: bool) -> list[dict]:
    for work in works.values():
        for _ in range(3):
            work()
    times: dict[str, list[float]] = {kind: [] for kind in works}
    for _ in range(rounds):  # interleaved, so that a busy machine hits all alike
        for kind, work in works.items():
            times[kind].append(seconds(work, gpu, calls))
    memory = {kind: peak_memory(work) for kind, work in works.items()} if gpu else {}
    base = statistics.median(times["deterministic"])
    rows = []
    for kind, t in times.items():
        ratio, must = statistics.median(t) / base, MUST_BE.get((name, kind))
        row = {"network": name, "step": kind, "ms": 1000 * statistics.median(t), "ratio": ratio, "must_be": must}
        if gpu:
            row["memory_ratio"] = memory[kind] / memory["deterministic"]
        rows.append(row)
        verdict = "" if must is None else f"   must be ≤ {must}: {'yes' if ratio <= must else 'NO'}"
        extra = f"   memory {row['memory_ratio']:.2f}" if gpu else ""
        print(f"{name:14s} {kind:24s} {row['ms']:9.3f} ms   {ratio:5.2f}{extra}{verdict}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gpu = options.device != "cpu"
    rows = []
    if gpu:
        x, y = torch.randn(512, 3, 32, 32, device=options.device), torch.randint(10, (512,), device=options.device)
        x = channels_last(x)  # as ``fit`` has them, for all contestants
        works = steps(lambda: resnet18((3, 32, 32), 10), x, y)
        rows += measure("ResNet-18", works, options.rounds, 5, gpu)
    else:
        x, y = torch.randn(128, 1, 28, 28), torch.randint(10, (128,))
        for name, make, calls in (("LeNet-300-100", lenet_300_100, 10), ("LeNet-5-Caffe", lenet5_caffe, 1)):
            works = steps(lambda make=make: make((1, 28, 28), 10), x, y)
            rows += measure(name, works, options.rounds, calls, gpu)
    if options.out:
        where = {"device": options.device, "torch": torch.__version__, "date": datetime.date.today().isoformat()}
        options.out.write_text(json.dumps({**where, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
