"""Priors by parameter, and BatchNorm without one."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posterity.optim import VOGN
from tests.optim.sampling import INPUTS, OPTIMIZERS, TARGETS, every, network, steps, weights


@every
def test_a_prior_mean_by_name_pulls_towards_it(make):
    net = network()
    anchor = {name: torch.full_like(p, 2.0) for name, p in net.named_parameters()}
    optimizer = make(net, prior_mean=anchor, prior_precision=1e6, beta1=0.0)
    before = weights(net)
    steps(net, optimizer, 1)
    moved = weights(net) - before
    assert (torch.sign(moved) == torch.sign(2.0 - before)).all()


@pytest.mark.parametrize("name", ["ivon", "vogn"])
def test_a_prior_precision_by_name_sets_the_variance_of_each_weight(name):
    extra = {"init_precision": 1.0} if name == "vogn" else {"hess_init": 1.0}
    extra |= {"damping": 0.0} if name == "vogn" else {}

    def noise(net: nn.Module, optimizer) -> dict[str, Tensor]:
        before = {key: p.detach().clone() for key, p in net.named_parameters()}
        with optimizer.sampled_weights():
            moved = {key: p.detach() - before[key] for key, p in net.named_parameters()}
            F.cross_entropy(net(INPUTS), TARGETS).backward()
        return moved

    net, same = network(), network()
    precision = {key: 10.0 if key.endswith("bias") else torch.full_like(p, 1e4) for key, p in net.named_parameters()}
    optimizer = OPTIMIZERS[name](net, prior_precision=precision, **extra)
    by_name = noise(net, optimizer)
    shared = noise(same, OPTIMIZERS[name](same, prior_precision=30.0, **extra))  # the same generator, so the same noise
    for key, moved in by_name.items():
        ratio = math.sqrt((100 + 30) / (100 + (10.0 if key.endswith("bias") else 1e4)))
        torch.testing.assert_close(moved, shared[key] * ratio, rtol=1e-8, atol=1e-12)
    saved = copy.deepcopy(optimizer.state_dict())
    other = network()
    resumed = OPTIMIZERS[name](other, prior_precision=precision, **extra)
    resumed.load_state_dict(saved)
    assert torch.equal(resumed.state[other[0].weight]["prior_precision"], torch.full((6, 5), 1e4).double())


@pytest.mark.parametrize("name", ["vogn", "noisy kfac"])
def test_batchnorm_stays_deterministic_and_without_prior(name):
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    optimizer = OPTIMIZERS[name](net, prior_precision=1e6)
    steps(net, optimizer, 2)
    scale = net[1].weight.detach().clone()
    first = net[0].weight.detach().clone()
    with optimizer.sampled_weights():
        assert torch.equal(net[1].weight, scale) and not torch.equal(net[0].weight, first)
        F.cross_entropy(net(INPUTS), TARGETS).backward()
    assert (scale - 1).abs().max() < 0.5  # the prior of precision 1e6 pulls it not to zero
    assert optimizer.param_groups[1]["prior_precision"] == 0


def test_vogn_can_sample_batchnorm_when_asked():
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6)).double()
    optimizer = VOGN(net, 0.01, 100, init_precision=1.0, stochastic_batchnorm=True)
    with optimizer.sampled_weights():
        assert (net[1].weight != 1).all()
        F.cross_entropy(net(INPUTS), TARGETS).backward()
