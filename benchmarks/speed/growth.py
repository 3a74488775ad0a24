"""How cost grows: time and memory against weights, batch, draws, rank and processes, with the exponent of the growth.

    python -m benchmarks.speed.growth --out benchmarks/results/growth_cpu.json --rounds 3
    python -m benchmarks.speed.growth --device cuda --out benchmarks/results/growth_h200.json --rounds 5

Every point is the median of a few rounds of `fit` or `predict`; on a CPU the time of the process, one thread. Memory is
the peak beyond what was held before. The exponent is the slope in the log–log plot over the last decade: below it a
fixed cost hides the growth. One is linear; above 1.1 is said to be more.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import posterity as pst
from benchmarks.speed.floor import rates, seconds, step_flops
from benchmarks.speed.harness import Bench, Row, now, run
from posterity.models import mlp
from posterity.posteriors import DiagonalGaussian, LowRankGaussian
from posterity.run import Run

INPUTS, CLASSES, BATCH, STEPS = 64, 10, 128, 5
METHODS: dict[str, Callable[[], pst.Method]] = {
    "MAP": pst.MAP,
    "MeanField": pst.MeanField,
    "IVON": pst.IVON,
    "VOGN": pst.VOGN,
    "SGHMC": lambda: pst.SGHMC(lr=1e-4, burn_in=0, thin=STEPS),
}
LINEAR = 1.1


def network(weights: float) -> nn.Sequential:
    """Two hidden layers, with about so many weights."""
    width = round(math.sqrt(weights + 37**2) - 37)  # (64 + 10) w + w²
    return mlp(INPUTS, CLASSES, hidden=(width, width))


def examples(bench: Bench, count: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, INPUTS, generator=g).to(bench.device)
    return inputs, torch.randint(CLASSES, (count,), generator=g).to(bench.device)


class Epochs:
    """A callback that times epochs."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.marks = device, list[float]()

    def on_epoch(self, run: Run, figures: dict[str, float]) -> None:
        self.marks.append(now(self.device))

    def step(self) -> float:
        """The median time of a step, without the first two epochs."""
        spans = [b - a for a, b in zip(self.marks[1:-1], self.marks[2:], strict=True)]
        return statistics.median(spans) / STEPS


def peak(device: torch.device, work: Callable[[], object]) -> int:
    """The largest memory in use during some work, beyond what was held before."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - held
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # give back what earlier work has freed, so that it cannot be used unseen
    Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the highest point so far
    held = resident("VmRSS")
    work()
    return max(0, resident("VmHWM") - held)


def resident(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def fit_step(bench: Bench, method: pst.Method, weights: float, batch: int = BATCH) -> Row:
    """A step of ``fit``, and the memory of a short fit."""
    clock, data = Epochs(bench.device), examples(bench, STEPS * batch)
    training = pst.Training(batch_size=batch, progress=False, device=str(bench.device), callbacks=(clock,))
    module = network(weights)
    memory = peak(bench.device, lambda: pst.fit(module, method, data, epochs=bench.rounds + 2, training=training))
    return Row(clock.step(), 1.0, memory)


def grow(bench: Bench, axis: str, lines: dict[str, Callable[[float], Row]], values: list[float]) -> None:
    """Measure lines at every value of an axis, and fit the exponents of both curves over the last decade."""
    for line in lines.values():
        line(values[0])  # so that the first point does not pay for what is loaded once
    for value in values:
        rows = {name: line(value) for name, line in lines.items()}
        bench.results[f"{axis} {value:.0f}"] = rows
        print(f"{axis} {value:.0f}: " + ", ".join(f"{n} {1e3 * r.seconds:.3f} ms" for n, r in rows.items()), flush=True)
    last = [value for value in values if value >= values[-1] / 10 * 0.99]
    for name in lines:
        found = [bench.results[f"{axis} {value:.0f}"][name] for value in last]
        slope = exponent(last, [row.seconds for row in found])
        bench.figure(f"{axis}: time of {name}", slope, "is the exponent", LINEAR)
        if all(row.peak_bytes for row in found):
            slope = exponent(last, [float(row.peak_bytes or 0) for row in found])
            bench.figure(f"{axis}: memory of {name}", slope, "is the exponent", LINEAR)


def exponent(x: list[float], y: list[float]) -> float:
    """The slope of log y over log x by least squares."""
    logs = [(math.log(a), math.log(b)) for a, b in zip(x, y, strict=True)]
    return statistics.linear_regression([a for a, _ in logs], [b for _, b in logs]).slope


def weights(bench: Bench) -> None:
    """A training step from 10⁴ weights to 10⁸; beside it the floor of Adam's."""
    rates(bench)

    def floor(count: float) -> Row:
        plain = network(count)
        flops, own = step_flops(plain, (INPUTS,), BATCH), sum(p.numel() for p in plain.parameters())
        return Row(seconds(bench.figures, flops, own), 1.0, None)

    lines = {name: lambda count, make=make: fit_step(bench, make(), count) for name, make in METHODS.items()}
    grow(bench, "weights", {**lines, "floor": floor}, [1e4, 1e5, 1e6, 3e6, 1e7, 3e7, 1e8])


def batch(bench: Bench) -> None:
    """A training step of a million weights from 16 to 1,024 examples, on a GPU to 16,384."""
    lines = {name: lambda n, make=make: fit_step(bench, make(), 1e6, int(n)) for name, make in METHODS.items()}
    largest = 14 if bench.device.type == "cuda" else 10
    grow(bench, "batch", lines, [float(2**e) for e in range(4, largest + 1, 2)])


def timed(bench: Bench, work: Callable[[], object]) -> Row:
    memory = peak(bench.device, work)
    return Row(statistics.median(bench.time(work)[0] for _ in range(bench.rounds)), 1.0, memory)


def draws(bench: Bench) -> None:
    """``predict`` on 100 inputs with 1 to 1,000 fresh draws of 100,000 weights."""
    plain = network(1e5).to(bench.device)
    mean = {name: p.detach() for name, p in plain.named_parameters()}
    std = {name: torch.full_like(p, 0.05) for name, p in mean.items()}
    q = DiagonalGaussian(plain, pst.likelihoods.Categorical(), mean, std)
    generator = torch.Generator(bench.device).manual_seed(0)
    inputs, _ = examples(bench, 100)
    lines = {"predict": lambda n: timed(bench, lambda: q.predict(inputs, int(n), generator=generator))}
    grow(bench, "draws", lines, [1, 3, 10, 30, 100, 300, 1000])


def rank(bench: Bench) -> None:
    """Draws of SWAG's Gaussian of a million weights with 2 to 200 deviations: eight at a time."""
    plain = network(1e6).to(bench.device)
    mean = {name: p.detach() for name, p in plain.named_parameters()}
    std = {name: torch.full_like(p, 0.01) for name, p in mean.items()}
    size, generator = sum(p.numel() for p in mean.values()), torch.Generator(bench.device).manual_seed(0)

    def line(count: float) -> Row:
        deviations = torch.randn(int(count), size, device=bench.device)
        q = LowRankGaussian(plain, pst.likelihoods.Categorical(), mean, std, deviations, 0.01)
        return timed(bench, lambda: q.stacked(8, generator))

    grow(bench, "rank", {"eight draws": line}, [2, 6, 20, 60, 200])


SHARED = ("MAP", "IVON", "VOGN")
WORKER = """
import sys, torch, posterity as pst
from benchmarks.speed.growth import METHODS, SHARED, Bench, Epochs, examples, network
torch.set_num_threads(1)
bench, world = Bench(torch.device("cpu"), 5), int(sys.argv[1])
torch.distributed.init_process_group("gloo")
for name in SHARED:
    clock = Epochs(bench.device)
    training = pst.Training(batch_size=128 * world, progress=False, device="cpu", callbacks=(clock,))
    pst.fit(network(1e6), METHODS[name](), examples(bench, 5 * 128 * world), epochs=7, training=training)
    if clock.marks:  # the first process alone is told of epochs
        print(name, clock.step(), flush=True)
"""


def processes(bench: Bench) -> None:
    """CPU time that one of 1, 2 and 4 processes spends on a step, 128 examples each: flat if talking is cheap."""
    found: dict[float, dict[str, Row]] = {}

    def line(name: str) -> Callable[[float], Row]:
        def measure(world: float) -> Row:
            if world not in found:
                found[world] = {n: Row(s, 1.0) for n, s in together(int(world)).items()}
            return found[world][name]

        return measure

    grow(bench, "processes", {name: line(name) for name in SHARED}, [1, 2, 4])


def together(world: int) -> dict[str, float]:
    """Seconds of a step by method, on the first of so many processes of one machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(world)}
    command = [sys.executable, "-c", WORKER, str(world)]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # torch warns of its own broadcast
            text=True,
        )
        for rank in range(world)
    ]
    printed = [rank.communicate()[0] for rank in ranks]
    return {name: float(value) for name, value in (line.split() for line in printed[0].splitlines())}


if __name__ == "__main__":
    run(
        __doc__,
        {"weights": weights, "batch": batch, "draws": draws, "rank": rank, "processes": processes},
    )
