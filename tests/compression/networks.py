"""Random networks of every structure that compaction follows, with random zeros, for property-based tests."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

CHANNELS, SIZE = 3, 9
BLOCKS = (
    "conv", "valid", "strided", "replicate", "dilated", "residual", "dead residual", "preactivation", "depthwise",
    "multiplier", "grouped", "branches", "gate", "max", "average", "counted average", "twice",
)  # fmt: skip


class Residual(nn.Module):
    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y += x
        return torch.relu(y)


class Branches(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], dim=1)


class Gate(nn.Module):
    """Squeeze and excite."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean(dim=(2, 3), keepdim=True)
        return x * torch.sigmoid(self.up(torch.relu(self.down(pooled))))


class Head(nn.Module):
    """Flattens in one of the ways people write it."""

    def __init__(self, width: int, hidden: int, way: int) -> None:
        super().__init__()
        self.way, self.width = way, width
        self.hidden, self.norm, self.out = nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == 0:
            x = x.view(-1, self.width)
        elif self.way == 1:
            x = x.view(x.size(0), -1)
        elif self.way == 2:
            x = torch.flatten(x, 1)
        else:
            x = x.reshape(x.shape[0], self.width)
        return self.out(torch.relu(self.norm(self.hidden(x))))


def block(kind: str, width: int, draw: random.Random, ceil: bool = True) -> tuple[nn.Module, int]:
    """A block that takes ``width`` channels, and how many it gives."""
    wide, act = draw.randint(2, 7), draw.choice([nn.ReLU, nn.Tanh, nn.Sigmoid, nn.SiLU])()
    bias = draw.random() < 0.7

    def conv(source: int, target: int, kernel: int = 3, **options: object) -> nn.Conv2d:
        return nn.Conv2d(source, target, kernel, bias=bias, **{"padding": kernel // 2, **options})

    if kind in ("residual", "dead residual"):
        body = [conv(width, wide), nn.BatchNorm2d(wide), act, conv(wide, width), nn.BatchNorm2d(width)]
        if kind == "dead residual":
            nn.init.zeros_(body[3].weight)
        return Residual(*body), width
    if kind == "preactivation":
        return Residual(nn.BatchNorm2d(width), act, conv(width, width)), width
    if kind == "depthwise":
        return nn.Sequential(conv(width, width, groups=width), act), width
    if kind == "multiplier":
        return nn.Sequential(conv(width, 2 * width, groups=width), act), 2 * width
    if kind == "grouped":
        return nn.Sequential(conv(width, 4, kernel=1), conv(4, 6, groups=2), act), 6
    if kind == "branches":
        parts = [nn.Sequential(conv(width, w, kernel=k), act) for w, k in ((wide, 1), (2, 3), (3, 5))]
        return Branches(*parts, nn.Identity()), wide + 5 + width
    if kind == "gate":
        return Gate(width, wide), width
    if kind == "twice":  # two readers of one tensor
        return Branches(conv(width, wide), conv(width, wide, padding=1, padding_mode="circular")), 2 * wide
    if kind in ("max", "average", "counted average"):
        pool = {
            "max": nn.MaxPool2d(2, ceil_mode=ceil),
            "average": nn.AvgPool2d(3, 1, 1, count_include_pad=False),
            "counted average": nn.AvgPool2d(3, 1, 1),
        }[kind]
        return pool, width
    options = {
        "conv": {},
        "valid": {"kernel": 2, "padding": 0},
        "strided": {"stride": 2},
        "replicate": {"padding_mode": "replicate"},
        "dilated": {"padding": "same", "dilation": 2},
    }[kind]
    return nn.Sequential(conv(width, wide, **options), nn.BatchNorm2d(wide), act, nn.Dropout2d()), wide


def sparsify(network: nn.Module, seed: int) -> nn.Module:
    """Zeros at random, whole rows and whole columns among them; biases and BatchNorm far from their defaults."""
    generator = torch.Generator().manual_seed(seed)

    def coin(shape: tuple[int, ...], chance: float) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64) < chance

    with torch.no_grad():
        for name, p in network.named_parameters():
            if p.dim() == 1:
                p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
                if "norm" in name or "weight" in name:
                    p *= coin(p.shape, 0.8)
                continue
            ones = [1] * (p.dim() - 2)
            p *= coin(p.shape, 0.5) * coin((p.shape[0], 1, *ones), 0.6) * coin((1, p.shape[1], *ones), 0.7)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.running_mean.copy_(torch.randn(module.num_features, generator=generator))
                module.running_var.copy_(torch.rand(module.num_features, generator=generator) + 0.5)
    return network


def network(kinds: list[str], seed: int, ceil: bool = True) -> nn.Module:
    """A random network in float64, in evaluation mode."""
    draw = random.Random(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        parts, width = [nn.Conv2d(CHANNELS, 5, 3, padding=1), nn.ReLU()], 5
        for kind in kinds:
            part, width = block(kind, width, draw, ceil)
            parts.append(part)
        body = nn.Sequential(*parts).double().eval()
        flat = body(torch.zeros(1, CHANNELS, SIZE, SIZE, dtype=torch.float64)).numel()
        whole = nn.Sequential(body, Head(flat, draw.randint(2, 8), draw.randrange(4))).double().eval()
    return sparsify(whole, seed)


def inputs(count: int = 3) -> Tensor:
    return torch.randn(count, CHANNELS, SIZE, SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Remembers(nn.Module):
    """A network that keeps the features of its last pass on itself, which torch's deep copy refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        self.features = torch.relu(self.hidden(inputs))
        return self.out(self.features)
