"""Squared per-example gradients = vmap(grad)², in float64 to 1e-10, for every layer and every way of computing them."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.nn.functional as F
from tests.curvature.squares import by_vmap, check, close, loss, randn
from torch import nn

from posterity.curvature import capture, gradient_moments, outer, squared_gradients
from posterity.types import PosterityWarning


@pytest.mark.parametrize("lead", [(), (1,), (3,), (9,), (40,), (2, 5)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_linear_with_any_leading_dimensions(lead, bias):
    check(nn.Linear(5, 7, bias=bias), randn(6, *lead, 5))


CONVOLUTIONS = [
    {},
    {"bias": False},
    {"stride": 2},
    {"padding": 1},
    {"padding": 2, "dilation": 2},
    {"groups": 2},
    {"groups": 4, "stride": 2, "dilation": 2, "padding": 2},
    {"padding": "same"},
    {"padding": "same", "kernel_size": 4},
    {"padding": "valid"},
    {"padding": 1, "padding_mode": "reflect"},
    {"padding": 1, "padding_mode": "replicate"},
    {"padding": "same", "padding_mode": "circular"},
]


@pytest.mark.parametrize("size", [5, 8])
@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize(("dims", "layer"), [(1, nn.Conv1d), (2, nn.Conv2d), (3, nn.Conv3d)])
def test_convolutions(dims, layer, options, size):
    check(layer(4, 8, **{"kernel_size": 3, **options}), randn(3, 4, *[size] * dims))


@pytest.mark.parametrize("channels", [1, 6])
def test_convolution_with_stride_and_padding_that_differ_by_dimension(channels):
    layer = nn.Conv2d(channels, 4, (3, 5), stride=(1, 2), padding=(2, 0), dilation=(1, 2))
    check(layer, randn(4, channels, 7, 12))


@pytest.mark.parametrize("way", ["pairs", "chunks", "one by one"])
@pytest.mark.parametrize("positions", [3, 12, 30])
def test_every_way_of_summing_squares_gives_the_same(monkeypatch, way, positions):
    monkeypatch.setattr(outer, "PAIR_POSITIONS", 100 if way == "pairs" else 0)
    monkeypatch.setattr(outer, "GEMM_POSITIONS", 100 if way == "pairs" else 16)
    # A workspace of 80 floats cuts weights and batches into pieces; a large one takes them whole.
    monkeypatch.setattr(outer, "CACHE_FLOATS", 80 if way == "one by one" else 2**18)
    check(nn.Linear(5, 7), randn(6, positions, 5))
    check(nn.Conv2d(4, 6, 3, groups=2), randn(5, 4, positions // 3 + 2, 5))


def test_batches_larger_than_a_workspace(monkeypatch):
    monkeypatch.setattr(outer, "CACHE_FLOATS", 300)
    check(nn.Conv2d(2, 3, 3), randn(20, 2, 6, 6))
    check(nn.Linear(5, 7), randn(20, 9, 5))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.LayerNorm(5), (6, 5)),
        (nn.LayerNorm(5), (6, 3, 5)),
        (nn.LayerNorm((4, 5)), (6, 3, 4, 5)),
        (nn.LayerNorm(5, bias=False), (6, 3, 5)),
        (nn.GroupNorm(2, 4), (6, 4)),
        (nn.GroupNorm(2, 4), (6, 4, 3, 3)),
        (nn.BatchNorm1d(4).eval(), (6, 4)),
        (nn.BatchNorm1d(4).eval(), (6, 4, 7)),
        (nn.BatchNorm2d(4).eval(), (6, 4, 3, 3)),
    ],
    ids=str,
)
def test_normalisation(layer, shape):
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(randn(*p.shape, seed=3))
        for buffer in layer.buffers():
            buffer.add_(1)
    check(layer, randn(*shape))


@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 7), (6, 4, 3, 3)])
def test_batchnorm_in_training_holds_the_batch_statistics_fixed(shape):
    layer = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)](4).double()
    inputs, targets = randn(*shape), randn(*shape, seed=9)
    with torch.no_grad():
        layer.weight[0] = 0.0  # the reference divides by it
        dims = [0, *range(2, len(shape))]
        centred = inputs - inputs.mean(dims, keepdim=True)
        normalised = centred / (centred.square().mean(dims, keepdim=True) + layer.eps).sqrt()

    class Affine(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = layer.weight, layer.bias

        def forward(self, x):
            view = [1, 4, *[1] * (len(shape) - 2)]
            return x * self.weight.view(view) + self.bias.view(view)

    before = {k: v.clone() for k, v in layer.state_dict().items()}
    mean, square = gradient_moments(layer, loss, (inputs, targets))
    expected = by_vmap(Affine(), normalised, targets)
    close(mean, expected[0])
    close(square, expected[1])
    torch.testing.assert_close(dict(layer.state_dict()), before, rtol=0, atol=0)  # running statistics are put back


def test_before_batchnorm_an_example_has_its_part_of_the_batch_gradient():
    before, norm = nn.Linear(3, 4).double(), nn.BatchNorm1d(4).double()
    inputs, targets = randn(6, 3), randn(6, 4, seed=9)
    mean, square = gradient_moments(nn.Sequential(before, norm), loss, (inputs, targets))
    hidden = before(inputs).detach().requires_grad_()
    (parts,) = torch.autograd.grad(
        6 * loss(nn.functional.batch_norm(hidden, None, None, training=True), targets), hidden
    )
    each = parts[:, :, None] * inputs[:, None]
    close({"0.weight": mean["0.weight"]}, {"0.weight": each.mean(0)})
    close({"0.weight": square["0.weight"]}, {"0.weight": each.square().mean(0)})
    close({"0.bias": square["0.bias"]}, {"0.bias": parts.square().mean(0)})


def test_embedding_adds_up_repeated_indices_before_squaring():
    layer = nn.Embedding(5, 3, padding_idx=0).double()
    indices = torch.tensor([[1, 1, 2, 0], [3, 2, 3, 3], [4, 4, 4, 4]])
    targets = randn(3, 4, 3)
    expected = torch.zeros(5, 3, dtype=torch.float64)
    for i in range(3):
        (g,) = torch.autograd.grad(loss(layer(indices[i : i + 1]), targets[i : i + 1]), layer.weight)
        expected += g.square() / 3
    close(squared_gradients(layer, loss, (indices, targets)), {"weight": expected})


class Scaled(nn.Module):
    """Owns a parameter beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5, dtype=torch.float64))
        self.inner = nn.Linear(5, 4).double()

    def forward(self, x):
        return torch.tanh(self.inner(x * self.scale))


class Biased(nn.Module):
    """Attention with a key and a value that it has learned."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, add_bias_kv=True, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class ClassToken(nn.Module):
    """A token before the others and a place for each of them: the token's gradient is part of its place's."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.places = nn.Parameter(randn(1, 1, 5)), nn.Parameter(randn(1, 4, 5, seed=1))

    def forward(self, x):
        tokens = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return tokens.softmax(1)[:, 0]


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Sequential(nn.Linear(5, 4), nn.PReLU(4)), (6, 5)),
        (nn.Bilinear(5, 5, 3), (6, 5)),
        (nn.utils.parametrizations.weight_norm(nn.Linear(5, 4, bias=False)), (6, 5)),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4)), (6, 5)),
        (ClassToken(), (6, 3, 5)),
    ],
    ids=["prelu", "two inputs", "weight norm", "spectral norm", "class token"],
)
def test_other_layers_fall_back_and_say_so_once(module, shape, monkeypatch):
    inputs = randn(*shape)
    if isinstance(module, nn.Bilinear):
        module.forward = lambda x, original=module.forward: original(x, x.flip(1))
    module = module.double()
    targets = randn(*module(inputs).shape, seed=9)
    monkeypatch.setattr("posterity.curvature.generic_rule._CHUNK", 1)
    monkeypatch.setattr(outer, "CACHE_FLOATS", 10)  # several chunks
    with pytest.warns(PosterityWarning, match="example by example") as said:
        mean, square = gradient_moments(module, loss, (inputs, targets))
    assert len(said) == 1
    expected = by_vmap(module, inputs, targets)
    close(mean, expected[0])
    close(square, expected[1])


@pytest.mark.parametrize(("module", "shape"), [(Scaled(), (6, 5)), (Biased(), (4, 3, 6))], ids=["scale", "attention"])
def test_parameters_beside_layers(module, shape):
    check(module, randn(*shape))


def test_a_whole_network_with_in_place_activations_and_a_residual():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6).eval()
            self.again, self.head = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.Linear(6, 4)

        def forward(self, x):
            x = F.relu(self.norm(self.conv(x)), inplace=True)
            x = F.relu_(x + self.again(x))
            return self.head(x.mean((2, 3)))

    check(Net(), randn(5, 3, 7, 7))


def test_frozen_parameters_are_left_out():
    module = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    module[0].weight.requires_grad_(False)
    module[2].bias.requires_grad_(False)
    inputs, targets = randn(6, 5), randn(6, 4, seed=9)
    _, expected = by_vmap(module, inputs, targets)
    found = squared_gradients(module, loss, (inputs, targets))
    close(found, {name: expected[name] for name in ("0.bias", "2.weight")})


def test_nothing_is_left_on_the_module():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)).double()
    before = [set(vars(m)) for m in module.modules()]
    with pytest.raises(ZeroDivisionError), capture(module):
        module(randn(2, 1, 4, 4)).sum().backward()
        raise ZeroDivisionError
    assert [set(vars(m)) for m in module.modules()] == before
    squared_gradients(module, loss, (randn(2, 1, 4, 4), randn(2, 3)))
    assert [set(vars(m)) for m in module.modules()] == before


class Averaging(nn.Module):
    """Keeps an average of what goes through it, as a new tensor each time; it may have a scale, and then no rule."""

    def __init__(self, scale: nn.Parameter | None) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("average", torch.zeros(5, dtype=torch.float64))

    def forward(self, x):
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return x if self.scale is None else x * self.scale


@pytest.mark.filterwarnings("ignore:.* has no rule")
@pytest.mark.parametrize("scale", [None, nn.Parameter(randn(5))], ids=["no scale", "scale"])
def test_buffers_are_left_alone_where_a_pass_puts_others_in_their_place(scale):
    inputs, targets = randn(6, 5), randn(6, 4)
    module = nn.Sequential(Averaging(scale), nn.Linear(5, 4)).double()
    squared_gradients(module, loss, (inputs, targets))
    assert module[0].average.count_nonzero() == 0
    with capture(module):  # here the average is wanted, of the pass alone
        loss(module(inputs), targets).backward()
    assert torch.allclose(module[0].average, 0.1 * inputs.mean(0), atol=1e-12)


def test_capture_gives_the_squares_of_the_users_own_backward():
    module = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    inputs, targets = randn(6, 5), randn(6, 4, seed=9)
    with capture(module) as squares:
        loss(module(inputs), targets).backward()
    mean, square = by_vmap(module, inputs, targets)
    close(squares, square)
    close({name: p.grad for name, p in module.named_parameters()}, mean)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="bfloat16 products are not to be had on every CPU")
def test_bfloat16_autocast_agrees_to_its_own_precision():
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).cuda()
    inputs, targets = randn(16, 3, 8, 8).float().cuda(), randn(16, 4, seed=9).float().cuda()
    exact = squared_gradients(module, loss, (inputs, targets))
    with torch.autocast("cuda", torch.bfloat16), capture(module) as squares:
        loss(module(inputs).float(), targets).backward()
    for name, value in exact.items():
        assert squares[name].dtype == torch.float32
        assert (squares[name] - value).norm() / value.norm() < 0.02, name


@pytest.mark.filterwarnings("ignore:.* has no rule")
@pytest.mark.parametrize(
    "layer", [nn.PReLU(8), nn.ConvTranspose1d(8, 8, 3), nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 8, 3))]
)
def test_layers_that_are_run_again_under_autocast(layer):
    """They were run again without it: weights and inputs differed in type, and these networks were refused."""
    module = nn.Sequential(nn.Conv1d(3, 8, 3), layer, nn.Flatten(), nn.LazyLinear(4))
    inputs, targets = randn(16, 3, 8).float(), randn(16, 4, seed=9).float()
    module(inputs)
    exact = squared_gradients(module, loss, (inputs, targets))
    with capture(module) as squares:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = module(inputs)
        loss(outputs.float(), targets).backward()
    for name, value in exact.items():
        assert squares[name].dtype == torch.float32
        assert (squares[name] - value).norm() / value.norm() < 0.05, name


def test_the_graph_is_let_go_of():
    module = nn.Linear(5, 4)
    with capture(module):
        out = module(torch.ones(6, 5))
        out.mean().backward()
    node = weakref.ref(out.grad_fn)
    del out
    assert node() is None
