"""Compressed files: exact without bits, within Δ/2 with them, as small as stated, whole or not there."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from posterity.compression import files
from posterity.types import PosterityError
from tests.compression.networks import BLOCKS, network


def sparse_layer(shape, keep, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(shape[1], shape[0], bias=False, dtype=dtype)
    layer.weight.data = torch.randn(shape, generator=generator, dtype=dtype)
    layer.weight.data *= torch.rand(shape, generator=generator) < keep
    return layer


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(1, 300), st.sampled_from([0.0, 0.002, 0.05, 0.4, 1.0]), st.integers(0, 99))
def test_packed_and_unpacked_is_exact(rows, columns, keep, seed):
    layer = sparse_layer((rows, columns), keep, seed)
    back = files.unpack(files.pack(layer), nn.Linear(columns, rows, bias=False))
    assert torch.equal(back.weight, layer.weight)


def only_entry(packed):
    """Form, bytes of the positions and bytes of the values of the one tensor."""
    [[_, _, shape, form, where, *_]] = packed["index"]
    flags = -(-shape[0] // 8) + -(-shape[1] // 8)
    return form, where, len(packed["bytes"]) - where - flags


@pytest.mark.parametrize("zeros", [0, 1, 254, 255, 256, 509, 510, 511, 1000])
def test_gaps_around_the_skip_byte(zeros):
    layer = nn.Linear(2500, 2, bias=False)
    layer.weight.data = torch.zeros(2, 2500)
    layer.weight.data[0] = 1.0  # so that no column can be left out
    layer.weight.data[1, zeros], layer.weight.data[1, 2 * zeros + 1] = 1.5, -2.5
    packed = files.pack(layer)
    assert torch.equal(files.unpack(packed, layer).weight, layer.weight)
    where = torch.tensor([zeros, 2 * zeros + 1])
    gaps = files._gaps(where)
    assert len(gaps) == 2 + 2 * (zeros // 255)
    assert files._positions("gaps", gaps, 2500).tolist() == where.tolist()


def test_a_block_of_living_rows_and_columns_costs_only_itself():
    layer = nn.Linear(800, 500, bias=False)
    layer.weight.data = torch.zeros(500, 800)
    layer.weight.data[100:383, 200:484] = torch.randn(283, 284, generator=torch.Generator().manual_seed(0))
    packed = files.pack(layer)
    assert only_entry(packed) == ("dense", 0, 4 * 283 * 284)
    assert torch.equal(files.unpack(packed, layer).weight, layer.weight)


@pytest.mark.parametrize(("keep", "form"), [(1.0, "dense"), (0.5, "bitmap"), (0.01, "gaps")])
def test_the_smallest_form_is_taken(keep, form):
    layer = sparse_layer((100, 200), keep)
    chosen, where, values = only_entry(files.pack(layer))
    kept = int((layer.weight != 0).sum())
    assert chosen == form
    assert values == 4 * (20_000 if form == "dense" else kept)
    assert {"dense": where == 0, "bitmap": where == 2500, "gaps": kept <= where <= kept + 20_000 // 255}[form]


def test_save_and_load_a_whole_network(tmp_path):
    masked = network(["conv", "residual", "depthwise"], seed=3)
    size = files.save(masked, tmp_path / "small.safetensors")
    back = files.load(tmp_path / "small.safetensors", network(["conv", "residual", "depthwise"], seed=3))
    assert size == (tmp_path / "small.safetensors").stat().st_size
    assert {n: v.tolist() for n, v in back.state_dict().items()} == {
        n: v.tolist() for n, v in masked.state_dict().items()
    }


def test_file_size_falls_with_the_weights(tmp_path):
    sizes = [files.save(sparse_layer((300, 784), keep), tmp_path / "f") for keep in (1.0, 0.1, 0.01)]
    assert files.dense_bytes(sparse_layer((300, 784), 1.0)) == 4 * 300 * 784
    overhead = 500  # the header
    assert sizes[0] <= 4 * 235_200 + overhead
    assert sizes[1] <= 1.05 * 0.1 * 235_200 * 5 + overhead  # a float and a gap byte each
    assert sizes[2] <= 1.05 * (0.01 * 235_200 * 5 + 235_200 / 255) + overhead
    assert files.save(sparse_layer((300, 784), 0.1), tmp_path / "f", bits=8) <= 1.05 * 0.1 * 235_200 * 2 + overhead


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(2, 16), st.sampled_from([0.02, 0.5, 1.0]), st.integers(0, 99))
def test_quantised_error_is_within_its_bound(bits, keep, seed):
    layer = sparse_layer((20, 30), keep, seed, torch.float64)
    back = files.unpack(files.pack(layer, bits), layer)
    step = float(layer.weight.detach().abs().max()) / (2 ** (bits - 1) - 1)
    assert float((back.weight - layer.weight).detach().abs().max()) <= step / 2 * (1 + 1e-9)
    assert bool((back.weight[layer.weight == 0] == 0).all())
    assert len(back.weight.unique()) <= 2**bits - 1


def test_bits_from_variance_by_hand():
    mean = {"a": torch.tensor([[1.0, -0.5, 0.0]]), "b": torch.ones(1, 2), "c": torch.ones(1, 1), "bias": torch.ones(1)}
    variance = {
        "a": torch.tensor([[0.01, 0.01, 100.0]]),  # the pruned weight does not count: std 0.1, 10 levels, 5 bits
        "b": torch.full((1, 2), 9.0),  # a spread beyond the weight itself: the least there is
        "c": torch.full((1, 1), 1e-12),  # more than 16 bits: exact
        "bias": torch.ones(1),
    }
    bits = files.bits_from_variance(mean, variance)
    assert bits == {"a": 5, "b": 2}
    top = 2 ** (bits["a"] - 1) - 1
    assert 1.0 / top <= 0.1 < 1.0 / (2 ** (bits["a"] - 2) - 1)


def test_bad_bits_and_foreign_files_are_refused(tmp_path):
    layer, path = sparse_layer((3, 4), 0.5), tmp_path / "f"
    for bits in (0, 1, 17, 3.0, "eight", {"weight": 4.5}):
        with pytest.raises(PosterityError, match="from 2 to 16"):
            files.save(layer, path, bits=bits)
    with pytest.raises(PosterityError, match="no weight of the network"):
        files.save(layer, path, bits={"nothing": 8})
    assert list(tmp_path.iterdir()) == []  # nothing half-written
    files.save(layer, path)
    with pytest.raises(PosterityError, match=r"shape \(3, 4\)"):
        files.load(path, nn.Linear(4, 5, bias=False))
    with pytest.raises(PosterityError, match="'bias' is in one of them only"):
        files.load(path, nn.Linear(4, 3))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(PosterityError, match="damaged"):
        files.load(path, layer)


def test_every_structure_survives_the_disk(tmp_path):
    masked = network(list(BLOCKS[:6]), seed=1)
    files.save(masked, tmp_path / "f")
    again = files.load(tmp_path / "f", masked)
    assert all(
        torch.equal(a, b) for a, b in zip(masked.state_dict().values(), again.state_dict().values(), strict=True)
    )
