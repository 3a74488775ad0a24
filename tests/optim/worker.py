"""One rank of a user's own data-parallel loop: ``python -m tests.optim.worker FOLDER`` with torchrun's variables."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the group is opened, or its default arguments keep it alive
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from posterity.methods import Laplace, SWAGCollector
from posterity.optim import IVON, VOGN
from posterity.probability.likelihoods import Categorical

INPUTS = torch.randn(16, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGETS = torch.arange(16) % 3


def network() -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=g, dtype=p.dtype))
    return net


def ivon(net: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    optimizer = IVON(net.parameters(), 0.1, 16, beta2=0.9)
    for _ in range(5):
        with optimizer.sampled_weights():
            F.cross_entropy(net(inputs), targets).backward()
        optimizer.step()
    assert list(optimizer.posterior(net).mean()) == [name for name, _ in network().named_parameters()]
    hessian = [optimizer.state[p]["hessian"].flatten() for p in net.parameters()]
    return torch.cat([*(p.detach().flatten() for p in net.parameters()), *hessian])


def vogn(net: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    optimizer = VOGN(net, 0.01, 16, beta2=0.9)
    for _ in range(5):
        with optimizer.sampled_weights():
            F.cross_entropy(net(inputs), targets).backward()
        if dist.is_initialized():
            for tensor in optimizer.statistics():
                dist.all_reduce(tensor)
                tensor /= dist.get_world_size()
        optimizer.step()
    curvature = [optimizer.state[p]["curvature"].flatten() for p in net.parameters()]
    return torch.cat([*(p.detach().flatten() for p in net.parameters()), *curvature])


def swag(net: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    optimizer, collector = torch.optim.SGD(net.parameters(), lr=0.1), SWAGCollector(net, rank=2)
    for _ in range(5):
        F.cross_entropy(net(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        collector.collect()
    posterior = collector.posterior(Categorical())
    return torch.cat([posterior.mean()[name].flatten() for name, _ in network().named_parameters()])


def after(net: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    posterior = Laplace(linearised=False).post_hoc(net, (INPUTS, TARGETS))
    return torch.cat([posterior.variance()[name].flatten() for name, _ in network().named_parameters()])


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    shard = slice(rank, None, dist.get_world_size())
    found = {
        "ivon": ivon(DistributedDataParallel(network()), INPUTS[shard], TARGETS[shard]),
        "vogn": vogn(network(), INPUTS[shard], TARGETS[shard]),
        "swag": swag(DistributedDataParallel(network()), INPUTS[shard], TARGETS[shard]),
        "after": after(DistributedDataParallel(network()), INPUTS[shard], TARGETS[shard]),
    }
    torch.save(found, Path(sys.argv[1]) / f"{rank}.pt")
    dist.destroy_process_group()
