"""The covariance of a linearised network's outputs, layer by layer, against that of explicit Jacobians."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posterity as pst
from posterity.curvature.kfac import _has_factors
from posterity.curvature.units import units
from posterity.posteriors import KroneckerGaussian, Linearised, kronecker_outputs, linearised
from posterity.posteriors.kronecker import MatrixBlock


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_blocks_density_and_variances_are_those_of_the_kronecker_product():
    """Of a matrix that is not square, with factors that are not orthogonal, as Noisy K-FAC has them."""
    left, right, scale = randn(2, 2, seed=1), randn(4, 4, seed=2), randn(2, 4, seed=3).abs() + 0.1
    block = MatrixBlock("weight", "bias", left, right, scale)
    root = torch.kron(left, right) * scale.flatten()
    exact = torch.distributions.MultivariateNormal(torch.zeros(8).double(), root @ root.T)
    deviation = randn(2, 4, seed=4)
    torch.testing.assert_close(block.log_prob(deviation), exact.log_prob(deviation.flatten()))
    torch.testing.assert_close(block.variance().flatten(), exact.variance)


class TimeFirst(nn.Module):
    """Examples are the second dimension inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(x.transpose(0, 1))).sum(0))


class Twice(nn.Module):
    """One layer, used twice; what leaves it is overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(3, 3, bias=False), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(F.relu(self.layer(x), inplace=True)))


class Tied(nn.Module):
    """The decoder is the encoder's transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.T)


class Scale(nn.Module):
    """Its parameter is a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1, padding_mode="reflect"), nn.GroupNorm(3, 3), nn.ReLU(inplace=True),
        nn.Conv2d(3, 4, 3, padding="same", dilation=2, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3),
    )  # fmt: skip


NETWORKS = {
    "convolutions": (convolutional, (5, 2, 6, 6)),
    "one dimension": (lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)), (5, 2, 5)),
    "three dimensions": (lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.Flatten(), nn.Linear(16, 2)), (4, 1, 3, 3, 3)),
    "sequences": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), (5, 6, 3)),
    "as many steps as examples": (TimeFirst, (4, 4, 3)),
    "used twice": (Twice, (5, 3)),
    "a single number": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), Scale()), (5, 3)),
    "recurrent": (lambda: nn.Sequential(nn.LSTM(3, 2), Last(), nn.Linear(2, 2)), (5, 4, 3)),
}


class Last(nn.Module):
    """The last step of what an LSTM returns."""

    def forward(self, found: tuple[Tensor, object]) -> Tensor:
        return found[0][:, -1]


def posterior(net: nn.Module) -> KroneckerGaussian:
    """Noise of no special form in every layer, and independent noise in what is no layer with a matrix."""
    means = {name: 0.5 * randn(*p.shape, seed=i) for i, (name, p) in enumerate(net.double().named_parameters())}
    blocks, rest = [], dict(means)
    for prefix, layer, _ in units(net):
        if not _has_factors(layer):
            continue
        weight, bias = f"{prefix}.weight", f"{prefix}.bias" if layer.bias is not None else None
        rows, columns = len(layer.weight), layer.weight[0].numel() + (bias is not None)
        left, right = randn(rows, rows, seed=rows), randn(columns, columns, seed=columns)
        blocks.append(MatrixBlock(weight, bias, left, right, 0.1 + randn(rows, columns, seed=7).abs()))
        for name in (weight, bias):
            rest.pop(name, None)
    std = {name: 0.1 + randn(*mean.shape, seed=8).abs() for name, mean in rest.items()}
    return KroneckerGaussian(net, pst.likelihoods.Categorical(), means, blocks, std)


def by_jacobians(q: Linearised, x: Tensor, monkeypatch) -> tuple[Tensor, Tensor]:
    with monkeypatch.context() as patch:
        patch.setattr(linearised, "without_jacobians", lambda posterior, inputs: None)
        return q.outputs(x)


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_are_those_of_jacobians(name, monkeypatch):
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    q, x = Linearised(posterior(make())), randn(*shape, seed=30)
    assert kronecker_outputs.KroneckerOutputs(q.parts[0])(x) is not None
    for found, expected in zip(q.outputs(x), by_jacobians(q, x, monkeypatch), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_examples_in_pieces_give_the_same(monkeypatch):
    q, x = Linearised(posterior(convolutional())), randn(5, 2, 6, 6)
    whole = q.outputs(x)
    monkeypatch.setattr(kronecker_outputs, "_FLOATS", 1)
    for found, expected in zip(q.outputs(x), whole, strict=True):
        torch.testing.assert_close(found, expected)


def test_a_weight_that_is_used_outside_its_layer_needs_jacobians(monkeypatch):
    q, x = Linearised(posterior(Tied())), randn(5, 3)
    assert kronecker_outputs.KroneckerOutputs(q.parts[0])(x) is None
    for found, expected in zip(q.outputs(x), by_jacobians(q, x, monkeypatch), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_network_is_left_as_it_was():
    q, x = posterior(convolutional()), randn(5, 2, 6, 6)
    before = q.module(x)
    kronecker_outputs.KroneckerOutputs(q)(x)
    assert torch.equal(q.module(x), before) and all("forward" not in m.__dict__ for m in q.module.modules())
