"""Compaction: compacted(x) = masked(x) on random networks, and hand-worked cases of what goes and what stays."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from posterity.calling import nested_tensors
from posterity.compression import compact, compress
from posterity.compression.compact import silenced
from posterity.types import PosterityError
from tests.compression.networks import BLOCKS, inputs, network

EXACT = {"rtol": 0.0, "atol": 1e-6}


def numbers(module):
    return sum(p.numel() for p in module.parameters())


def linear(weight, bias=None):
    layer = nn.Linear(len(weight[0]), len(weight), bias=bias is not None, dtype=torch.float64)
    layer.weight.data = torch.tensor(weight, dtype=torch.float64)
    if bias is not None:
        layer.bias.data = torch.tensor(bias, dtype=torch.float64)
    return layer


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=4), st.integers(0, 10_000), st.booleans())
def test_compacted_is_masked_on_random_networks(kinds, seed, select):
    masked, x = network(kinds, seed), inputs()
    before = {name: value.clone() for name, value in masked.state_dict().items()}
    small = compact(masked, inputs(2), select_inputs=select).module
    for batch in (x, x[:1]):
        torch.testing.assert_close(small(batch), masked(batch), **EXACT)
    assert numbers(small) <= numbers(masked)
    assert all(torch.equal(value, before[name]) for name, value in masked.state_dict().items())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=4), st.integers(0, 10_000))
def test_silenced_says_the_same_with_no_fewer_zeros(kinds, seed):
    masked, x = network(kinds, seed), inputs()
    before = {name: value.clone() for name, value in masked.state_dict().items()}
    quiet = silenced(masked, inputs(2))
    assert torch.equal(quiet(x), masked(x))
    for name, value in quiet.state_dict().items():
        assert bool(((value == before[name]) | (value == 0)).all()), name
    assert all(torch.equal(value, before[name]) for name, value in masked.state_dict().items())


def test_silenced_is_what_nobody_reads():
    """Unit 0 is read, unit 1 is a constant that is read, unit 2 is not read: only of that one nothing stays."""
    first = linear([[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]], [0.1, 0.2, 0.3])
    norm = nn.BatchNorm1d(3, dtype=torch.float64)
    norm.running_mean.copy_(torch.tensor([0.5, 0.25, 0.75]))
    last = linear([[1.0, 1.0, 0.0]], [0.0])
    quiet = silenced(nn.Sequential(first, norm, nn.ReLU(), last).eval(), torch.randn(2, 2, dtype=torch.float64))
    assert quiet[0].weight.tolist() == [[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    assert quiet[0].bias.tolist() == [0.1, 0.2, 0.0]
    assert quiet[1].running_mean.tolist() == [0.5, 0.25, 0.0] and quiet[1].running_var.tolist() == [1, 1, 0]
    assert quiet[1].weight.tolist() == [1, 1, 0]


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_structure_loses_units(kind):
    masked = network([kind, "conv"], seed=BLOCKS.index(kind))
    result = compact(masked, inputs())
    torch.testing.assert_close(result.module(inputs()), masked(inputs()), **EXACT)
    assert result.not_followed == ()
    assert numbers(result.module) < 0.8 * numbers(masked)


@pytest.mark.parametrize("rank", [1, 3])
def test_one_and_three_dimensional_convolutions(rank):
    conv, norm, pool = {1: (nn.Conv1d, nn.BatchNorm1d, nn.MaxPool1d), 3: (nn.Conv3d, nn.BatchNorm3d, nn.AvgPool3d)}[
        rank
    ]
    masked = nn.Sequential(
        conv(2, 6, 3, padding=1), norm(6), nn.GELU(), pool(2), conv(6, 4, 2), nn.Flatten(), nn.LazyLinear(3)
    )
    x = torch.randn(3, 2, *[6] * rank, generator=torch.Generator().manual_seed(0))
    masked(x)
    masked = masked.double().eval()
    with torch.no_grad():
        masked[0].weight[1:4] = 0
        masked[4].weight[:, 5] = 0
    small = compact(masked, x.double()).module
    torch.testing.assert_close(small(x.double()), masked(x.double()), **EXACT)
    # Filter 5 is read by nobody; 1, 2, 3 are constants, which the unpadded convolution takes into its bias.
    assert small.get_submodule("0").weight.shape[0] == 2


def test_dead_neuron_becomes_a_bias():
    masked = nn.Sequential(linear([[1.0, 2], [0, 0]], [0.5, 3.0]), nn.Tanh(), linear([[1.0, 10], [2, 0]], [0.0, 1]))
    small = compact(masked, torch.zeros(2, 2, dtype=torch.float64)).module
    first, last = small.get_submodule("0"), small.get_submodule("2")
    assert first.weight.tolist() == [[1, 2]]
    assert last.weight.tolist() == [[1], [2]]
    expected = [10 * torch.tanh(torch.tensor(3.0, dtype=torch.float64)).item(), 1.0]
    assert last.bias.tolist() == pytest.approx(expected)


def test_constants_under_zero_padding_share_one_channel():
    masked = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.Sigmoid(), nn.Conv2d(6, 2, 3, padding=1)).double()
    with torch.no_grad():
        masked[0].weight[1:] = 0  # five constant channels, all of them sigmoid(b) > 0
    x = torch.randn(2, 1, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    small = compact(masked, x).module
    torch.testing.assert_close(small(x), masked(x), **EXACT)
    assert small.get_submodule("0").out_channels == 2  # the living one and the deputy


def test_dead_residual_branch_stops_running():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.deep = nn.Conv2d(1, 4, 3), nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1))

        def forward(self, x):
            x = self.stem(x)
            return x + self.deep(x)

    masked = Net().double()
    nn.init.zeros_(masked.deep[2].weight)
    x = torch.randn(2, 1, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    small = compact(masked, x).module
    torch.testing.assert_close(small(x), masked(x), **EXACT)
    assert [name for name, _ in small.named_parameters()] == ["stem.weight", "stem.bias"]
    nn.init.zeros_(masked.deep[2].bias)
    assert " + " not in compact(masked, x).module.code


def test_what_is_multiplied_by_zero_goes_on_both_sides():
    """Of three units of a product one is open, one multiplied by zero and one by two."""

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = linear([[1, 1], [0, 0], [0, 0]], [0, 0, 2])
            self.value, self.out = linear([[1, 2], [3, 4], [5, 6]]), linear([[1, 1, 1]])

        def forward(self, x):
            return self.out(self.gate(x) * self.value(x))

    masked, x = Gated(), torch.randn(7, 2, dtype=torch.float64)
    small = compact(masked, x).module
    torch.testing.assert_close(small(x), masked(x), **EXACT)
    assert {name: len(p) for name, p in small.named_parameters() if p.dim() == 2} == {
        "gate.weight": 2, "value.weight": 2, "out.weight": 1
    }  # fmt: skip


def test_unused_inputs_are_left_out():
    masked = nn.Sequential(nn.Flatten(), linear([[1.0, 0, 0, 2]], [0.0]))
    x = torch.arange(8, dtype=torch.float64).reshape(2, 2, 2)
    small = compact(masked, x).module
    assert small.get_submodule("1").in_features == 2
    assert small(x).tolist() == masked(x).tolist() == [[6], [18]]
    assert compact(masked, x, select_inputs=False).module.get_submodule("1").in_features == 4


def test_wholly_dead_layer_and_network():
    masked = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1), nn.Flatten(), nn.LazyLinear(2)
    )
    x = torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    masked(x)
    nn.init.zeros_(masked[2].weight)
    result = compact(masked, x)
    assert result.constant
    torch.testing.assert_close(result.module(x), masked(x))
    assert all(p.numel() > 0 for p in result.module.parameters())  # no layer of width zero
    living = nn.Sequential(nn.Linear(2, 2))
    assert not compact(living, torch.zeros(2, 2)).constant


def test_masks_are_applied_before():
    module = nn.Sequential(linear([[1.0, 2], [3, 4]]), linear([[1.0, 1]]))
    small = compact(
        module, torch.zeros(2, 2, dtype=torch.float64), {"0.weight": torch.tensor([[True, True], [False, False]])}
    )
    assert small.module.get_submodule("0").weight.tolist() == [[1, 2]]
    assert module[0].weight.tolist() == [[1, 2], [3, 4]]


class Attention(nn.Module):
    """A block whose attention no rule knows, and whose feed-forward part every rule does."""

    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = self.norm(x + self.attend(x, x, x)[0])
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def test_what_is_not_followed_stays_and_is_named():
    masked = nn.Sequential(nn.Linear(3, 4), Attention(), nn.Linear(4, 2)).double().eval()
    with torch.no_grad():
        masked[0].weight[1] = 0
        masked[1].up.weight[2:] = 0
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result = compact(masked, x)
    torch.testing.assert_close(result.module(x), masked(x), **EXACT)
    assert any("MultiheadAttention" in what for what in result.not_followed)
    assert result.module.get_submodule("0").out_features == 4
    assert result.module.get_submodule("1.up").out_features == 2


class Twins(nn.Module):
    """Both inputs through the same layers in one batch, as networks that compare two images are written."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(8, 6), nn.Linear(6, 2)

    def forward(self, a, b):
        left, right = torch.relu(self.hidden(torch.cat([a, b]).flatten(1))).chunk(2)
        return self.out(left - right)


def test_two_batches_one_after_the_other_are_no_channels():
    masked = Twins().double().eval()
    with torch.no_grad():
        masked.hidden.weight[:, 3:] = 0
    x = torch.randn(2, 3, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result = compact(masked, tuple(x))
    torch.testing.assert_close(result.module(*x), masked(*x), **EXACT)
    assert result.module.get_submodule("hidden").in_features == 3


def test_pooling_over_the_channels_themselves_is_not_followed():
    masked = nn.Sequential(nn.Linear(3, 9), nn.ReLU(), nn.AvgPool1d(3, 1, 1), nn.Linear(9, 2)).double().eval()
    with torch.no_grad():
        masked[0].weight[4:] = 0
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result = compact(masked, x)
    torch.testing.assert_close(result.module(x), masked(x), **EXACT)
    assert result.not_followed == ("_2 (AvgPool1d)",)


def test_pooling_of_planes_over_channels_and_time_is_not_followed():
    """[N, C, T] is one picture without a batch to it."""
    masked = nn.Sequential(nn.Conv1d(3, 9, 3), nn.ReLU(), nn.AvgPool2d(3, 1, 1), nn.Flatten(), nn.Linear(36, 2))
    masked.double().eval()
    with torch.no_grad():
        masked[0].weight[4:] = 0
    x = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result = compact(masked, x)
    torch.testing.assert_close(result.module(x), masked(x), **EXACT)
    assert result.not_followed == ("_2 (AvgPool2d)",)


class Returns(nn.Module):
    """Half of its hidden units are dead; what it makes of its logits is asked for."""

    def __init__(self, returns):
        super().__init__()
        self.first, self.last, self.returns = nn.Linear(3, 8), nn.Linear(8, 2), returns
        with torch.no_grad():
            self.first.weight[4:] = 0

    def forward(self, x):
        return self.returns(self.last(torch.relu(self.first(x))))


@pytest.mark.parametrize(
    "returns",
    [
        lambda y: y.masked_fill(torch.tensor([False, True]), -torch.inf),
        lambda y: (y, y > 0),
        lambda y: {"logits": y, "label": y.argmax(1)},
        lambda y: torch.cat(tensors=[y, -y], dim=1),
    ],
    ids=["minus infinity", "bools", "dictionary", "keywords"],
)
def test_whatever_a_network_returns(returns):
    masked = Returns(returns).double().eval()
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    small = compact(masked, x).module
    assert small.get_submodule("first").out_features == 4
    for got, expected in zip(nested_tensors(small(x)), nested_tensors(masked(x)), strict=True):
        torch.testing.assert_close(got, expected)


class Squeezes(nn.Module):
    """Loses a batch of one."""

    def __init__(self):
        super().__init__()
        self.pool, self.last = nn.AdaptiveAvgPool2d(1), nn.Linear(3, 2)
        with torch.no_grad():
            self.last.weight[:, 1] = 0

    def forward(self, x):
        return self.last(self.pool(x).squeeze())


def test_a_batch_of_one_that_is_squeezed_away():
    masked, x = Squeezes().double().eval(), inputs()
    small = compact(masked, x).module
    for batch in (x, x[:1]):
        torch.testing.assert_close(small(batch), masked(batch), **EXACT)


class Moody(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.moody, self.last = nn.Linear(2, 3), Moody(), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.moody(self.first(x)))


def test_an_untraceable_part_is_opaque_and_an_untraceable_whole_refused():
    result = compact(Wrapped(), torch.ones(2, 2))
    assert result.not_followed == ("moody (Moody)",)
    with pytest.raises(PosterityError, match=r"torch.fx cannot trace Moody.forward"):
        compact(Moody(), torch.ones(2, 2))


def test_tied_weights_are_refused():
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    with pytest.raises(PosterityError, match=r"'0.weight' and '1.weight' are one tied parameter"):
        compact(tied, torch.zeros(2, 2))


def test_a_layer_called_twice_keeps_its_size():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.step, self.out = linear([[1.0, 0], [0, 0]], [0.1, 0.2]), linear([[1.0, 1]])

        def forward(self, x):
            return self.out(self.step(self.step(x)))

    x = torch.ones(2, 2, dtype=torch.float64)
    result = compact(Recurrent(), x)
    assert result.not_followed == ("step (Linear)", "step_1 (Linear)")
    assert result.module.get_submodule("step").weight.shape == (2, 2)


def test_a_layer_whose_weight_is_also_read_by_itself_keeps_its_size():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = linear([[1.0, 2.0], [3.0, 4.0]], [0.1, 0.2])
            self.left, self.right = linear([[1.0, 0.0]]), linear([[1.0, 1.0]])

        def forward(self, x):
            return self.left(torch.relu(self.first(x))) + self.right(torch.relu(x @ self.first.weight.T))

    masked, x = Twice(), torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    result = compact(masked, x)
    torch.testing.assert_close(result.module(x), masked(x), **EXACT)
    assert result.module.get_submodule("first").weight.shape == (2, 2)
    assert torch.equal(silenced(masked, x)(x), masked(x))


def test_in_place_activations_on_shared_tensors():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = linear([[0.0, 0], [1, 1]], [-2.0, 0]), linear([[1.0, 1]])

        def forward(self, x):
            x = self.a(x)
            y = torch.nn.functional.relu(x, inplace=True)
            return self.b(y) + self.b2(x)

    net = Net()
    net.b2 = linear([[5.0, 1]])
    x = torch.tensor([[1.0, -3], [2, 2]], dtype=torch.float64)
    torch.testing.assert_close(compact(net, x).module(x), net(x), **EXACT)


@pytest.mark.parametrize("overwrite", [nn.ReLU(inplace=True), torch.relu_, lambda x: x.clamp_(min=0)])
@pytest.mark.parametrize("first", [nn.Identity(), nn.LayerNorm(2).double()], ids=["its input", "a tensor of its own"])
def test_what_a_network_overwrites_and_reads_on_from(first, overwrite):
    """The graph lost what nobody took up: it was another network wherever the example had nothing below zero."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.overwrite, self.a = first, overwrite, linear([[0.0, 0], [1, 1]], [-2.0, 0])

        def forward(self, x):
            x = self.first(x)
            self.overwrite(x)
            return self.a(x)

    net, x = Net(), torch.tensor([[1.0, -3], [2, 2]], dtype=torch.float64)
    small = compact(net, x).module
    assert x[0, 1] == -3  # the example is as it was
    torch.testing.assert_close(small(x.clone()), net(x.clone()), **EXACT)
    torch.testing.assert_close(compress(net, example=x.clamp(min=0))(x.clone()), net(x.clone()), **EXACT)


def test_overwritten_views_are_refused():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = linear([[0.0, 0], [1, 1]], [-2.0, 0])

        def forward(self, x):
            turned = x.transpose(0, 1)
            turned.relu_()
            return self.a(x)

    x = torch.tensor([[1.0, -3], [2, 2]], dtype=torch.float64)
    for call in (compact, lambda net, x: compress(net, example=x)):
        with pytest.raises(PosterityError, match=r"changed the outputs .* overwrite tensors in place\?"):
            call(Net(), x)


def test_a_network_of_two_inputs_by_name():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.out = nn.Linear(2, 3), nn.Linear(4, 3), nn.Linear(3, 1)

        def forward(self, left, right):
            return self.out(torch.relu(self.a(left) + self.b(right)))

    net = Two().double()
    with torch.no_grad():
        net.a.weight[0] = net.b.weight[0] = 0
        net.out.weight[0, 1] = 0
    example = {"right": torch.ones(2, 4, dtype=torch.float64), "left": torch.ones(2, 2, dtype=torch.float64)}
    small = compact(net, example).module
    torch.testing.assert_close(small(**example), net(**example), **EXACT)
    assert small.get_submodule("out").in_features == 1
    with pytest.raises(PosterityError, match="'middle'"):
        compact(net, {**example, "middle": torch.ones(2, 1)})
