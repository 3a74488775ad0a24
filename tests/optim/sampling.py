"""Every optimizer that samples weights, on one small network."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posterity.optim import IVON, KFAC, OGN, VOGN, NoisyKFAC

INPUTS = torch.randn(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGETS = torch.arange(12) % 3


def network() -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 3)).double()
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_((p.dim() == 1) + 0.3 * torch.randn(p.shape, generator=g, dtype=p.dtype))
    return net


OPTIMIZERS = {
    "ivon": lambda net, **kw: IVON(net.named_parameters(), **{"lr": 0.1, "num_data": 100, "beta2": 0.9, **kw}),
    "ivon, squared": lambda net, **kw: IVON(
        net.named_parameters(), **{"lr": 0.1, "num_data": 100, "beta2": 0.9, "hessian": "squared", **kw}
    ),
    "vogn": lambda net, **kw: VOGN(net, **{"lr": 0.01, "num_data": 100, "beta2": 0.9, **kw}),
    "ogn": lambda net, **kw: OGN(net, **{"lr": 0.01, "num_data": 100, "beta2": 0.9, **kw}),
    "kfac": lambda net, **kw: KFAC(net, **{"lr": 0.01, "num_data": 100, "refresh": 2, **kw}),
    "noisy kfac": lambda net, **kw: NoisyKFAC(net, **{"lr": 0.01, "num_data": 100, "refresh": 2, **kw}),
}
every = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
NOISY = {name: make for name, make in OPTIMIZERS.items() if name not in ("ogn", "kfac")}
every_noisy = pytest.mark.parametrize("make", NOISY.values(), ids=NOISY.keys())


def weights(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def passes(net: nn.Module, optimizer, count: int = 1, rows: slice = slice(None), weight: float = 1.0) -> None:
    for _ in range(count):
        with optimizer.sampled_weights(weight):
            (weight * F.cross_entropy(net(INPUTS[rows]), TARGETS[rows])).backward()


def steps(net: nn.Module, optimizer, count: int) -> None:
    for _ in range(count):
        passes(net, optimizer)
        optimizer.step()
