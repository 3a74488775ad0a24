"""A training step of VOGN, IVON and K-FAC against torch's Adam and AdamW with their default settings, batch 128.

python -m benchmarks.speed.natural_gradient                   # one thread: LeNets and AlexNet-CIFAR
python -m benchmarks.speed.natural_gradient --device cuda     # also ResNet-18, CIFAR stem, TF32 and bfloat16

Every contestant has a network of its own, and learning rate zero, so that all see the same weights throughout. Memory
is the peak of a step beyond what is held between steps. On a GPU the same steps are also timed with their gradients
recorded and replayed, all contestants alike.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.speed.harness import Bench, Work, run
from posterity.devices import channels_last
from posterity.models import alexnet, lenet5_caffe, lenet_300_100, resnet18
from posterity.optim import IVON, KFAC, VOGN
from posterity.recorded import Recorded

Network = Callable[[], nn.Module]
BATCH, CLASSES, N = 128, 10, 50_000
MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


class Loss:
    """The loss of a fixed batch."""

    def __init__(self, shape: tuple[int, ...], device: torch.device, autocast: bool) -> None:
        g = torch.Generator().manual_seed(0)
        self.inputs = channels_last(torch.randn(BATCH, *shape, generator=g).to(device))  # as ``fit`` has them
        self.targets = torch.randint(CLASSES, (BATCH,), generator=g).to(device)
        self.device, self.autocast = device, autocast

    def __call__(self, net: nn.Module) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16) if self.autocast else nullcontext():
            outputs = net(self.inputs)
        return F.cross_entropy(outputs.float(), self.targets)


def plain(kind: type[torch.optim.Optimizer], net: nn.Module, loss: Loss) -> Work:
    optimizer = kind(net.parameters(), lr=0.0)

    def step() -> None:
        optimizer.zero_grad()
        loss(net).backward()
        optimizer.step()

    return step


def sampled(optimizer: torch.optim.Optimizer, net: nn.Module, loss: Loss) -> Work:
    def step() -> None:
        with optimizer.sampled_weights():
            loss(net).backward()
        optimizer.step()

    return step


def recorded(optimizer: torch.optim.Optimizer, net: nn.Module, loss: Loss) -> Work:
    """The same step as ``Training(record=True)`` takes it: gradients replayed, then the update."""
    parameters, samples = list(net.parameters()), hasattr(optimizer, "sampled_weights")

    def gradients(_: Tensor) -> list[Tensor | None]:
        with optimizer.sampled_weights() if samples else nullcontext():
            loss(net).backward()
        return [p.grad for p in parameters]

    replay = Recorded(gradients, [optimizer._generator] if samples else [])

    def step() -> None:
        for p, gradient in zip(parameters, replay(loss.inputs), strict=True):
            p.grad = gradient
        if samples:
            optimizer.statistics(1)
        optimizer.step()
        optimizer.zero_grad()

    return step


def compare(
    bench: Bench,
    title: str,
    network: Network,
    shape: tuple[int, ...],
    *,
    vogn: float | None = None,
    ivon: float | None = None,
    calls: int = 1,
    autocast: bool = False,
) -> None:
    """VOGN and K-FAC beside Adam, IVON beside AdamW, with the ratios that must not be exceeded."""
    loss = Loss(shape, bench.device, autocast)
    adam, adamw, first, second, third = (network().to(bench.device).train() for _ in range(5))
    contestants = {
        "Adam": plain(torch.optim.Adam, adam, loss),
        "VOGN": sampled(VOGN(first, 0.0, N, init_precision=1.0), first, loss),
        "K-FAC, inverted every 50 steps": sampled(KFAC(third, 0.0, N, refresh=50), third, loss),
    }
    bench.compare(f"VOGN, {title}", contestants, calls, {"VOGN": vogn} if vogn else None)
    contestants = {
        "AdamW": plain(torch.optim.AdamW, adamw, loss),
        "IVON": sampled(IVON(second.parameters(), 0.0, N), second, loss),
    }
    bench.compare(f"IVON, {title}", contestants, calls, {"IVON": ivon} if ivon else None)
    if bench.device.type == "cuda":
        adam, first, second = (network().to(bench.device).train() for _ in range(3))
        contestants = {
            "Adam": recorded(torch.optim.Adam(adam.parameters(), lr=0.0, fused=True), adam, loss),
            "VOGN": recorded(VOGN(first, 0.0, N, init_precision=1.0), first, loss),
            "IVON": recorded(IVON(second.parameters(), 0.0, N), second, loss),
        }
        bench.compare(f"recorded, {title}", contestants, calls, {"VOGN": vogn, "IVON": ivon} if vogn and ivon else None)


def lenet(bench: Bench) -> None:
    compare(bench, "LeNet-300-100", partial(lenet_300_100, MNIST, CLASSES), MNIST, vogn=1.55, ivon=1.45, calls=5)


def caffe(bench: Bench) -> None:
    compare(bench, "LeNet-5-Caffe", partial(lenet5_caffe, MNIST, CLASSES), MNIST, vogn=1.35, ivon=1.08)


def cifar(bench: Bench) -> None:
    compare(bench, "AlexNet-CIFAR", partial(alexnet, CIFAR, CLASSES), CIFAR, vogn=2.8)


def resnet(bench: Bench) -> None:
    """On the GPU only: on the CPU a step takes seconds."""
    if bench.device.type != "cuda":
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    network = partial(resnet18, CIFAR, CLASSES)
    compare(bench, "ResNet-18", network, CIFAR, vogn=1.4, ivon=1.1, calls=5)
    compare(bench, "ResNet-18, bfloat16", network, CIFAR, calls=5, autocast=True)


if __name__ == "__main__":
    run(__doc__, {"lenet": lenet, "caffe": caffe, "alexnet": cifar, "resnet": resnet})
