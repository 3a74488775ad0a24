"""Any network: with its stds at zero a converted network computes what the original did."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import posterity as pst
from posterity.layers import kl, plain_moments, variational
from tests.layers.networks import DOUBLE, ESTIMATORS, LAYERS, NETWORKS, TINY, Tied, converted, made


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", [*LAYERS, *NETWORKS])
def test_at_std_zero_the_converted_network_is_the_original(name, estimator):
    module, x = made(*(LAYERS | NETWORKS)[name])
    expected = copy.deepcopy(module)(x)
    for options in ({}, {"bayesian_bias": True, "bayesian_norm": True}):
        net = converted(module, estimator, init_std=TINY, **options)
        torch.testing.assert_close(copy.deepcopy(net)(x), expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(copy.deepcopy(net).eval()(x), module.eval()(x), rtol=0, atol=1e-12)
        torch.testing.assert_close(net.plain().eval()(x), module.eval()(x), rtol=0, atol=0)
        module.train()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", [*LAYERS, *NETWORKS])
def test_every_bayesian_parameter_makes_noise_and_gets_a_gradient(name, estimator):
    module, x = made(*(LAYERS | NETWORKS)[name])
    net = converted(module, estimator, init_std=0.1, bayesian_bias=True)
    assert not torch.allclose(net(x), net(x))
    (net(x).square().sum() + 0 * kl(net)).backward()
    for block in net.blocks:
        for parameter in (block.mean, block.log_std):
            for name, grad in block.slots.layout.unflatten(parameter.grad).items():
                assert grad.abs().sum() > 0, name


def test_transposed_convolution_takes_an_output_size():
    module, x = made(lambda: nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 5))
    net = variational(module, estimator="local", init_std=TINY)
    torch.testing.assert_close(net(x, [12, 12]), module(x, [12, 12]), rtol=0, atol=1e-10)
    for estimator in ("local", "flipout"):
        net = variational(module, estimator=estimator, init_std=TINY)
        by_name = net(x, output_size=[12, 12])
        torch.testing.assert_close(by_name, module(x, output_size=[12, 12]), rtol=0, atol=1e-10)


def test_tied_weights_are_one_draw():
    torch.manual_seed(0)
    module, tokens = Tied().to(DOUBLE), torch.arange(11)
    net = converted(module, "local", init_std=TINY)
    torch.testing.assert_close(net(tokens), module(tokens), rtol=0, atol=1e-10)
    assert list(plain_moments(net)[1]) == ["embedding.weight"]
    noisy = variational(module, init_std=0.5)
    with torch.no_grad():
        noisy.net.output.bias.zero_()
        outputs = noisy(tokens)
    # E Eᵀ is symmetric only if both uses saw the same E.
    torch.testing.assert_close(outputs, outputs.T)
    plain = noisy.plain()
    assert plain.output.weight is plain.embedding.weight


def test_a_shared_module_is_drawn_once():
    layer = nn.Linear(4, 4, bias=False).to(DOUBLE)
    module = nn.Sequential(layer, layer)
    with pytest.raises(pst.PosterityError, match="reparameterised"):
        variational(module, estimator="local")
    net = variational(module, init_std=0.3)
    with torch.no_grad():
        squares = torch.stack([net(torch.eye(4, dtype=DOUBLE)) for _ in range(30)])
    # The square of one matrix has no negative determinant; a product of two draws has one in half of all cases.
    assert (torch.linalg.det(squares) >= 0).all()


def test_parametrised_weights_keep_their_parametrisation():
    class Symmetric(nn.Module):
        def forward(self, weight):
            return weight.triu() + weight.triu(1).T

    layer = nn.Linear(5, 5, bias=False).to(DOUBLE)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    net = variational(layer, init_std=0.3)
    with torch.no_grad():
        drawn = net(torch.eye(5, dtype=DOUBLE))
    torch.testing.assert_close(drawn, drawn.T)


def test_padding_rows_of_an_embedding_stay_as_they_are():
    embedding = nn.Embedding(6, 3, padding_idx=2)
    net = variational(embedding, init_std=0.5)
    tokens = torch.arange(6)
    drawn = net(tokens)
    assert (drawn[2] == 0).all() and (drawn[[0, 1, 3, 4, 5]] != embedding(tokens)[[0, 1, 3, 4, 5]]).all()
    assert (plain_moments(net)[1]["weight"][2] == 0).all()


@pytest.mark.parametrize("family", ["diagonal", "low-rank", "radial"])
def test_padding_rows_have_no_noise_in_a_draw_or_a_std(family):
    net = variational(nn.Embedding(6, 3, padding_idx=2), family=family, init_std=0.5)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if "mean" not in name:
                p.fill_(0.5)  # as training does, by the KL alone
    others = [0, 1, 3, 4, 5]
    for table in (net.draw()["weight"] - net.mean()["weight"], net.std()["weight"]):
        assert (table[2] == 0).all() and (table[others] != 0).all()


def test_a_full_covariance_of_padding_rows_is_refused():
    with pytest.raises(pst.PosterityError, match="padding row"):
        variational(nn.Embedding(6, 3, padding_idx=2), family="full")


def test_lazy_modules_after_their_first_call():
    module = nn.Sequential(nn.LazyConv2d(3, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    with pytest.raises(pst.PosterityError, match="LazyConv2d at '0' is lazy"):
        variational(module)
    x = torch.randn(2, 1, 5, 5)
    expected = module(x)
    torch.testing.assert_close(variational(module, estimator="local", init_std=1e-9)(x), expected, atol=1e-5, rtol=0)


def test_what_has_no_local_estimator_is_drawn_and_said():
    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    with pytest.warns(pst.PosterityWarning, match=r"no local estimator for 0\.weight"):
        variational(module, estimator="local")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        variational(module, estimator="auto")


class Difference(nn.Module):
    """Calls its layer twice on the same input: nothing is left if both calls see the same weights."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.norm, self.dropout = layer, nn.BatchNorm1d(1), nn.Dropout(0.5)

    def forward(self, x):
        self.norm(self.dropout(x.flatten(1)[:, :1]))
        return self.layer(x) - self.layer(x)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(6, 2), (5, 6)),
        (nn.Linear(6, 2), (5, 3, 6)),
        (nn.Conv1d(2, 2, 3, padding=1), (5, 2, 6)),
        (nn.ConvTranspose2d(2, 2, 3), (5, 2, 6, 6)),
    ],
)
def test_calls_of_one_layer_in_a_pass_share_their_draw(layer, shape):
    net = variational(Difference(layer).to(DOUBLE), init_std=0.3, bayesian_bias=True)
    x = torch.randn(shape, dtype=DOUBLE)
    for _ in range(2):
        outputs = net(x)
        torch.testing.assert_close(outputs, torch.zeros_like(outputs), rtol=0, atol=0)
    assert net.net.norm.num_batches_tracked == 2


def test_looking_for_calls_leaves_no_trace():
    net = variational(Difference(nn.Linear(6, 2)).to(DOUBLE), init_std=0.3)
    looked, x = copy.deepcopy(net), torch.randn(5, 6, dtype=DOUBLE)
    looked(x)
    looked.load_state_dict(net.state_dict())
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net(x)
        after = torch.rand(1)
        torch.manual_seed(1)
        looked(x)
        assert torch.rand(1) == after
    torch.testing.assert_close(net.state_dict(), looked.state_dict(), rtol=0, atol=0)


def test_a_layer_that_fails_is_looked_at_again():
    net = variational(Difference(nn.Linear(6, 2)).to(DOUBLE), init_std=0.3)
    with pytest.raises(RuntimeError):
        net(torch.randn(5, 4, dtype=DOUBLE))
    outputs = net(torch.randn(5, 6, dtype=DOUBLE))
    assert (outputs == 0).all()
