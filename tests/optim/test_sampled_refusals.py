"""What optimizers that sample weights refuse, in one sentence."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from posterity.types import PosterityError
from tests.optim.sampling import INPUTS, OPTIMIZERS, TARGETS, every, network, passes, steps, weights


@every
def test_bad_use_is_refused_in_one_sentence(make):
    net = network()
    for num_data in (0, None, -3, float("nan"), float("inf")):
        with pytest.raises(PosterityError, match="num_data must be"):
            make(net, num_data=num_data)
    with pytest.raises(PosterityError, match="beta1"):
        make(net, beta1=1.5)
    with pytest.raises(PosterityError, match="prior_precision"):
        make(net, prior_precision=0.0)
    with pytest.raises(PosterityError, match="lr"):
        make(net, lr=-1.0)
    with pytest.raises(PosterityError, match="float32"):
        make(network().to(torch.bfloat16))
    optimizer = make(net)
    with pytest.raises(PosterityError, match="there is no gradient"):
        optimizer.step()
    with pytest.raises(PosterityError, match="no gradient arrived"), optimizer.sampled_weights():
        pass
    with pytest.raises(PosterityError, match="again"), optimizer.sampled_weights(), optimizer.sampled_weights():
        pass
    with pytest.raises(PosterityError, match="no gradient arrived"):
        optimizer.step(lambda: None)
    with pytest.raises(PosterityError, match="the likelihood must be one such as"):
        optimizer.posterior(net, F.cross_entropy)


@every
def test_a_gradient_scaler_is_refused(make):
    net = network().float()
    optimizer = make(net)
    scaler = torch.amp.GradScaler("cpu")
    with optimizer.sampled_weights():
        scaler.scale(F.cross_entropy(net(INPUTS.float()), TARGETS)).backward()
    before = weights(net)
    with pytest.raises(PosterityError, match="GradScaler"):
        scaler.step(optimizer)
    assert torch.equal(weights(net), before)


@pytest.mark.parametrize("name", ["vogn", "ogn", "kfac", "noisy kfac"])
def test_parameters_without_their_module_are_refused(name):
    with pytest.raises(PosterityError, match="watches the layers of a network: give the module, got generator"):
        OPTIMIZERS[name](network().parameters())


@pytest.mark.parametrize("name", ["vogn", "ogn", "kfac", "noisy kfac"])
def test_eval_mode_is_refused_where_it_matters(name):
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    optimizer = OPTIMIZERS[name](net)
    net.eval()
    with pytest.raises(PosterityError, match="eval mode"), optimizer.sampled_weights():
        F.cross_entropy(net(INPUTS), TARGETS).backward()
    plain = network().eval()  # nothing in it depends on the mode
    steps(plain, OPTIMIZERS[name](plain), 1)


def test_a_parameter_used_outside_its_layer_is_refused():
    class Borrowed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 3).double()

        def forward(self, x):
            return x @ self.layer.weight.T

    class Tied(Borrowed):
        def forward(self, x):
            return torch.tanh(self.layer(x)) + super().forward(x)

    for name in ("vogn", "kfac"):
        for net in (Borrowed(), Tied()):
            with pytest.raises(PosterityError, match="outside its forward"):
                passes(net, OPTIMIZERS[name](net))


@every
def test_a_posterior_is_of_the_trained_network_at_its_means(make):
    net = network()
    optimizer = make(net)
    steps(net, optimizer, 1)
    with pytest.raises(PosterityError, match="not a copy"):
        optimizer.posterior(copy.deepcopy(net))
    with pytest.raises(PosterityError, match="leave it first"), optimizer.sampled_weights():
        optimizer.posterior(net)


@every
def test_a_step_inside_sampled_weights_is_refused_instead_of_lost(make):
    net = network()
    optimizer = make(net)
    passes(net, optimizer)
    with pytest.raises(PosterityError, match="leave it first"), optimizer.sampled_weights():
        F.cross_entropy(net(INPUTS), TARGETS).backward()
        optimizer.step()


def test_two_batches_in_one_pass_are_refused_where_squares_would_be_of_both_together():
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    optimizer = OPTIMIZERS["vogn"](net)
    with pytest.raises(PosterityError, match="every backward pass"), optimizer.sampled_weights():
        for rows in (slice(0, 6), slice(6, 12)):
            (F.cross_entropy(net(INPUTS[rows]), TARGETS[rows]) / 2).backward()
    with optimizer.sampled_weights():
        F.cross_entropy(net(INPUTS), TARGETS).backward()
        net(INPUTS)  # to look at, without a backward pass
    optimizer.step()
