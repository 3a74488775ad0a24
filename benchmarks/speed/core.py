"""The core against plain PyTorch: a MAP step of ``fit``, ``predict`` with 32 draws, memory of many draws, import time.

python -m benchmarks.speed.core
python -m benchmarks.speed.core --device cuda --out core.json
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posterity as pst
from benchmarks.speed.harness import Bench, now, run
from posterity.models import lenet5_caffe, lenet_300_100
from posterity.posteriors import DiagonalGaussian
from posterity.run import Run

NETWORKS = {"LeNet-300-100": lenet_300_100, "LeNet-5-Caffe": lenet5_caffe}
SHAPE, BATCH, DRAWS, INPUTS = (1, 28, 28), 128, 32, 1000
PREDICT_LIMITS = {
    "cpu": {"LeNet-300-100": 1.05, "LeNet-5-Caffe": 1.05},
    "cuda": {"LeNet-300-100": 0.2, "LeNet-5-Caffe": 0.65},
}


def images(bench: Bench, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, *SHAPE, generator=generator)
    return x.to(bench.device), torch.randint(10, (count,), generator=generator).to(bench.device)


def by_hand(network: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """An epoch as one would write it: shuffle, slice, forward, backward, Adam with the prior as weight decay."""
    optimizer = torch.optim.Adam(network.parameters(), 1e-3, weight_decay=1 / len(y), fused=True)

    def epoch() -> None:
        for rows in torch.randperm(len(y)).to(x.device).split(BATCH):
            F.cross_entropy(network(x.index_select(0, rows)), y.index_select(0, rows)).backward()
            optimizer.step()
            optimizer.zero_grad()

    return epoch


class Interleaved:
    """A callback that runs an epoch by hand after each of fit's, and times both."""

    def __init__(self, bench: Bench, hand: Callable[[], None], steps: int) -> None:
        self.bench, self.hand, self.steps = bench, hand, steps
        self.seconds: dict[str, list[float]] = {"by hand": [], "fit": []}
        self.started: float | None = None

    def on_epoch(self, run: Run, figures: dict[str, float]) -> None:
        if self.started is not None:  # the first epoch warms up
            self.seconds["fit"].append((now(self.bench.device) - self.started) / self.steps)
            self.seconds["by hand"].append(self.bench.time(self.hand)[0] / self.steps)
        else:
            self.hand()
        self.started = now(self.bench.device)


def fit_step(bench: Bench) -> None:
    """(a) A step of ``fit`` with MAP, against the same step by hand, epoch by epoch in turn."""
    for name, make in NETWORKS.items():
        steps = 100 if name == "LeNet-300-100" or bench.device.type == "cuda" else 20
        x, y = images(bench, steps * BATCH)
        clock = Interleaved(bench, by_hand(make(SHAPE).to(bench.device), x, y), steps)
        training = pst.Training(batch_size=BATCH, progress=False, device=str(bench.device), callbacks=(clock,))
        pst.fit(make(SHAPE), pst.MAP(), (x, y), epochs=bench.rounds + 1, training=training)
        bench.add(f"MAP step, {name}, batch {BATCH}", clock.seconds, limits={"fit": 1.05})


def gaussian(name: str, device: torch.device) -> DiagonalGaussian:
    network = NETWORKS[name](SHAPE).to(device)
    mean = {key: p.detach() for key, p in network.named_parameters()}
    std = {key: torch.full_like(p, 0.05) for key, p in mean.items()}
    return DiagonalGaussian(network, pst.likelihoods.Categorical(), mean, std)


def predict_tf32(bench: Bench) -> None:
    """(b) On a GPU also with TF32 in matrix products, for both sides, as most people train."""
    if bench.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        predict(bench, ", TF32")
        torch.set_float32_matmul_precision("highest")


def predict(bench: Bench, setting: str = "") -> None:
    """(b) 32 draws on 1,000 inputs against 32 plain forwards: with draws kept, with fresh ones, and the first call."""
    x, _ = images(bench, INPUTS)
    calls = 1 if bench.device.type == "cpu" else 5  # in a row: a GPU works while the next call is prepared
    for name in NETWORKS:
        posterior = gaussian(name, bench.device)
        new = iter([posterior.to() for _ in range(calls * bench.rounds + 1)])
        generator = torch.Generator(bench.device).manual_seed(1)

        @torch.no_grad()
        def plain(network: nn.Module = posterior.module) -> None:
            for _ in range(DRAWS):
                network(x)

        contestants: dict[str, Callable[[], object]] = {
            "32 plain forwards": plain,
            "predict": lambda q=posterior: q.predict(x, DRAWS),
            "predict, fresh draws": lambda q=posterior, g=generator: q.predict(x, DRAWS, generator=g),
            "predict, first call": lambda new=new: next(new).predict(x, DRAWS),
        }
        limit = PREDICT_LIMITS[bench.device.type][name]
        best = "predict"
        if bench.device.type == "cuda":
            best = "predict, compiled"
            compute = pst.Compute(compile=True)
            contestants[best] = lambda q=posterior, c=compute: q.predict(x, DRAWS, compute=c)
        bench.compare(f"predict, {name}{setting}", contestants, calls, {best: limit})


MANY_DRAWS = """
import resource, sys, torch, posterity as pst
from benchmarks.speed.core import gaussian
torch.set_num_threads(1)
device = torch.device(sys.argv[2])
x = torch.randn(100, 1, 28, 28, device=device)
gaussian("LeNet-300-100", device).predict(x, int(sys.argv[1]))
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(torch.cuda.max_memory_allocated() if device.type == "cuda" else rss)
"""


def memory(bench: Bench) -> None:
    """(c) The peak of memory of 10,000 draws, against 300 (up to about 250 are kept for the next call)."""
    peaks = {n: float(_python(MANY_DRAWS, str(n), str(bench.device))) for n in (300, 10_000)}
    bench.figure("peak memory with 300 draws", peaks[300] / 2**20, "MiB")
    bench.figure("peak memory with 10,000 draws", peaks[10_000] / 2**20, "MiB")
    bench.figure("10,000 draws over 300 draws", peaks[10_000] / peaks[300], "×", limit=1.05)


IMPORT = "import time, torch; t = time.process_time(); import posterity; print(time.process_time() - t)"


def imports(bench: Bench) -> None:
    """(d) What importing costs over importing torch."""
    seconds = sorted(float(_python(IMPORT)) for _ in range(7))
    bench.figure("import over torch", seconds[3], "s", limit=0.2)


def _python(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    predictions = {"predict": predict, "predict-tf32": predict_tf32}
    run(__doc__, {"fit": fit_step, **predictions, "memory": memory, "import": imports})
