"""Which weights become Bayesian, and what is refused with its path and the reason."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import posterity as pst
from posterity.layers import Moped, kl, plain_moments, variational
from posterity.layers.select import select
from posterity.probability import priors
from tests.layers.networks import DOUBLE, NETWORKS, TINY, Tied, made


def test_weights_tied_to_a_layer_that_was_not_selected_are_random_in_both():
    torch.manual_seed(0)
    net = variational(Tied().to(DOUBLE), which="output", init_std=0.5)
    with torch.no_grad():
        net.net.output.bias.zero_()
        outputs = net(torch.arange(11))
    torch.testing.assert_close(outputs, outputs.T)
    assert list(plain_moments(net)[1]) == ["embedding.weight"]


@pytest.mark.parametrize("estimator", ["auto", "reparameterised"])
def test_a_bias_alone_can_be_bayesian(estimator):
    for layer, x in ((nn.Linear(4, 3), torch.randn(5, 4)), (nn.Conv1d(4, 3, 1), torch.randn(5, 4, 2))):
        layer.weight.requires_grad_(False)  # as where biases alone are tuned
        nn.init.constant_(layer.bias, 5.0)
        net = variational(layer, estimator=estimator, bayesian_bias=True, init_std=TINY)
        torch.testing.assert_close(net(x), layer(x))
        assert list(net.std()) == ["bias"]


def names(net) -> list[str]:
    return sorted(plain_moments(net)[1])


def test_selection_by_name_type_and_last():
    module, _ = made(*NETWORKS["LeNet"])
    assert names(variational(module)) == ["0.weight", "5.weight"]
    assert names(variational(module, which="last")) == ["5.weight"]
    assert names(variational(module, which=nn.Conv2d)) == ["0.weight"]
    assert names(variational(module, which="5")) == ["5.weight"]
    assert names(variational(module, which=("0", nn.Linear), bayesian_bias=True)) == [
        "0.bias",
        "0.weight",
        "5.bias",
        "5.weight",
    ]
    everything = [name for name, _ in module.named_parameters()]
    assert sorted(names(variational(module, bayesian_bias=True, bayesian_norm=True))) == sorted(everything)
    module[0].requires_grad_(False)
    assert names(variational(module)) == ["5.weight"]


def test_selecting_a_container_brings_what_is_inside():
    module = nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4)), nn.Linear(4, 1))
    assert names(variational(module, which="0")) == ["0.0.weight", "0.1.weight"]
    assert names(variational(module, which="0.*")) == ["0.0.weight", "0.1.weight"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"init_std": 0.0}, "init_std must be positive"),
        ({"init_std": -1.0}, "init_std must be positive"),
        ({"estimator": "magic"}, "unknown estimator 'magic'"),
        ({"family": "magic"}, "unknown family 'magic'"),
        ({"family": "full", "estimator": "local"}, "local estimator is for diagonal"),
        ({"which": "nothing"}, "selects no weights; there are weights in 0, 5"),
        ({"which": nn.LSTM}, "selects no weights"),
        ({"which": ()}, "selects no weights"),
        ({"init_std": Moped(), "prior": priors.Laplace()}, "must be Normal, got Laplace"),
        ({"prior": 0.1}, "the prior must be one such as priors.Normal"),  # a std, or is it a variance?
        ({"prior": priors.Normal({"7.weight": 1.0})}, "says nothing about parameter '5.weight'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(pst.PosterityError, match=message):
        variational(made(*NETWORKS["LeNet"])[0], **arguments)


def test_what_cannot_be_converted_is_refused_with_path_and_reason():
    once = nn.Sequential(nn.Linear(2, 2), variational(nn.Linear(2, 2)))
    with pytest.raises(pst.PosterityError, match="Variational at '1' is converted already"):
        variational(once)
    with pytest.raises(pst.PosterityError, match="complex weight"):
        variational(nn.Linear(2, 2, dtype=torch.complex64))
    with pytest.raises(pst.PosterityError, match="one type and device"):
        variational(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))
    with pytest.raises(pst.PosterityError, match="selects no weights"):
        variational(nn.ReLU())
    with pytest.raises(pst.PosterityError, match="too large"):
        variational(nn.Linear(100, 100), family="full")
    with pytest.raises(pst.PosterityError, match="wraps a network over devices"):
        variational(nn.DataParallel(nn.Linear(2, 2)))
    with pytest.raises(pst.PosterityError, match="holds no Bayesian weights"):
        kl(nn.Linear(2, 2))
    with pytest.raises(pst.PosterityError, match="variational"):
        plain_moments(nn.Linear(2, 2))


class Empty(nn.Module):
    """A feature that is switched off by a size of 0 leaves a layer without inputs and a parameter without numbers."""

    def __init__(self):
        super().__init__()
        self.main, self.extra = nn.Linear(4, 2), nn.Linear(1, 2)
        self.extra.weight = nn.Parameter(torch.zeros(2, 0))  # as Linear(0, 2) has it, which warns
        self.prompts = nn.Parameter(torch.zeros(0, 4))

    def forward(self, x):
        return self.main(x + self.prompts.sum(0)) + self.extra(x[:, :0])


@pytest.mark.parametrize("method", [pst.MeanField(), pst.SparseVD(), pst.ARD(), pst.MNF(), pst.GroupSparse()], ids=repr)
def test_parameters_without_numbers_are_left_as_they_are(method):
    data = torch.randn(16, 4), torch.arange(16) % 2
    posterior = pst.fit(Empty(), method, data, training=pst.Training(steps=2, progress=False))
    assert posterior.predict(data[0], draws=2).probs.shape == (16, 2)
    assert list(select(Empty(), None)) == ["main.weight"]
