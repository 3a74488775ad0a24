"""Exports: the file computes what the network does, or there is no file."""

import importlib.util

import pytest
import torch
from torch import nn

from posterity.compression import compact, export, load, save, to_onnx, to_torch_export
from posterity.compression.layers import PairedMaxPool2d, SparseLinear
from posterity.types import PosterityError
from tests.compression.networks import Remembers, inputs, network


@pytest.fixture(scope="module")
def small():
    masked = network(["conv", "residual", "branches", "depthwise", "max"], seed=5, ceil=False).float()
    module = compact(masked, inputs().float()).module
    module.set_submodule("1.hidden", SparseLinear(module.get_submodule("1.hidden")))
    pool = next(name for name, layer in module.named_modules() if isinstance(layer, nn.MaxPool2d))
    module.set_submodule(pool, PairedMaxPool2d())
    return module


def test_onnx_gives_the_same_outputs_at_any_batch(small, tmp_path):
    import onnxruntime

    size = to_onnx(small, inputs().float(), tmp_path / "small.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["small.onnx"]
    assert size == (tmp_path / "small.onnx").stat().st_size
    session = onnxruntime.InferenceSession(tmp_path / "small.onnx", providers=["CPUExecutionProvider"])
    for count in (1, 7):
        x = inputs(count).float()
        got = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
        torch.testing.assert_close(torch.from_numpy(got), small(x), rtol=1e-5, atol=1e-5)


def test_torch_export_gives_the_same_outputs(small, tmp_path):
    to_torch_export(small, inputs().float(), tmp_path / "small.pt2")
    assert [p.name for p in tmp_path.iterdir()] == ["small.pt2"]
    loaded = torch.export.load(tmp_path / "small.pt2").module()
    torch.testing.assert_close(loaded(inputs(7).float()), small(inputs(7).float()), rtol=1e-5, atol=1e-5)


def test_several_outputs_by_name_with_infinities_among_them(tmp_path):
    class Named(nn.Linear):
        def forward(self, x):
            logits = super().forward(x)
            return {"logits": logits.masked_fill(torch.tensor([True, False]), -torch.inf), "positive": logits > 0}

    for write, name in ((to_onnx, "f.onnx"), (to_torch_export, "f.pt2")):
        assert write(Named(3, 2), torch.randn(2, 3), tmp_path / name) > 0


def test_a_network_that_remembers_a_training_pass(tmp_path):
    """Its features have a graph behind them, with which torch copies nothing."""
    net, x = Remembers(), torch.randn(5, 4)
    expected = net(x)
    torch.testing.assert_close(compact(net, x).module(x), expected)
    assert to_onnx(net, x, tmp_path / "f.onnx") > 0
    assert to_torch_export(net, x, tmp_path / "f.pt2") > 0
    assert save(net, tmp_path / "f.safetensors") > 0
    torch.testing.assert_close(load(tmp_path / "f.safetensors", net)(x), expected)


def test_a_file_that_differs_is_not_written(monkeypatch, tmp_path):
    monkeypatch.setattr(export, "_run_onnx", lambda content, x: [torch.ones(len(x), 2)])
    with pytest.raises(PosterityError, match="onnxruntime gives outputs that differ"):
        to_onnx(nn.Linear(2, 2), torch.zeros(2, 2), tmp_path / "f.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_torch_cannot_export_is_one_sentence(tmp_path):
    class Branching(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(PosterityError, match=r"^torch cannot write Branching as ONNX: [^\n]+$"):
        to_onnx(Branching(), torch.ones(2, 2), tmp_path / "f.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PosterityError, match=r"ONNX export needs onnx, .* pip install onnx onnxscript onnxruntime"):
        to_onnx(nn.Linear(2, 2), torch.zeros(2, 2), tmp_path / "f.onnx")
    assert list(tmp_path.iterdir()) == []
