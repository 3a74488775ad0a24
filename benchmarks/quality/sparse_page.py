"""The sparsity part of docs/results.md, from benchmarks/results: sparse, vgg, pruning and text hold one JSON a run.

A table whose runs are not there is left out.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"

PUBLISHED = {
    "lenet-300-100": ("LeNet-300-100, SparseVD", "1.92% at 68×"),
    "ard": ("LeNet-300-100, ARD", "–"),
    "lenet-5-caffe": ("LeNet-5-Caffe, SparseVD", "0.75% at 280×"),
    "lenet-5-caffe-shifted": ("LeNet-5-Caffe, SparseVD, shifted images", "0.75% at 280×"),
    "structured": ("LeNet-5-Caffe, GroupSparse", "0.86% at 10.5× FLOPs, 5.4× faster"),
}
AIMS = {
    "lenet-300-100": (1.90, {"ratio": (68, "weights")}),
    "lenet-5-caffe": (0.75, {"ratio": (280, "weights")}),
    "lenet-5-caffe-shifted": (0.75, {"ratio": (280, "weights")}),
    "structured": (0.86, {"flops_ratio": (10.5, "FLOPs"), "faster": (5.4, "CPU time")}),
}
"""The largest error, and the least of what is gained."""
PRUNED = {"lenet_300_100": ("LeNet-300-100", 1.59), "lenet5_caffe": ("LeNet-5-Caffe", 0.77)}


def sparsity() -> str:
    """All parts that have runs."""
    parts = ["## Smaller networks", _mnist(), _random_labels(), _pruning(), _vgg(), _text()]
    return "\n\n".join(part for part in parts if part)


def _runs(pattern: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob(pattern))]


def _spread(values: Iterable[float], digits: int = 2) -> str:
    """Mean ± standard deviation."""
    values = list(values)
    around = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{around}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _mnist_runs(row: str) -> list[dict[str, Any]]:
    """The runs of a row, each with how many times faster the small network is at batch 128."""
    old = json.loads((RESULTS / "sparse_lenet_300_100.json").read_text())["seeds"]
    runs = old if row == "lenet-300-100" else _runs(f"sparse/{row}--?.json")
    return [run | {"faster": run["latency"]["128"][0] / run["latency"]["128"][1]} for run in runs]


def _mnist() -> str:
    rows, told = [], []
    for row, (name, published) in PUBLISHED.items():
        runs = _mnist_runs(row)
        if not runs:
            continue
        sizes = [_spread((r[key] for r in runs), 1) for key in ("ratio", "bytes_ratio", "flops_ratio", "faster")]
        error = f"{_spread(r['error'] for r in runs)}%"
        rows.append([name, published, error, *(f"{size}×" for size in sizes), str(len(runs))])
        told += _verdict(name, row, runs)
    head = ["", "published", "test error", "weights / left", "bytes", "FLOPs", "CPU time, batch 128", "seeds"]
    return "\n\n".join(
        [
            "### Sparse variational dropout on MNIST",
            "Bytes on disk, floating-point operations and the time of one CPU thread are the dense network's over the "
            "small one's. Settings were chosen on 10,000 held-out training images: for LeNet-300-100 the KL's weight "
            "(1.15), for GroupSparse how heavily a filter weighs against a neuron, so that the operations fall by "
            "about ten. For LeNet-5-Caffe the weight follows from the ratio of earlier runs alone, so that about 280× "
            "comes out; shifted images are training images moved by up to one pixel, which the published run did not "
            "have. Late clipping, and a fine-tune of the survivors. From GroupSparse's network, when its bytes were "
            "measured, `compress` also took single weights of log alpha 3 and more. " + " ".join(told) + "\n\n"
            "    python -m benchmarks.quality.sparse_mnist --row lenet-5-caffe --seed 0 --out results",
            _table(head, rows),
            "All LeNet-5-Caffe runs that were scored on the test images:",
            _tried(),
        ]
    )


def _tried() -> str:
    """Error against ratio, by setting."""
    settings: dict[tuple[float, ...], list[dict[str, float]]] = {}
    for run in json.loads((RESULTS / "sparse" / "tried.json").read_text()):
        settings.setdefault(tuple(run[key] for key in ("shift", "lr", "epochs", "weight")), []).append(run)
    rows = [
        [
            *(f"{value:g}" for value in setting),
            f"{_spread(r['error'] for r in runs)}%",
            f"{_spread((r['ratio'] for r in runs), 0)}×",
            str(len(runs)),
        ]
        for setting, runs in settings.items()
    ]
    return _table(["pixels shifted", "lr", "epochs", "weight of the KL", "test error", "weights / left", "seeds"], rows)


def _verdict(name: str, row: str, runs: list[dict[str, Any]]) -> list[str]:
    """Whether the mean over seeds is where it was aimed at."""
    if row not in AIMS:
        return []
    most, gains = AIMS[row]
    met = statistics.mean(r["error"] for r in runs) <= most
    met &= all(statistics.mean(r[key] for r in runs) >= least for key, (least, _) in gains.items())
    aimed = " and ".join(f"{least}× {what}" for least, what in gains.values())
    return [f"{name} {'meets' if met else 'misses'} the {most:.2f}% at {aimed} aimed at."]


def _random_labels() -> str:
    old = json.loads((RESULTS / "sparse_random_labels.json").read_text())["seeds"]
    said = [("LeNet-300-100, SparseVD", old)]
    said += [("3 × 2048 units, SparseVD", _runs("sparse/random-labels--?.json"))]
    said += [("3 × 1024 units, binary dropout", _runs("sparse/random-labels-dropout--?.json"))]
    vgg = [r["sparse"] for r in _runs("vgg/*random_labels*.json") if "sparse" in r]
    said += [("VGG-like, CIFAR-10, SparseVD", vgg)]
    rows = [
        [name, f"{_spread(r['train_error'] for r in runs)}%", f"{_spread(r['error'] for r in runs)}%", _left(runs)]
        for name, runs in said
        if runs
    ]
    return "\n\n".join(
        [
            "### Random labels",
            "Labels of the training images in random order. Published: sparse variational dropout leaves nothing of "
            "the network and learns nothing, where binary dropout learns every label by heart.",
            _table(["", "training error", "test error", "weights left"], rows),
        ]
    )


def _left(runs: list[dict[str, Any]]) -> str:
    if "left" not in runs[0]:
        return "all"
    return ", ".join(str(sum(kept for kept, _ in run["left"].values())) for run in runs)


def _pruning() -> str:
    rows = []
    for model, (name, published) in PRUNED.items():
        runs = _runs(f"pruning/{model}--?.json")
        for method in runs[0]["rows"] if runs else ():
            found = [run["rows"][method] for run in runs if method in run["rows"]]
            sizes = [f"{_spread((f[key] for f in found), 1)}×" for key in ("ratio", "bytes_ratio", "flops_ratio")]
            rows.append([f"{name}: {method}", f"{_spread(f['error'] for f in found)}%", *sizes, f"{published}% at 12×"])
    if not rows:
        return ""
    return "\n\n".join(
        [
            "### Pruning on MNIST",
            "Sixty epochs, Adam, no setting tuned.\n\n"
            "    python -m benchmarks.quality.pruning --model lenet_300_100 --seed 0 --out results",
            _table(["", "test error", "weights / left", "bytes", "FLOPs", "published, magnitude"], rows),
        ]
    )


def _vgg() -> str:
    runs = [r for r in _runs("vgg/*.json") if "retrained" in r]
    rows = []
    for width in sorted({r["settings"]["width"] for r in runs}):
        here = [r for r in runs if r["settings"]["width"] == width]
        small = [r["compressed"] for r in here if "compressed" in r]
        sizes = [f"{_spread((s[key] for s in small), 1)}×" if small else "–" for key in ("bytes_ratio", "flops_ratio")]
        errors = (f"{_spread(r[part]['error'] for r in here)}%" for part in ("dense", "sparse", "retrained"))
        left = f"{_spread((r['retrained']['ratio'] for r in here), 1)}×"
        rows.append([f"{width:g}", *errors, left, *sizes, str(len(here))])
    if not rows:
        return ""
    settings = runs[0]["settings"]
    head = ["width", "dense, test error", "SparseVD", "retrained", "weights / left", "bytes", "FLOPs", "seeds"]
    return "\n\n".join(
        [
            "### The VGG-like network on CIFAR-10",
            f"{settings['dense_epochs']} epochs of SGD, {settings['epochs']} of SparseVD from there with the KL's "
            f"weight at {settings['temperature']:g}, chosen on 5,000 held-out training images, and "
            f"{settings['retrain_epochs']} of SGD for the survivors; the seeds share the dense network. Fine-tuned by "
            "SparseVD itself, without weight decay, the survivors had an error 0.9 percentage points above the dense "
            "network's on the held-out images. Published at width 1: 7.3% dense, 7.3% at 48×.\n\n"
            "    python -m benchmarks.quality.sparse_cifar10 --width 1 --out results",
            _table(head, rows),
        ]
    )


def _text() -> str:
    rows = []
    for method in ("dense", "magnitude", "sparse-vd", "ard", "random"):
        runs = [run["levels"] for run in _runs(f"text/{method}--?.json")]
        for level in zip(*runs, strict=True):
            accuracy = _spread((100 - found["error"] for found in level), 1)
            left = f"{_spread((f['ratio'] for f in level), 1)}×"
            rows.append([method, f"{level[0]['level']:g}", left, f"{accuracy}%", str(len(level))])
    if not rows:
        return ""
    return "\n\n".join(
        [
            "### A small transformer on SST-2",
            "Accuracy against sparsity; embeddings count. The level is the share of weights kept, or the weight of the "
            "KL. In the literature tuned magnitude pruning and variational dropout tie. Here they do not: the dense "
            "network learns the 6,920 sentences by heart, and the KL, which magnitude pruning does without, "
            "regularises beside making sparse. Magnitudes are compared within a layer, and nothing was tuned for any "
            "method.\n\n"
            "    python -m benchmarks.quality.sparse_text --method sparse-vd --seed 0 --out results",
            "![Error against compression of a small transformer](images/sparse-text.png)",
            _table(["", "level", "weights / left", "test accuracy", "seeds"], rows),
        ]
    )
