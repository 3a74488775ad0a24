import copy

import pytest
import torch
from torch import nn

from posterity.compression import compact, speed
from posterity.compression.flops import flops
from posterity.compression.sparse import SparseLinear, with_sparse_layers


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
    back = sparse.dense()
    assert torch.equal(back.weight, dense.weight)
    torch.testing.assert_close(copy.deepcopy(sparse)(x), sparse(x), rtol=0, atol=0)


@pytest.mark.parametrize(("times", "expected"), [((0.5, 0.5), ["0"]), ((0.5, 0.95), []), ((1.2, 0.1), [])])
def test_layers_run_sparse_where_both_batch_sizes_are_faster(monkeypatch, times, expected):
    # The layer full of weights is not even tried.
    asked = iter(times)
    monkeypatch.setattr("posterity.compression.sparse.ratio", lambda candidate, dense: next(asked))
    example = torch.zeros(2, 40).double()
    network = compact(nn.Sequential(pruned(40, 40, 0.05), nn.Tanh(), pruned(10, 40, 1.0)), example).module
    sparse, layers = with_sparse_layers(network, example, (1, 128))
    assert layers == expected
    assert type(sparse.get_submodule("0")) is (SparseLinear if expected else nn.Linear)
    assert type(network.get_submodule("0")) is nn.Linear


def test_flops_by_hand():
    network = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Flatten(), nn.Linear(3 * 16, 5))
    assert flops(network, torch.zeros(4, 2, 4, 4)) == 2 * (3 * 2 * 9 * 16 + 48 * 5)
    layer = pruned(20, 30, 0.1)
    assert flops(SparseLinear(layer), torch.zeros(2, 30).double()) == 2 * int((layer.weight != 0).sum())


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
