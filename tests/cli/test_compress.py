import json

import onnxruntime
import pytest
import torch
from typer.testing import CliRunner

import posterity as pst
from posterity import data
from posterity.cli.folder import RunFolder
from posterity.cli.main import app
from posterity.compression.criterion import accuracy
from posterity.types import PosterityError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A pruned network on the embedded digits."""
    folder = tmp_path_factory.mktemp("runs") / "pruned"
    options = ["--method", "pruning", "--data", "digits", "--model", "mlp", "--epochs", "8"]
    settings = ("keep=0.1", "whole_units=true", "per_layer=true")
    changes = [part for setting in settings for part in ("--set", f"method.{setting}")]
    result = CliRunner().invoke(app, ["fit", *options, *changes, "--out", str(folder)])
    assert result.exit_code == 0, result.output
    return folder


def compress(run, *options):
    return CliRunner().invoke(app, ["compress", str(run), *map(str, options)])


def test_onnx_from_the_shell(run, tmp_path):
    out, figures = tmp_path / "small.onnx", tmp_path / "figures.json"
    result = compress(run, "--out", out, "--report", figures)
    assert result.exit_code == 0, result.output
    for expected in ("fc1.weight", "zeros", "bytes on disk", "FLOPs", "batch 128", "accuracy", "saved in"):
        assert expected in result.output
    assert f"{out.stat().st_size:,} bytes, zeros included" in result.output.replace("\n", " ")
    posterior = RunFolder(run).posterior()
    x, y = data.load("digits").test
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    outputs = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
    torch.testing.assert_close(outputs.softmax(-1), posterior.predict(x).probs, rtol=1e-4, atol=1e-4)
    report = json.loads(figures.read_text())
    assert report["ratio"] == pytest.approx(17_400 / (1_640 + 1_000))  # a tenth of the hidden units, all outputs
    assert report["accuracy"][1] == pytest.approx(float((outputs.argmax(-1) == y).float().mean()))


def test_sparse_file_from_the_shell(run, tmp_path):
    out = tmp_path / "small.safetensors"
    result = compress(run, "--out", out, "--bits", "8", "--keep", "0.05")
    assert result.exit_code == 0 and "zeros included" not in result.output, result.output
    module = RunFolder(run).posterior().module
    loaded = pst.compression.load(out, module)
    left = sum(int((p != 0).sum()) for p in loaded.parameters() if p.dim() > 1)
    assert left <= 0.05 * sum(p.numel() for p in module.parameters() if p.dim() > 1) + 1


def test_a_limit_on_the_loss_of_accuracy(run, tmp_path):
    """What goes is decided on the last tenth of the training data; the test data are only counted."""
    figures = tmp_path / "figures.json"
    result = compress(run, "--out", tmp_path / "f.safetensors", "--max-drop", "0.01", "--report", figures)
    assert result.exit_code == 0, result.output
    digits, posterior = data.load("digits"), RunFolder(run).posterior()
    held = tuple(part[-130:] for part in digits.training())  # of 1,297
    expected = pst.compress(posterior, max_drop=0.01, validation=held)
    report = json.loads(figures.read_text())
    assert report["accuracy"] == list(expected.compression.accuracy)
    assert report["ratio"] == expected.compression.ratio
    assert f"accuracy on the test data: {accuracy(expected, digits.test):.2%}" in result.output


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--out", "small.zip"], "--out must end in .onnx, .pt2, .safetensors"),
        (["--out", "f.onnx", "--threshold", "3"], "a threshold on log alpha needs variances"),
        (["--out", "f.onnx", "--bits", "many"], "--bits takes a number or 'variance'"),
    ],
)
def test_bad_input_is_a_sentence_and_no_file(run, tmp_path, monkeypatch, options, sentence):
    monkeypatch.chdir(tmp_path)
    result = compress(run, *options)
    assert isinstance(result.exception, PosterityError) and sentence in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_numbers_have_no_accuracy_to_lose(tmp_path):
    short = ["--set", "training.steps=5"]
    assert CliRunner().invoke(app, ["fit", "--data", "sine", "--out", str(tmp_path / "r"), *short]).exit_code == 0
    result = compress(tmp_path / "r", "--out", tmp_path / "f.onnx", "--max-drop", "0.1")
    assert isinstance(result.exception, PosterityError) and "this run predicts numbers" in str(result.exception)
