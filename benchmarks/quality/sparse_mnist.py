"""MNIST: SparseVD, ARD and GroupSparse beside the published error and compression.

    python benchmarks/quality/sparse_mnist.py --row lenet-300-100 --out a.json      # about 3 min on an H200
    python benchmarks/quality/sparse_mnist.py --row lenet-5-caffe --out b.json      # about 6 min
    python benchmarks/quality/sparse_mnist.py --row structured --out c.json         # about 5 min
    python benchmarks/quality/sparse_mnist.py --row random-labels --out d.json      # about 2 min
    ... --validate      # choose settings: trains on 50,000 images, scores on the 10,000 held out, one seed

Training is the method's own (its network, schedule, phases and KL), run here under a CUDA graph because a LeNet's step
is bound by launching kernels; ``pst.fit`` gives the same, more slowly. The compression ratio is |W|/|W ≠ 0| as
published; bytes on disk, FLOPs and latency come from ``compress``. No test image is looked at before the end.

Published (Molchanov et al. 2017; Neklyudov et al. 2017): LeNet-300-100 1.92% at 68x, LeNet-5-Caffe 0.75% at 280x,
LeNet-5-Caffe structured 0.86% at 10.5x FLOPs and 5.4x CPU time; random labels: everything goes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posterity as pst
from posterity import data
from posterity.methods.tempering import LinearKL
from posterity.models import lenet5_caffe, lenet_300_100
from posterity.optim.config import OptimizerConfig
from posterity.posteriors import DiagonalGaussian
from posterity.types import Plan

BATCH = 100


RAMP = LinearKL(fraction=0.1, delay=1 / 30)

ROWS: dict[str, dict] = {
    "lenet-300-100": {
        "network": lambda: lenet_300_100((1, 28, 28), 10),
        "epochs": 150,
        "lr": 1e-3,
        "method": lambda temperature: pst.SparseVD(
            kl_schedule=RAMP, clip_start=0.4, finetune=20 / 150, temperature=1.15 * temperature
        ),
    },
    "lenet-5-caffe": {
        "network": lambda: lenet5_caffe((1, 28, 28), 10),
        "epochs": 240,
        "lr": 2e-3,
        "method": lambda temperature: pst.SparseVD(
            kl_schedule=RAMP, clip_start=0.2, finetune=30 / 240, decay_start=0.0, temperature=temperature
        ),
    },
    "ard": {
        "network": lambda: lenet_300_100((1, 28, 28), 10),
        "epochs": 150,
        "lr": 1e-3,
        "method": lambda temperature: pst.ARD(
            kl_schedule=RAMP, clip_start=0.4, finetune=20 / 150, temperature=temperature
        ),
    },
    "structured": {
        "network": lambda: lenet5_caffe((1, 28, 28), 10),
        "epochs": 200,
        "lr": 2e-3,
        "method": lambda temperature: pst.GroupSparse(
            prior=pst.priors.LogUniform(),
            kl_schedule=RAMP,
            clip_start=0.4,
            finetune=0.15,
            decay_start=0.3,
            temperature=temperature,
        ),
    },
    "random-labels": {
        "network": lambda: lenet_300_100((1, 28, 28), 10),
        "epochs": 60,
        "lr": 1e-3,
        "method": lambda temperature: pst.SparseVD(kl_schedule="constant", clip_start=0.5, finetune=0.05),
    },
}


def train(method: pst.SparseVD, network: nn.Module, pair: tuple[Tensor, Tensor], row: dict, seed: int) -> nn.Module:
    """The method's run: its schedule and phases, each step a replayed graph on a GPU."""
    x, y = pair
    size, augment = row.get("batch", BATCH), row.get("augment", lambda images, _: images)
    device, count = x.device, len(x) // size
    plan = Plan(len(x), row["epochs"] * count, count, size, OptimizerConfig(), row["lr"])
    net = method.prepare(network).to(device).train()
    pace, starts = method.schedule(plan), method.collector(net, plan).starts
    now = torch.zeros(2, device=device)
    lr, temperature = now
    paces = torch.tensor([(row["lr"] * pace.lr(i), pace.temperature(i)) for i in range(plan.steps)], device=device)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, fused=True, capturable=device.type == "cuda")
    batch = (x[:size].clone(memory_format=torch.preserve_format), y[:size].clone())

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast(device.type, torch.bfloat16, enabled=row.get("autocast", False)):
            outputs = net(batch[0])
        loss = F.cross_entropy(outputs.float(), batch[1]) + temperature * pst.kl(net) / len(x)
        loss.backward()
        optimizer.step()

    run, done, shuffle = captured(step, device), 0, torch.Generator(device).manual_seed(seed)
    for _ in range(row["epochs"]):
        order = torch.randperm(len(x), device=device, generator=shuffle)
        for index in order[: count * size].split(size):
            now.copy_(paces[done])
            batch[0].copy_(augment(x.index_select(0, index), shuffle))
            batch[1].copy_(y.index_select(0, index))
            run()
            done += 1
            if done in starts:
                for block in net.blocks:
                    block.advance(starts[done])
                run = captured(step, device)
    return net


def captured(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The step as a CUDA graph, after three steps to warm up; itself on a CPU."""
    if device.type != "cuda":
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


@torch.no_grad()
def error(net: nn.Module, pair: tuple[Tensor, Tensor]) -> float:
    net.eval()
    wrong = [(net(x).argmax(1) != y).sum() for x, y in zip(pair[0].split(1000), pair[1].split(1000), strict=True)]
    return 100 * float(torch.stack(wrong).sum()) / len(pair[0])


def one(row: dict, images: data.DataSet, held: tuple[Tensor, Tensor], options: argparse.Namespace, seed: int) -> dict:
    device = torch.device(options.device)
    x, y = (t.to(device) for t in images.training())
    if options.row == "random-labels":
        y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed)).to(device)]
    torch.manual_seed(seed)
    begun = time.perf_counter()
    method = row["method"](options.temperature)
    if options.clip_start is not None:
        method = replace(method, clip_start=options.clip_start)
    net = train(method, row["network"](), (x, y), row, seed)
    seconds = time.perf_counter() - begun
    stds = net.std()
    left = {name: int((net.mean()[name] != 0).sum()) for name in stds}
    total = sum(s.numel() for s in stds.values())
    result = {
        "seed": seed,
        "seconds": seconds,
        "error": error(net, tuple(t.to(device) for t in held)),
        "train_error": error(net, (x, y)),
        "ratio": total / max(1, sum(left.values())),
        "left": {name: [n, stds[name].numel()] for name, n in left.items()},
    }
    if options.compress and sum(left.values()):
        result |= compressed(net, held, x[:128].cpu())
    return result


def compressed(net: nn.Module, held: tuple[Tensor, Tensor], example: Tensor) -> dict:
    """What ``compress`` makes of it, on the CPU."""
    torch.set_num_threads(1)
    posterior = DiagonalGaussian(net.plain(), pst.likelihoods.Categorical(), net.mean(), net.std()).to("cpu")
    batches = list(zip(held[0].cpu().split(500), held[1].cpu().split(500), strict=True))
    report = pst.compress(posterior, validation=batches, example=example).compression
    return {
        "bytes_ratio": report.bytes[0] / report.bytes[1],
        "flops_ratio": report.flops[0] / report.flops[1],
        "latency": report.latency,
        "form": report.form,
        "compressed_error": None if report.accuracy is None else 100 * (1 - report.accuracy[1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", choices=ROWS, default="lenet-300-100")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, help="instead of the row's own number")
    parser.add_argument("--lr", type=float, help="instead of the row's own")
    parser.add_argument("--temperature", type=float, default=1.0, help="weight of the KL")
    parser.add_argument("--clip-start", type=float, help="instead of the row's own")
    parser.add_argument("--train", type=int, help="only so many training images")
    parser.add_argument("--validate", action="store_true", help="score on 10,000 images held out of the training set")
    parser.add_argument("--no-compress", dest="compress", action="store_false")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    row = dict(ROWS[options.row])
    row |= {key: value for key in ("epochs", "lr") if (value := getattr(options, key)) is not None}
    images = data.load("mnist")
    if options.validate:
        images = images.with_validation(10_000, torch.Generator().manual_seed(0))
    if options.train:
        images = images.subset(torch.arange(options.train))
    held = images.validation if options.validate else images.test
    results = []
    for seed in options.seeds[:1] if options.validate else options.seeds:
        results.append(one(row, images, held, options, seed))
        print(json.dumps(results[-1]), flush=True)
        if options.out:
            settings = {key: str(value) for key, value in vars(options).items() if key != "out"}
            options.out.write_text(json.dumps({"settings": settings, "seeds": results}, indent=1))
    for figure in ("error", "ratio"):
        values = [r[figure] for r in results]
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        print(f"{options.row}: {figure} {statistics.mean(values):.2f}{spread}", flush=True)


if __name__ == "__main__":
    main()
