"""CIFAR-10: SparseVD on the VGG-like network, from a trained one, at three widths; and with random labels.

    python -m benchmarks.quality.sparse_cifar10 --dense-only --width 1 --dense d.safetensors --out results/vgg
    python -m benchmarks.quality.sparse_cifar10 --width 1 --dense d.safetensors --out results/vgg
    python -m benchmarks.quality.sparse_cifar10 --random-labels --epochs 30 --out results/vgg
    ... --validate      # trains on 45,000 images and scores on the 5,000 held out

The network (13 convolutions, 2 dense layers, BatchNorm) is trained by SGD with crops and flips, or read from the file
``--dense``, and SparseVD goes on from there, as in the paper (it under-fits from scratch).

Weights of a trained network with BatchNorm and weight decay are small, often smaller than SparseVD's usual first std of
0.0067, which would drown them. So each weight starts with a std of a tenth of its own size, or of its layer's root mean
square where that is larger: weight decay has brought most weights of the deep layers to next to nothing, and those have
to start as noise (with a tenth of their own size a sixteenth of them stayed, whatever the weight of the KL).
The KL rises slowly, to ``--temperature``: the paper stops after 10 to 30 epochs at a learning rate of 1e-5, long before
the bound is at its optimum. ``--std-rate`` lets the stds, which are learned as logarithms, move faster than the means.
At the end the survivors are retrained as the dense network was trained, by SGD with weight decay: fine-tuned by
SparseVD itself, without either, they had 7.78% at 50x on 5,000 held-out images where the dense network had 6.86%.

Published (Molchanov et al. 2017): 7.3% error for the dense network and for SparseVD at 48x; random labels: all go.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import posterity as pst
from benchmarks.quality.sparse_mnist import compressed, error, plain_network, ratio, weights_left
from benchmarks.quality.tables import decay
from posterity import data
from posterity.data.augment import CropFlip
from posterity.methods.tempering import LinearKL
from posterity.models import vgg_like
from posterity.optim.config import OptimizerConfig
from posterity.random import RandomStreams
from posterity.types import Plan

BATCH = 250
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True, repr=False)
class TwoRates(pst.SparseVD):
    """SparseVD whose stds have a learning rate of their own.

    Attributes:
        std_rate: The learning rate of the logarithms of the stds, in that of the means.
    """

    std_rate: float = 1.0

    def optimizer(self, module: nn.Module, plan: Plan, streams: RandomStreams) -> Optimizer:
        lr = plan.lr or self.default_lr
        stds = [p for name, p in module.named_parameters() if name.endswith("log_std")]
        others = [p for name, p in module.named_parameters() if not name.endswith("log_std")]
        groups: Any = [{"params": others}, {"params": stds, "lr": self.std_rate * lr}]
        return plan.algorithm.build(groups, lr)


def training(lr: float, **options: Any) -> pst.Training:
    cuda = torch.cuda.is_available()
    return pst.Training(
        batch_size=BATCH, lr=lr, augment=CropFlip(), autocast=cuda, record=cuda, progress=False, **options
    )


def by_sgd(lr: float, schedule: str) -> pst.Training:
    """SGD with momentum."""
    return training(lr, optimizer=OptimizerConfig("sgd", nesterov=True), schedule=schedule)


def dense(network: nn.Module, pair: Pair, options: argparse.Namespace) -> nn.Module:
    """The trained network: from its file if it is there, else by SGD with weight decay 5e-4."""
    if options.dense is not None and options.dense.exists():
        found = pst.load(options.dense, network).to(pst.Training().pick_device())
        return plain_network(found).requires_grad_()
    posterior = pst.fit(
        network,
        pst.MAP(prior=decay(5e-4, len(pair[1]))),
        pair,
        epochs=options.dense_epochs,
        seed=options.seed,
        training=by_sgd(0.1, "one-cycle"),
    )
    if options.dense is not None:
        pst.save(posterior, options.dense)
    return plain_network(posterior).requires_grad_()


def retrained(network: nn.Module, pair: Pair, options: argparse.Namespace) -> pst.Posterior:
    """The survivors, trained on as the dense network was."""
    survivors = pst.Pruning(keep=1.0, zeros_stay=True, prior=decay(5e-4, len(pair[1])))
    settings = by_sgd(options.retrain_lr, "cosine")
    return pst.fit(network, survivors, pair, epochs=options.retrain_epochs, seed=options.seed, training=settings)


def method(options: argparse.Namespace) -> pst.SparseVD:
    """From a trained network slowly; from scratch, on random labels, with the whole KL at once."""
    if options.random_labels:
        return pst.SparseVD(kl_schedule="constant", clip_start=0.5, finetune=0.05)
    return TwoRates(
        init_std=pst.Moped(delta=options.delta, centred=False, floor=1.0),
        kl_schedule=LinearKL(fraction=0.5),
        clip_start=0.8,
        finetune=0.0,
        decay_start=0.6,
        temperature=options.temperature,
        std_rate=options.std_rate,
    )


def arguments() -> argparse.ArgumentParser:
    """What the shell can set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--dense", type=Path, help="where the trained network is, or is to be kept")
    parser.add_argument("--dense-epochs", type=int, default=60, help="epochs of SGD")
    parser.add_argument("--dense-only", action="store_true", help="no SparseVD")
    parser.add_argument("--epochs", type=int, default=40, help="epochs of SparseVD")
    parser.add_argument("--retrain-epochs", type=int, default=30, help="epochs of SGD for the survivors")
    parser.add_argument("--retrain-lr", type=float, default=0.05)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--std-rate", type=float, default=10.0)
    parser.add_argument("--delta", type=float, default=0.1, help="first std of a weight, in its size")
    parser.add_argument("--temperature", type=float, default=0.3, help="weight of the KL")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random-labels", action="store_true", help="labels at random; starts from scratch")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--images", type=int, default=50_000, help="use only so many training images")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    return parser


def main() -> None:
    parser = arguments()
    options = parser.parse_args()
    images = data.load("cifar10")
    x, y = (t[: options.images] for t in images.train)
    held = images.test
    if options.validate:
        held, (x, y) = (x[-5000:], y[-5000:]), (x[:-5000], y[:-5000])
    if options.random_labels:
        y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(options.seed))]
    torch.manual_seed(options.seed)
    network = vgg_like((3, 32, 32), 10, width=options.width)
    settings = {key: value for key, value in vars(options).items() if key not in ("out", "dense")}
    result: dict[str, Any] = {"settings": settings}
    changed = [f"{k}={v}" for k, v in settings.items() if v != parser.get_default(k) and k != "seed"]
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / ("--".join(["vgg", *changed, str(options.seed)]) + ".json")

    def keep(name: str, found: dict[str, Any]) -> None:
        result[name] = found
        path.write_text(json.dumps(result, indent=1))
        print(json.dumps({name: {k: v for k, v in found.items() if k not in ("left", "history")}}), flush=True)

    begun, some = time.perf_counter(), (x[:10_000], y[:10_000])
    if not options.random_labels:
        network = dense(network, (x, y), options)
        keep("dense", {"error": error(network, held), "seconds": time.perf_counter() - begun})
    if options.dense_only:
        return
    posterior = pst.fit(
        network, method(options), (x, y), epochs=options.epochs, seed=options.seed, training=training(options.lr)
    )
    network, pruned = plain_network(posterior).requires_grad_(), weights_left(posterior)
    found = {
        "error": error(network, held),
        "train_error": error(network, some),
        "ratio": ratio(pruned),
        "left": pruned,
        "history": [{k: h[k] for k in ("loss", "sparsity")} for h in posterior.history],
        "seconds": time.perf_counter() - begun,
    }
    keep("sparse", found)
    if not sum(kept for kept, _ in pruned.values()):
        return
    posterior = retrained(network, (x, y), options)
    network = plain_network(posterior)
    found = {"error": error(network, held), "train_error": error(network, some), "ratio": ratio(pruned)}
    keep("retrained", found | {"seconds": time.perf_counter() - begun})
    if not options.validate:
        keep("compressed", compressed(posterior, tuple(t[:1000] for t in held)))


if __name__ == "__main__":
    main()
