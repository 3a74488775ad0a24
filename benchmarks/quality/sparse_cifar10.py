"""CIFAR-10: SparseVD on the VGG-like network, from a trained one, at three widths; and with random labels.

    python -m benchmarks.quality.sparse_cifar10 --width 1 --out w1.json             # about 6 min alone on an H200
    python -m benchmarks.quality.sparse_cifar10 --width 1 --random-labels --out r.json
    ... --validate --out v.json      # trains on 45,000 images and scores on the 5,000 held out

The network (13 convolutions, 2 dense layers, BatchNorm) is trained by SGD with crops and flips, and SparseVD goes on
from there, as in the paper (it under-fits from scratch). Steps run in bfloat16, channels last, as CUDA graphs.
Published (Molchanov et al. 2017): 7.3% error for the dense network and for SparseVD at 48x; random labels: all go.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posterity as pst
from benchmarks.quality.sparse_mnist import captured, compressed, error, train
from posterity import data
from posterity.data.augment import CropFlip
from posterity.methods.tempering import LinearKL
from posterity.models import vgg_like

BATCH = 256


def pretrained(network: nn.Module, pair: tuple[Tensor, Tensor], epochs: int, seed: int) -> nn.Module:
    """SGD with momentum, weight decay and a one-cycle learning rate."""
    x, y = pair
    augment, shuffle = CropFlip(), torch.Generator(x.device).manual_seed(seed)
    count = len(x) // BATCH
    net = network.to(x.device).train()
    lr = torch.zeros((), device=x.device)
    optimizer = torch.optim.SGD(net.parameters(), lr, momentum=0.9, weight_decay=5e-4, nesterov=True, fused=True)
    batch = (x[:BATCH].clone(memory_format=torch.preserve_format), y[:BATCH].clone())

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            outputs = net(batch[0])
        F.cross_entropy(outputs.float(), batch[1]).backward()
        optimizer.step()

    run, done, total = captured(step, x.device), 0, epochs * count
    for _ in range(epochs):
        order = torch.randperm(len(x), device=x.device, generator=shuffle)
        for index in order[: count * BATCH].split(BATCH):
            lr.fill_(0.1 * min(done / (0.2 * total), (total - done) / (0.8 * total)))
            batch[0].copy_(augment(x[index], shuffle))
            batch[1].copy_(y[index])
            run()
            done += 1
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--pretrain", type=int, default=80, help="epochs of SGD")
    parser.add_argument("--epochs", type=int, default=100, help="epochs of SparseVD")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--temperature", type=float, default=1.0, help="weight of the KL")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random-labels", action="store_true", help="labels at random; starts from scratch")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=50_000, help="use only so many training images")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    device = torch.device(options.device)
    images = data.load("cifar10")
    x, y = (t[: options.images].to(device) for t in images.train)
    held = tuple(t.to(device) for t in images.test)
    if options.validate:
        held, (x, y) = (x[-5000:], y[-5000:]), (x[:-5000], y[:-5000])
    if options.random_labels:
        y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(options.seed)).to(device)]
    x = x.contiguous(memory_format=torch.channels_last)
    torch.manual_seed(options.seed)
    net = vgg_like((3, 32, 32), 10, width=options.width)
    begun = time.perf_counter()
    result: dict[str, object] = {"settings": {k: str(v) for k, v in vars(options).items() if k != "out"}}
    if not options.random_labels:
        net = pretrained(net, (x, y), options.pretrain, options.seed)
        result["dense"] = {"error": error(net, held), "seconds": time.perf_counter() - begun}
        print(json.dumps(result["dense"]), flush=True)
    method = pst.SparseVD(
        kl_schedule=LinearKL(fraction=0.1, delay=0.0),
        clip_start=0.5,
        finetune=0.15,
        decay_start=0.3,
        temperature=options.temperature,
    )
    row = {"epochs": options.epochs, "lr": options.lr, "batch": BATCH, "autocast": device.type == "cuda"}
    sparse = train(method, net, (x, y), row | {"augment": CropFlip()}, options.seed)
    stds, means = sparse.std(), sparse.mean()
    left = {name: int((means[name] != 0).sum()) for name in stds}
    total = sum(s.numel() for s in stds.values())
    result["sparse"] = {
        "error": error(sparse, held),
        "train_error": error(sparse, (x[:10_000], y[:10_000])),
        "ratio": total / max(1, sum(left.values())),
        "left": {name: [n, stds[name].numel()] for name, n in left.items()},
        "seconds": time.perf_counter() - begun,
    }
    print(json.dumps(result["sparse"]), flush=True)
    options.out.write_text(json.dumps(result, indent=1))
    if sum(left.values()):
        small = tuple(t[:1000].cpu().contiguous() for t in held)
        result["compressed"] = compressed(sparse, small, small[0][:128])
        options.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
