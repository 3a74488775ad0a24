import copy

import pytest
import torch
from torch import nn

from posterity.compression import compact, speed
from posterity.compression.flops import flops
from posterity.compression.layers import PairedMaxPool2d, SparseLinear, with_faster_layers, with_plain_layers
from posterity.compression.pipeline import _numbers


def pruned(out, inner, keep, bias=True):
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(inner, out, bias=bias, dtype=torch.float64)
    layer.weight.data *= torch.rand(out, inner, generator=generator) < keep
    return layer


@pytest.mark.parametrize("keep", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7,), (2, 7), (2, 3, 7)])
def test_sparse_layer_computes_the_dense_one(keep, bias, shape):
    dense = pruned(5, 7, keep, bias)
    sparse = SparseLinear(dense)
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(sparse(x), dense(x))
    assert sparse.kept == int((dense.weight != 0).sum())
    back = sparse.plain()
    assert torch.equal(back.weight, dense.weight)
    torch.testing.assert_close(copy.deepcopy(sparse)(x), sparse(x), rtol=0, atol=0)
    torch.testing.assert_close(copy.deepcopy(sparse).float()(x.float()), dense.float()(x.float()))


@pytest.mark.parametrize("size", [(1, 1, 4, 4), (3, 5, 20, 30), (2, 9, 31, 17), (40, 3, 8, 9)])
def test_paired_pooling_is_pooling(size):
    x = torch.randn(size, generator=torch.Generator().manual_seed(0))
    assert torch.equal(PairedMaxPool2d()(x), nn.MaxPool2d(2)(x))


@pytest.mark.parametrize(("times", "expected"), [((0.5, 1.0), True), ((0.95, 0.95), False), ((1.2, 0.1), False)])
def test_layers_change_where_nowhere_slower_and_somewhere_faster(monkeypatch, times, expected):
    asked = iter(times * 2)
    monkeypatch.setattr("posterity.compression.layers.ratio", lambda candidate, layer: next(asked))
    example = torch.zeros(2, 1, 8, 8).double()
    masked = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), pruned(40, 16, 0.2), nn.Tanh(), pruned(10, 40, 1.0))
    network = compact(masked, example, select_inputs=False).module
    faster, layers = with_faster_layers(network, example, (1, 128))
    assert layers == (["0", "2"] if expected else [])  # the layer full of weights is not even tried
    assert type(faster.get_submodule("2")) is (SparseLinear if expected else nn.Linear)
    assert type(network.get_submodule("2")) is nn.Linear
    assert type(with_plain_layers(faster).get_submodule("0")) is nn.MaxPool2d
    x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    for form in (faster, with_plain_layers(faster)):
        torch.testing.assert_close(form(x), masked(x))


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(3), nn.MaxPool2d(2, 1), nn.MaxPool2d(2, padding=1), nn.MaxPool2d(2, ceil_mode=True)]
)
def test_other_pools_stay(monkeypatch, pool):
    monkeypatch.setattr("posterity.compression.layers.ratio", lambda candidate, layer: 0.1)
    network = compact(nn.Sequential(pool), torch.zeros(2, 1, 9, 9)).module
    assert with_faster_layers(network, torch.zeros(2, 1, 9, 9), (1,))[1] == []
    pair = compact(nn.Sequential(nn.MaxPool2d((2, 2), (2, 2))), torch.zeros(2, 1, 9, 9)).module
    assert with_faster_layers(pair, torch.zeros(2, 1, 9, 9), (1,))[1] == ["0"]


def test_flops_by_hand():
    network = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Flatten(), nn.Linear(3 * 16, 5))
    assert flops(network, torch.zeros(4, 2, 4, 4)) == 2 * (3 * 2 * 9 * 16 + 48 * 5)
    layer = pruned(20, 30, 0.1)
    assert flops(SparseLinear(layer), torch.zeros(2, 30).double()) == 2 * int((layer.weight != 0).sum())


class _First(nn.Module):
    """The outputs of a layer that returns its state or its attention, too."""

    def __init__(self, layer: nn.Module, **options: bool) -> None:
        super().__init__()
        self.layer, self.options = layer, options

    def forward(self, x):
        tensors = (x, x, x) if isinstance(self.layer, nn.MultiheadAttention) else (x,)
        return self.layer(*tensors, **self.options)[0]


_ATTENTION = 2 * 5 * 8 * (3 * 8 + 8) + 2 * 2 * (2 * 5 * 5 * 4)  # 5 tokens of width 8, projections; two heads of 4


@pytest.mark.parametrize(
    ("network", "shape", "products"),
    [
        (nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2), (4, 9, 9), 2 * 8 * 2 * 9 * 25),
        (nn.Conv2d(4, 8, 3, dilation=2), (4, 9, 9), 2 * 8 * 4 * 9 * 25),
        (_First(nn.LSTM(6, 10, batch_first=True)), (5, 6), 2 * 5 * 4 * 10 * (6 + 10)),
        (_First(nn.GRU(6, 10, batch_first=True)), (5, 6), 2 * 5 * 3 * 10 * (6 + 10)),
        (_First(nn.MultiheadAttention(8, 2, batch_first=True), need_weights=True), (5, 8), _ATTENTION),
        (_First(nn.MultiheadAttention(8, 2, batch_first=True), need_weights=False), (5, 8), _ATTENTION),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (5, 8), _ATTENTION + 2 * 5 * 2 * 8 * 16),
    ],
)
@pytest.mark.parametrize("trainable", [True, False])
def test_flops_of_layers_that_torch_would_fuse(network, shape, products, trainable):
    """In single precision and without gradients torch has one call for all of it, which a counter takes for nothing."""
    fast = torch.backends.mha.get_fastpath_enabled()
    assert flops(network.eval().requires_grad_(trainable), torch.zeros(3, *shape)) == products
    assert torch.backends.mha.get_fastpath_enabled() == fast


def test_numbers_of_a_sparse_layer_are_its_non_zeros_and_biases():
    sparse, dense = pruned(20, 30, 0.1), nn.Linear(20, 3)
    kept = int((sparse.weight != 0).sum())
    assert _numbers(nn.Sequential(SparseLinear(sparse), nn.BatchNorm1d(20), dense)) == kept + 20 + 2 * 20 + 63


def test_rows_repeat_and_cut():
    example = {"x": torch.tensor([1, 2, 3])}
    assert speed.rows(example, 5)["x"].tolist() == [1, 2, 3, 1, 2]
    assert speed.rows((torch.tensor([1, 2]),), 1)[0].tolist() == [1]


class Witness(nn.Module):
    def __init__(self, name, log):
        super().__init__()
        self.name, self.log = name, log

    def forward(self, x):
        self.log.append((self.name, len(x), torch.get_num_threads(), torch.is_grad_enabled()))
        return x


def test_timings_take_turns_on_one_thread_and_leave_the_threads_alone():
    threads, log = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        seconds = speed.timings({name: Witness(name, log) for name in "ab"}, torch.zeros(3, 1), budget=0.0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert {name: len(rounds) for name, rounds in seconds.items()} == {"a": 25, "b": 25}
    assert [name for name, *_ in log[-50:]] == ["a", "b"] * 25
    assert all(entry[1:] == (3, 1, False) for entry in log)


def test_ratio_is_the_median_of_the_rounds():
    assert speed.ratio([2.0, 100.0, 3.0], [1.0, 1.0, 1.0]) == 3.0
    assert speed.ratio([1.0, 10.0, 2.0], [2.0, 20.0, 4.0]) == 0.5  # a slow round slows both
