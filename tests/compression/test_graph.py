"""A posterior as one ONNX graph: onnxruntime gives the answers of ``posterior.predict``, or there is no file."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import posterity as pst
from posterity.calling import InputSpec
from posterity.posteriors import DiagonalGaussian, Empirical, Mixture, Stochastic
from tests.compression.networks import Remembers


def served(path, x):
    """What onnxruntime alone answers, by name."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"inputs": x.numpy()}), strict=True))


def gaussian(module, likelihood, shape, std=0.1):
    """Independent weights of this std around the network's own."""
    means = {name: p.detach() for name, p in module.named_parameters()}
    stds = {name: torch.full_like(p, std) for name, p in means.items()}
    spec = InputSpec((shape,), ("float32",))
    return DiagonalGaussian(module, likelihood, means, stds, inputs=spec, seed=3)


def check(path, posterior, draws, x):
    p = posterior.predict(x, draws=draws)
    for name, got in served(path, x).items():
        np.testing.assert_allclose(got, getattr(p, name).numpy(), rtol=1e-5, atol=1e-5, err_msg=name)


def test_a_linear_network_with_known_moments(tmp_path):
    torch.manual_seed(0)
    layer = nn.Linear(4, 1)
    posterior = gaussian(layer, pst.likelihoods.Gaussian(0.5), (4,), std=0.2)
    pst.export(posterior, tmp_path / "linear.onnx", "moments")
    x = torch.randn(6, 4)
    got = served(tmp_path / "linear.onnx", x)
    epistemic = 0.04 * (x.square().sum(1, keepdim=True) + 1)  # Σ x² var(w) + var(b)
    np.testing.assert_allclose(got["mean"], layer(x).detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["epistemic"], epistemic, rtol=1e-5)
    np.testing.assert_allclose(got["aleatoric"], np.full((6, 1), 0.25), rtol=1e-6)
    np.testing.assert_allclose(got["std"], (epistemic + 0.25).sqrt(), rtol=1e-5)


def test_counts_of_a_wide_log_rate(tmp_path):
    posterior = gaussian(nn.Linear(4, 1), pst.likelihoods.Poisson(), (4,), std=0.7)
    pst.export(posterior, tmp_path / "counts.onnx", "moments")
    check(tmp_path / "counts.onnx", posterior, "moments", torch.randn(6, 4, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("draws", [3, "moments"])
def test_convolutions_pooling_and_relu(draws, tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 10))
    posterior = gaussian(network, pst.likelihoods.Categorical(temperature=1.5), (2, 6, 6))
    size = pst.export(posterior, tmp_path / "small.onnx", draws)
    assert [p.name for p in tmp_path.iterdir()] == ["small.onnx"]
    assert size == (tmp_path / "small.onnx").stat().st_size
    for count in (1, 7):
        check(tmp_path / "small.onnx", posterior, draws, torch.randn(count, 2, 6, 6))


def test_each_draw_brings_its_own_batch_norm_buffers(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    batches = [(torch.randn(20, 4) + 2, torch.zeros(20).long()) for _ in range(4)]
    posterior = gaussian(network, pst.likelihoods.Categorical(), (4,)).refresh(batches, draws=3)
    pst.export(posterior, tmp_path / "norm.onnx", 3)
    check(tmp_path / "norm.onnx", posterior, 3, torch.randn(5, 4))


def test_a_mixture_of_points(tmp_path):
    likelihood = pst.likelihoods.Bernoulli()
    networks = [nn.Linear(4, 1) for _ in range(3)]
    points = [Empirical(n, likelihood, [{k: p.detach() for k, p in n.named_parameters()}]) for n in networks]
    pst.export(Mixture(points), tmp_path / "three.onnx", 3, example=torch.randn(2, 4))
    check(tmp_path / "three.onnx", Mixture(points), 3, torch.randn(5, 4))


def test_what_no_graph_can_hold_is_refused(tmp_path):
    network = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    likelihood = pst.likelihoods.Categorical()
    dropout = Stochastic(network, likelihood, inputs=InputSpec(((4,),), ("float32",)))
    with pytest.raises(pst.PosterityError, match="draws of Stochastic are not sets of weights"):
        pst.export(dropout, tmp_path / "f.onnx")
    with pytest.raises(pst.PosterityError, match="independent Gaussian weights, got Stochastic"):
        pst.export(dropout, tmp_path / "f.onnx", "moments")
    with pytest.raises(pst.PosterityError, match="give example="):
        pst.export(Stochastic(network, likelihood), tmp_path / "f.onnx")
    two = Stochastic(network, likelihood, inputs=InputSpec(((4,), (4,)), ("float32", "float32")))
    with pytest.raises(pst.PosterityError, match="takes several"):
        pst.export(two, tmp_path / "f.onnx")
    with pytest.raises(pst.PosterityError, match="draws must be a positive number or 'moments', got 0"):
        pst.export(gaussian(nn.Linear(4, 3), likelihood, (4,)), tmp_path / "f.onnx", 0)
    for example in (torch.randn(2, 5), torch.randn(2, 4).double(), torch.randn(2, 4).numpy()):
        with pytest.raises(pst.PosterityError, match=r"inputs (have shape|are torch.float64|must be tensors)"):
            pst.export(gaussian(nn.Linear(4, 3), likelihood, (4,)), tmp_path / "f.onnx", example=example)
    with pytest.raises(pst.PosterityError, match="export writes posteriors, got Linear"):
        pst.export(nn.Linear(4, 3), tmp_path / "f.onnx", example=torch.randn(2, 4))
    assert list(tmp_path.iterdir()) == []


def test_a_posterior_moved_to_double_precision_makes_its_own_example(tmp_path):
    torch.manual_seed(0)
    posterior = gaussian(nn.Linear(4, 3), pst.likelihoods.Categorical(), (4,)).to("cpu", torch.float64)
    pst.export(posterior, tmp_path / "double.onnx", 3)
    check(tmp_path / "double.onnx", posterior, 3, torch.randn(5, 4, dtype=torch.float64))


def test_a_network_that_remembers_a_batched_pass(tmp_path):
    """What vmap leaves on it has no storage to copy."""
    torch.manual_seed(0)
    posterior, x = gaussian(Remembers(), pst.likelihoods.Categorical(), (4,)), torch.randn(5, 4)
    posterior.predict(x, 8, compute=pst.Compute(batched=True, chunk=4))
    pst.export(posterior, tmp_path / "small.onnx", 4)
    check(tmp_path / "small.onnx", posterior, 4, x)


def test_an_operation_that_onnxruntime_lacks_is_refused_in_a_sentence(tmp_path):
    """The moments of a ReLU need the error function, which it has in single precision alone."""
    network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    posterior = gaussian(network, pst.likelihoods.Categorical(), (4,)).to("cpu", torch.float64)
    with pytest.raises(pst.PosterityError, match="onnxruntime cannot run the network, which may go in single"):
        pst.export(posterior, tmp_path / "double.onnx", "moments")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("draws", [3, "moments"])
def test_one_head_of_several_and_the_prediction_after_the_export(draws, tmp_path):
    """What the exporter's trace makes of the heads has no numbers, and must not be what a prediction finds later."""
    torch.manual_seed(0)
    likelihood = pst.likelihoods.MultiHead(heads=((0, 3), (1, 2)), head=1)
    posterior = gaussian(nn.Linear(4, 4), likelihood, (4,))
    pst.export(posterior, tmp_path / "head.onnx", draws)
    x = torch.randn(5, 4)
    check(tmp_path / "head.onnx", posterior, draws, x)
    assert posterior.predict(x, draws).probs[:, [0, 3]].tolist() == [[0, 0]] * 5
