"""A training step with a carried prior (a mean and a std for every weight) against one with the standard prior.

python -m benchmarks.speed.continual                   # one thread
python -m benchmarks.speed.continual --device cuda

The step is ``fit``'s own: draw, forward, backward, penalty, update, of the 784-100-100-10 network of permuted MNIST,
batch 512. Learning rate zero, so that both see the same weights throughout.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

import posterity as pst
from benchmarks.speed.harness import Bench, Work, run
from posterity.models import mlp
from posterity.optim.config import OptimizerConfig
from posterity.random import RandomStreams
from posterity.types import Plan

BATCH, N, LIMIT = 512, 60_000, 1.05


def step_of(method: pst.Method, module: nn.Module, device: torch.device) -> Work:
    """One step of the loop, without its book-keeping."""
    g = torch.Generator().manual_seed(0)
    inputs = torch.randn(BATCH, 784, generator=g).to(device)
    targets = torch.randint(10, (BATCH,), generator=g).to(device)
    network = method.prepare(copy.deepcopy(module)).to(device).train()
    plan = Plan(N, 1000, 100, BATCH, OptimizerConfig(), 1e-12)
    optimizer = method.optimizer(network, plan, RandomStreams.from_seed(0, 0, device))

    def step() -> None:
        with method.perturb(optimizer, 1.0):
            loss = nn.functional.cross_entropy(network(inputs), targets)
            penalty = method.penalty(network, 1.0) / N
            (loss + penalty if isinstance(penalty, torch.Tensor) else loss).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def carried(bench: Bench, name: str, method: pst.Method) -> None:
    """The same method with both priors."""
    torch.manual_seed(0)
    module = mlp(784, 10).to(bench.device)
    mean = {key: p.detach() for key, p in module.named_parameters()}
    std = {key: 0.01 + 0.1 * torch.rand_like(p) for key, p in mean.items()}
    posterior = pst.posteriors.DiagonalGaussian(module, pst.likelihoods.Categorical(), mean, std)
    _, after = pst.continual.carry_on(module, method, posterior)
    contestants = {
        "standard prior": step_of(method.carrying(method.prior), module, bench.device),
        "carried prior": step_of(after, module, bench.device),
    }
    bench.compare(f"{name}, MLP 2×100", contestants, 10, {"carried prior": LIMIT})


def vogn(bench: Bench) -> None:
    carried(bench, "VOGN", pst.VOGN())


def ivon(bench: Bench) -> None:
    carried(bench, "IVON", pst.IVON())


def mean_field(bench: Bench) -> None:
    carried(bench, "MeanField", pst.MeanField())


if __name__ == "__main__":
    run(__doc__, {"vogn": vogn, "ivon": ivon, "mean-field": mean_field})
