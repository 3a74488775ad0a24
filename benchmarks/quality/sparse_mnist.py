"""MNIST: SparseVD, ARD and GroupSparse beside the published error and compression; one process a seed.

    python -m benchmarks.quality.sparse_mnist --row lenet-300-100 --seed 0 --out results/sparse    # 150 epochs
    python -m benchmarks.quality.sparse_mnist --row lenet-5-caffe --seed 0 --out results/sparse    # 400 epochs
    python -m benchmarks.quality.sparse_mnist --row structured --seed 0 --out results/sparse       # 200 epochs
    python -m benchmarks.quality.sparse_mnist --row random-labels --seed 0 --out results/sparse
    python -m benchmarks.quality.sparse_mnist --row random-labels-dropout --seed 0 --out results/sparse
    ... --validate --temperature 1.5    # choose settings: trains on 50,000 images, scores on the 10,000 held out

Writes ROW--SEED.json and the small network into the folder (``--validate``: ROW--settings--SEED). The ratio is
|W|/|W ≠ 0| as published; bytes on disk, FLOPs and latency come from ``compress``, on one CPU thread. No test image is
looked at before the end.

Published (Molchanov et al. 2017; Neklyudov et al. 2017): LeNet-300-100 1.92% at 68x, LeNet-5-Caffe 0.75% at 280x,
LeNet-5-Caffe structured 0.86% at 10.5x FLOPs and 5.4x CPU time; random labels: everything goes, while a network with
binary dropout learns all of them by heart.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import posterity as pst
from benchmarks.quality.sparse_rows import ROWS, Row
from benchmarks.quality.tables import slug
from posterity import data
from posterity.compression import compact
from posterity.data.augment import CropFlip

KEPT_OUT = ("again", "out", "row")
OF_ROW = ("epochs", "lr", "batch", "shift")
OF_METHOD = ("temperature", "threshold", "clip_start", "finetune", "unit_weight")


def plain_network(posterior: pst.Posterior) -> nn.Module:
    """The one network that a posterior is deployed as: its mean, without noise."""
    network = copy.deepcopy(posterior.module)
    if isinstance(posterior, pst.WeightPosterior):
        network.load_state_dict(posterior.mean(), strict=False)
    return network.eval()


@torch.no_grad()
def error(network: nn.Module, pair: tuple[Tensor, Tensor]) -> float:
    """Wrong answers in per cent."""
    device = next(network.parameters()).device
    wrong = [
        (network(x.to(device)).argmax(1).cpu() != y.cpu()).sum()
        for x, y in zip(pair[0].split(1000), pair[1].split(1000), strict=True)
    ]
    return 100 * float(torch.stack(wrong).sum()) / len(pair[0])


def weights_left(posterior: pst.Posterior) -> dict[str, list[int]]:
    """Of every pruned weight by name, how many are left, of how many."""
    if not isinstance(posterior, pst.WeightPosterior):
        return {}
    means, history = posterior.mean(), posterior.history[-1]
    pruned = {name: w for name, w in means.items() if f"sparsity {name}" in history}
    return {name: [int((w != 0).sum()), w.numel()] for name, w in pruned.items()}


def weights_compacted(network: nn.Module, example: Tensor, left: dict[str, list[int]]) -> dict[str, list[int]]:
    """The same without the weights of units that reach no output or have become constant."""
    small = dict(compact(network.cpu(), example.cpu()).module.named_parameters())
    return {name: [int((small[name] != 0).sum()), total] for name, (_, total) in left.items()}


def ratio(left: dict[str, list[int]]) -> float:
    """|W|/|W ≠ 0|."""
    kept, total = (sum(counts) for counts in zip(*left.values(), strict=True))
    return total / max(1, kept)


def compressed(posterior: Any, held: tuple[Tensor, Tensor], file: Path | None = None) -> dict[str, Any]:
    """What ``compress`` makes of a posterior or a network, on one CPU thread; the small network goes into ``file``."""
    torch.set_num_threads(1)
    batches = [(x.cpu(), y.cpu()) for x, y in zip(held[0].split(500), held[1].split(500), strict=True)]
    small = pst.compress(posterior.to("cpu"), validation=batches, example=held[0][:128].cpu())
    if file is not None:
        small.save(file)
    report = small.compression
    return {
        "bytes_ratio": report.bytes[0] / report.bytes[1],
        "flops_ratio": report.flops[0] / report.flops[1],
        "latency": report.latency,
        "form": report.form,
        "compressed_error": None if report.accuracy is None else 100 * (1 - report.accuracy[1]),
    }


def one(row: Row, pair: tuple[Tensor, Tensor], held: tuple[Tensor, Tensor], seed: int, file: Path) -> dict[str, Any]:
    """Train, prune, measure."""
    inputs, labels = pair
    if row.random_labels:
        labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    augment = CropFlip(row.shift, flip=False, repeat_edge=True) if row.shift else None
    training = pst.Training(batch_size=row.batch, lr=row.lr, augment=augment, record=True, progress=False)
    begun = time.perf_counter()
    posterior = pst.fit(row.network, row.method, (inputs, labels), epochs=row.epochs, seed=seed, training=training)
    network, left = plain_network(posterior), weights_left(posterior)
    found: dict[str, Any] = {
        "seed": seed,
        "seconds": time.perf_counter() - begun,
        "error": error(network, held),
        "train_error": error(network, (inputs, labels)),
    }
    if left:
        found |= {"ratio": ratio(left), "left": left}
        if sum(kept for kept, _ in left.values()):
            found["ratio_compacted"] = ratio(weights_compacted(network, inputs[:8], left))
            found |= compressed(posterior, held, file)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", choices=ROWS, default="lenet-300-100")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, help="instead of the row's own number")
    parser.add_argument("--lr", type=float, help="instead of the row's own")
    parser.add_argument("--batch", type=int, help="instead of the row's own")
    parser.add_argument("--shift", type=int, help="training images are shifted by up to so many pixels")
    parser.add_argument("--temperature", type=float, help="weight of the KL, instead of the row's own")
    parser.add_argument("--clip-start", type=float, help="instead of the row's own")
    parser.add_argument("--finetune", type=float, help="instead of the row's own")
    parser.add_argument("--unit-weight", type=json.loads, help="of GroupSparse, a number or a mapping in JSON")
    parser.add_argument("--threshold", type=float, help="the log α from which weights and units are gone")
    parser.add_argument("--train", type=int, help="only so many training images")
    parser.add_argument("--validate", action="store_true", help="score on 10,000 images held out of the training set")
    parser.add_argument("--again", action="store_true", help="only measure the small network again, on a quiet machine")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    options = parser.parse_args()
    given = {key: value for key, value in vars(options).items() if value is not None and key not in KEPT_OUT}
    row = replace(ROWS[options.row], **{key: given[key] for key in OF_ROW if key in given})
    changed = {key: given[key] for key in OF_METHOD if key in given}
    row = replace(row, method=replace(row.method, **changed))
    images = data.load("mnist")
    if options.validate:
        images = images.with_validation(10_000, torch.Generator().manual_seed(0))
    if options.train:
        images = images.subset(torch.arange(options.train))
    held = images.validation if options.validate else images.test
    named = [slug(f"{k} {v}") for k, v in given.items() if k not in ("seed", "validate")] if options.validate else []
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / ("--".join([options.row, *named, str(options.seed)]) + ".json")
    file = path.with_suffix(".safetensors")
    if options.again:
        found = json.loads(path.read_text()) | compressed(pst.compression.load(file, row.network()), held)
    else:
        found = {"row": options.row, "settings": given} | one(row, images.training(), held, options.seed, file)
    path.write_text(json.dumps(found, indent=1))
    print(json.dumps({key: value for key, value in found.items() if key != "left"}), flush=True)


if __name__ == "__main__":
    main()
