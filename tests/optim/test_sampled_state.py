"""Complete state: resumed to the same bits, copied by it alone, and of those parameters that are trained."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from posterity.optim import IVON
from posterity.types import PosterityError
from tests.optim.sampling import INPUTS, OPTIMIZERS, TARGETS, every, network, passes, steps, weights


@every
def test_state_dict_resumes_to_the_same_bits(make):
    net = network()
    optimizer = make(net)
    steps(net, optimizer, 3)
    saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    steps(net, optimizer, 3)
    other = network()
    resumed = make(other)
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    steps(other, resumed, 3)
    assert torch.equal(weights(other), weights(net))
    assert resumed.param_groups[0]["step"] == 6  # which the bias correction needs


@every
def test_the_state_of_another_network_is_refused(make):
    """A single number for a vector was spread over all of it."""
    wide, narrow = (nn.Sequential(nn.Linear(3, outputs)).double() for outputs in (4, 1))
    state = make(narrow).state_dict()
    with pytest.raises(PosterityError, match=r"'momentum': \[1, 3\].* this optimizer .*'momentum': \[4, 3\]"):
        make(wide).load_state_dict(state)


@every
def test_state_is_in_torchs_own_state_dict(make):
    net = network()
    optimizer = make(net)
    steps(net, optimizer, 1)
    state = optimizer.state_dict()
    assert set(state) <= {"state", "param_groups", "generator"}
    momentum = torch.cat([entry["momentum"].flatten() for entry in state["state"].values()])
    assert momentum.numel() == weights(net).numel() and (momentum != 0).any()


def test_frozen_parameters_are_left_alone():
    for make in OPTIMIZERS.values():
        net = network()
        net[0].weight.requires_grad_(False)
        before = net[0].weight.clone()
        optimizer = make(net)
        steps(net, optimizer, 2)
        assert torch.equal(net[0].weight, before)


@every
def test_parameters_frozen_or_unfrozen_later_are_refused(make):
    net = network()
    optimizer = make(net)
    steps(net, optimizer, 1)
    before = weights(net)
    net[0].requires_grad_(False)
    with pytest.raises(PosterityError, match="frozen after"), optimizer.sampled_weights():
        F.cross_entropy(net(INPUTS), TARGETS).backward()
    assert torch.equal(weights(net), before)
    optimizer = make(net)
    net[0].requires_grad_(True)
    with pytest.raises(PosterityError, match="trained now"):
        passes(net, optimizer)


def test_parameters_unfrozen_later_are_trained_in_a_group_of_their_own():
    net, whole = network(), network()
    net[0].requires_grad_(False)
    optimizer = IVON(net.parameters(), lr=0.1, num_data=100)
    net[0].requires_grad_(True)
    optimizer.add_param_group({"params": net[0].parameters()})
    groups = [{"params": whole[2:].parameters()}, {"params": whole[0].parameters()}]
    reference = IVON(groups, lr=0.1, num_data=100)
    steps(net, optimizer, 3)
    steps(whole, reference, 3)
    assert torch.equal(weights(net), weights(whole))
    for name in ("vogn", "kfac"):
        with pytest.raises(PosterityError, match="watches its module"):
            OPTIMIZERS[name](net).add_param_group({"params": [nn.Parameter(torch.zeros(2).double())]})


@every
def test_copies_are_refused_with_the_way_to_make_them(make):
    net = network()
    optimizer = make(net)
    steps(net, optimizer, 1)
    with pytest.raises(PosterityError, match="load_state_dict"):
        copy.deepcopy((net, optimizer))
    other = copy.deepcopy(net)
    copied = make(other)
    copied.load_state_dict(optimizer.state_dict())
    steps(net, optimizer, 2)
    steps(other, copied, 2)
    assert torch.equal(weights(net), weights(other))
