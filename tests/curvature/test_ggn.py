"""Gauss-Newton and Fisher matrices against explicit Jacobians, and Kronecker factors where they are exact."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from posterity.curvature import ggn
from posterity.curvature.kfac import KroneckerCapture
from posterity.last_layer import features
from posterity.probability.likelihoods import Categorical, Gaussian
from posterity.types import Batch, PosterityError


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 4), nn.Tanh(), nn.Linear(4, 3))
    with torch.no_grad():
        for i, p in enumerate(net.double().parameters()):
            p.copy_(0.5 * randn(*p.shape, seed=i))
    return net


BATCH = Batch(randn(6, 2, 5, 5, seed=20), torch.tensor([0, 1, 2, 2, 1, 0]))


def explicit(net: nn.Module, batch: Batch, hessian: Tensor) -> Tensor:
    """1/B Σ Jᵀ H J, by the definition."""
    params = {name: p.detach() for name, p in net.named_parameters()}
    jacobian = jacrev(lambda p: functional_call(net, p, (batch.inputs,)))(params)
    J = torch.cat([jacobian[name].flatten(2) for name in params], 2)
    return torch.einsum("bop,boq,bqr->pr", J, hessian, J) / len(J)


def flat(params: dict[str, Tensor]) -> Tensor:
    return torch.cat([p.flatten() for p in params.values()])


def test_full_and_diagonal_are_the_definition():
    net = network()
    expected = explicit(net, BATCH, Categorical().hessian(net(BATCH.inputs)))
    torch.testing.assert_close(ggn.full(net, Categorical(), BATCH), expected, rtol=1e-10, atol=1e-12)
    found = ggn.diagonal(net, Categorical(), BATCH)
    torch.testing.assert_close(flat(found), expected.diagonal(), rtol=1e-10, atol=1e-12)
    assert list(found) == [name for name, _ in net.named_parameters()]


class Scaled(nn.Module):
    """Its last parameter is a number, as a learned scale of the outputs often is."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.scale = nn.Linear(3, 2).double(), nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.line(x)


def test_a_parameter_without_dimensions_has_its_place_in_the_full_matrix():
    """Of a Gaussian of variance 1 it is the mean of J Jᵀ, and ∂f/∂scale = f/scale."""
    net, x = Scaled(), randn(5, 3)
    outputs = net(x).detach()
    found = ggn.full(net, Gaussian(1.0), Batch(x, outputs))
    own = outputs.square().sum() / 5 / 1.5**2
    torch.testing.assert_close(found[0, 0], own)  # the parameters of the module itself come first


def test_empirical_fisher_is_the_mean_outer_product_of_gradients():
    net = network()
    each = []
    for x, y in zip(BATCH.inputs, BATCH.targets, strict=True):
        gradients = torch.autograd.grad(F.cross_entropy(net(x[None]), y[None]), list(net.parameters()))
        each.append(torch.cat([g.flatten() for g in gradients]))
    expected = torch.stack(each).T @ torch.stack(each) / len(each)
    found = ggn.full(net, Categorical(), BATCH, ggn.empirical_fisher)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    diagonal = ggn.diagonal(net, Categorical(), BATCH, ggn.empirical_fisher)
    torch.testing.assert_close(flat(diagonal), expected.diagonal(), rtol=1e-10, atol=1e-12)


def test_monte_carlo_fisher_is_the_gauss_newton_matrix_in_expectation():
    net = network()
    draws = 400
    columns = ggn.monte_carlo_fisher(draws, torch.Generator().manual_seed(1))
    found = flat(ggn.diagonal(net, Categorical(), BATCH, columns))
    expected = flat(ggn.diagonal(net, Categorical(), BATCH))
    # Each entry is a mean over 6 × 400 draws of a square; its relative error is at most a few times 1/√draws.
    assert ((found - expected).abs() / expected).mean() < 2 / draws**0.5
    assert abs(found.sum() / expected.sum() - 1) < 4 / draws**0.5


def test_last_layer_is_the_corner_of_the_full_matrix():
    net = network()
    names = ("5.weight", "5.bias")
    corner = ggn.full(net, Categorical(), BATCH, names=names)
    torch.testing.assert_close(ggn.last_layer(net, Categorical(), BATCH), corner, rtol=1e-10, atol=1e-12)
    whole = ggn.full(net, Categorical(), BATCH)
    torch.testing.assert_close(whole[-15:, -15:], corner, rtol=1e-10, atol=1e-12)


def test_last_layer_refuses_a_network_that_goes_on_after_it():
    net = nn.Sequential(nn.Linear(5, 3), nn.Tanh()).double()
    with pytest.raises(PosterityError, match="must end in a Linear layer"):
        ggn.last_layer(net, Gaussian(1.0), Batch(randn(4, 5), randn(4, 3)))


@pytest.mark.parametrize("bias", [True, False])
def test_kronecker_factors_are_exact_for_a_linear_network(bias):
    net = nn.Sequential(nn.Linear(4, 5, bias=bias), nn.Linear(5, 3, bias=bias)).double()
    likelihood, batch = Gaussian(0.7), Batch(randn(8, 4), randn(8, 3, seed=1))
    for block in ggn.kronecker(net, likelihood, batch).blocks:
        names = (block.weight, block.bias) if block.bias else (block.weight,)
        expected = ggn.full(net, likelihood, batch, names=names)
        rows, columns = len(block.output), len(block.input)
        # From (weight [O, I], then bias [O]) to rows of [O, I + 1].
        order = torch.arange(rows * columns).view(rows, columns)
        weights = columns - 1 if block.bias else columns
        order = torch.cat([order[:, :weights].flatten(), order[:, weights:].flatten()])
        found = torch.kron(block.output, block.input)[order][:, order]
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_kronecker_factors_are_exact_for_one_example():
    net = network()
    one = Batch(BATCH.inputs[:1], BATCH.targets[:1])
    for block in ggn.kronecker(net, Categorical(), one, ggn.empirical_fisher).blocks[1:]:
        gradients = torch.autograd.grad(
            F.cross_entropy(net(one.inputs), one.targets),
            [dict(net.named_parameters())[name] for name in (block.weight, block.bias)],
        )
        g = torch.cat([gradients[0], gradients[1][:, None]], 1).flatten()
        torch.testing.assert_close(torch.kron(block.output, block.input), torch.outer(g, g), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": 2}, {"padding": "same"}], ids=str
)
def test_convolution_factors_by_unfold(sharing, options):
    layer = nn.Conv2d(3, 4, 3, **options).double()
    x, d = randn(5, 3, 7, 7), randn(*layer(randn(5, 3, 7, 7)).shape, seed=2)
    watch = KroneckerCapture(layer, sharing)
    with watch.on():
        (layer(x) * d).sum().div(5).backward()
    padding = 1 if layer.padding == "same" else layer.padding
    patches = F.unfold(x, 3, layer.dilation, padding, layer.stride).mT
    patches = torch.cat([patches, torch.ones_like(patches[..., :1])], 2)
    d = d.flatten(2).mT
    if sharing == "expand":
        A = torch.einsum("bti,btj->ij", patches, patches) / patches[..., 0].numel()
        G = torch.einsum("bto,btp->op", d, d) / 5
    else:
        A = torch.einsum("bi,bj->ij", patches.mean(1), patches.mean(1)) / 5
        G = torch.einsum("bo,bp->op", d.sum(1), d.sum(1)) / 5
    (block,) = watch.curvature.blocks
    torch.testing.assert_close(block.input, A, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(block.output, G, rtol=1e-10, atol=1e-12)


def test_sequences_count_positions_as_asked():
    layer = nn.Linear(3, 4, bias=False).double()
    x, d = randn(5, 6, 3), randn(5, 6, 4, seed=2)
    for sharing, A, G in (
        ("expand", torch.einsum("bti,btj->ij", x, x) / 30, torch.einsum("bto,btp->op", d, d) / 5),
        ("reduce", x.mean(1).T @ x.mean(1) / 5, d.sum(1).T @ d.sum(1) / 5),
    ):
        watch = KroneckerCapture(layer, sharing)
        with watch.on():
            (layer(x) * d).sum().div(5).backward()
        torch.testing.assert_close(watch.curvature.blocks[0].input, A)
        torch.testing.assert_close(watch.curvature.blocks[0].output, G)


def test_parameters_without_factors_keep_their_diagonal():
    net = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(36, 3)).double()
    batch = Batch(randn(6, 4, 5, 5), torch.tensor([0, 1, 2, 2, 1, 0]))
    curvature = ggn.kronecker(net, Categorical(), batch)
    assert [block.weight for block in curvature.blocks] == ["3.weight"]
    expected = ggn.diagonal(net, Categorical(), batch)
    assert list(curvature.diagonal) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    for name, value in curvature.diagonal.items():
        torch.testing.assert_close(value, expected[name])


def test_factors_of_layers_whose_outputs_are_overwritten():
    net = network()
    overwritten = nn.Sequential(net[0], nn.ReLU(inplace=True), *net[2:4], nn.ReLU(inplace=True), net[5])
    kept = nn.Sequential(net[0], nn.ReLU(), *net[2:4], nn.ReLU(), net[5])
    blocks = [ggn.kronecker(each, Categorical(), BATCH).blocks for each in (overwritten, kept)]
    for one, other in zip(*blocks, strict=True):
        torch.testing.assert_close(one.input, other.input)
        torch.testing.assert_close(one.output, other.output)
        assert one.output.trace() > 0


def test_factors_of_a_layer_on_sequences_whose_output_is_overwritten():
    """It is a view, from which what overwrites it took the hook: the layer was said to be used outside its forward."""
    x, y = torch.randn(6, 4, 3), torch.arange(6) % 2
    found = []
    for inplace in (True, False):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace), nn.Linear(5, 2), nn.Flatten(), nn.Linear(8, 2))
        blocks = ggn.kronecker(net, Categorical(), Batch(x, y)).blocks
        found.append([(block.input, block.output) for block in blocks])
    torch.testing.assert_close(*found)


class Tied(nn.Module):
    """Encodes and decodes with one matrix, so that the network as a whole is what has a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(3, 3, bias=False), nn.Linear(3, 3)
        self.decoder.weight = self.encoder.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(torch.tanh(self.encoder(x)))


@pytest.mark.filterwarnings("ignore::posterity.types.PosterityWarning")  # it is run a second time
def test_the_diagonal_of_a_network_that_is_one_piece_is_that_of_the_full_matrix():
    net, batch = Tied().double(), Batch(randn(5, 3), torch.tensor([0, 2, 1, 1, 0]))
    expected = ggn.full(net, Categorical(), batch).diagonal()
    assert expected.min() > 0
    torch.testing.assert_close(flat(ggn.diagonal(net, Categorical(), batch)), expected)
    torch.testing.assert_close(flat(ggn.kronecker(net, Categorical(), batch).diagonal), expected)


@pytest.mark.parametrize("curvature", [ggn.diagonal, ggn.kronecker])
def test_a_parameter_that_is_used_without_its_layer_is_refused(curvature):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.out = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(F.linear(x, self.layer.weight))

    with pytest.raises(PosterityError, match="outside its forward"):
        curvature(Odd().double(), Categorical(), Batch(randn(4, 3), torch.tensor([0, 1, 1, 0])))


@pytest.mark.parametrize("curvature", [ggn.diagonal, ggn.kronecker])
def test_a_parameter_that_is_used_by_its_layer_and_without_it_is_refused(curvature):
    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x):
            return F.linear(torch.tanh(self.layer(x)), self.layer.weight.T)

    net, batch = Autoencoder().double(), Batch(randn(4, 3), torch.tensor([0, 1, 1, 0]))
    assert ggn.full(net, Categorical(), batch).shape == (16, 16)
    with pytest.raises(PosterityError, match="outside its forward, too"):
        curvature(net, Categorical(), batch)


def test_outputs_that_are_not_rows_are_refused():
    with pytest.raises(PosterityError, match="outputs of shape"):
        ggn.diagonal(nn.Linear(3, 2).double(), Gaussian(1.0), Batch(randn(4, 5, 3), randn(4, 5, 2)))


def test_the_last_layer_needs_no_memory_for_the_activations_of_the_others():
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    outputs, alive = [], []
    for layer in (module[0], module[2]):
        layer.register_forward_hook(lambda m, args, out: outputs.append(weakref.ref(out)))
    module[4].register_forward_pre_hook(lambda m, args: alive.extend(ref() is not None for ref in outputs))
    features(module, torch.randn(5, 3))
    assert alive == [False, True]  # the latest is at hand


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of the explicit Jacobian
def test_the_diagonal_of_a_recurrent_network_with_attention_is_that_of_the_full_matrix():
    class Sentence(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.out = nn.LSTM(3, 2, 2, bidirectional=True, batch_first=True), nn.Linear(4, 3)
            self.attention = nn.TransformerEncoderLayer(4, 2, 5, batch_first=True)

        def forward(self, x):
            return self.out(self.attention(self.lstm(x)[0]).mean(1))

    net = Sentence().double().eval()
    batch = Batch(randn(4, 5, 3), torch.tensor([0, 2, 1, 1]))
    whole = ggn.full(net, Categorical(), batch)
    with torch.no_grad():
        torch.testing.assert_close(whole, explicit(net, batch, Categorical().hessian(net(batch.inputs))))
    diagonal = ggn.diagonal(net, Categorical(), batch)
    found = torch.cat([diagonal[name].flatten() for name, _ in net.named_parameters()])
    torch.testing.assert_close(found, whole.diagonal())
