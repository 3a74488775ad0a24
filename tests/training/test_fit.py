"""The loop: the ridge solution, forms of data and weights, precision, logging, and a loss that is no number."""

import io
import logging
import re
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as pst
from tests.training.problem import LABELS, QUIET, X, Y, linear, mlp


@pytest.mark.parametrize("prior_std", [0.3, 1.0])
@pytest.mark.parametrize("prior", ["ridge", "per-parameter"])
def test_map_is_the_ridge_solution(prior_std, prior):
    noise = 0.5
    exact = torch.linalg.solve(X.T @ X / noise**2 + torch.eye(3) / prior_std**2, X.T @ Y / noise**2)
    believed = pst.priors.Normal(prior_std if prior == "ridge" else {"weight": prior_std})
    training = pst.Training(batch_size=60, lr=0.05, steps=3000, **QUIET)
    q = pst.fit(
        linear(), pst.MAP(prior=believed), (X, Y), likelihood=pst.likelihoods.Gaussian(noise), training=training
    )
    torch.testing.assert_close(q.mean()["weight"], exact.T, rtol=1e-4, atol=1e-4)


def test_noise_is_learned_to_its_maximum_likelihood():
    q = pst.fit(
        linear(),
        pst.MAP(prior=pst.priors.Normal(100.0)),
        (X, Y),
        training=pst.Training(batch_size=60, lr=0.05, steps=1500, **QUIET),
    )
    residual = Y - X @ torch.linalg.lstsq(X, Y).solution
    assert q.likelihood.std == pytest.approx(float(residual.square().mean().sqrt()), rel=1e-3)


def test_minibatches_find_the_same_point():
    training = pst.Training(batch_size=7, lr=0.02, steps=4000, **QUIET)
    q = pst.fit(linear(), pst.MAP(), (X, Y), likelihood=pst.likelihoods.Gaussian(0.5), training=training)
    exact = torch.linalg.solve(X.T @ X * 4 + torch.eye(3), X.T @ Y * 4)
    torch.testing.assert_close(q.mean()["weight"], exact.T, rtol=0, atol=5e-3)


def test_loader_dataset_and_tensors_agree_on_full_batches():
    means = []
    for data in (
        (X, Y),
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=60),
        [(X, Y)],
        [{"input": X, "labels": Y}],
    ):
        torch.manual_seed(0)
        net = linear()
        training = pst.Training(batch_size=60, steps=20, **QUIET)
        means.append(
            pst.fit(net, pst.MAP(), data, likelihood=pst.likelihoods.Gaussian(0.5), training=training).mean()["weight"]
        )
    for mean in means[1:]:
        torch.testing.assert_close(mean, means[0])


def test_of_a_data_set_the_training_part_is_learned():
    moons = pst.data.load("two-moons")
    network = pst.models.mlp(2, 2, hidden=(4,))
    whole, part = (pst.fit(network, pst.MAP(), given, epochs=1).mean() for given in (moons, moons.train))
    assert all(torch.equal(whole[name], part[name]) for name in part)


def test_example_weights_count_as_copies():
    weights = torch.tensor([2.0] + [1.0] * 59, dtype=torch.float64)
    torch.manual_seed(0)
    net = linear()
    noise = pst.likelihoods.Gaussian(0.5)
    weighted = pst.fit(
        net, pst.MAP(), [(X, Y, weights)], likelihood=noise, training=pst.Training(steps=2000, lr=0.05, **QUIET)
    )
    w = weights[:, None]
    exact = torch.linalg.solve((X * w).T @ X * 4 + torch.eye(3), (X * w).T @ Y * 4)
    torch.testing.assert_close(weighted.mean()["weight"], exact.T, rtol=1e-4, atol=1e-4)


def test_lazy_layers_are_filled_in_without_touching_the_users():
    lazy = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    pst.fit(lazy, pst.MAP(), (X.float(), LABELS), epochs=1, training=pst.Training(**QUIET))
    assert isinstance(lazy[0].weight, nn.parameter.UninitializedParameter)


def test_bfloat16_autocast_trains():
    q = pst.fit(
        mlp().float(), pst.MAP(), (X.float(), LABELS), epochs=30, training=pst.Training(autocast=True, lr=0.1, **QUIET)
    )
    assert (q.predict(X.float()).label == LABELS).float().mean() > 0.85
    assert q.mean()["0.weight"].dtype == torch.float32


def test_the_likelihood_is_said_when_it_is_inferred(caplog):
    with caplog.at_level(logging.INFO, "posterity"):
        pst.fit(mlp(), pst.MAP(), (X, LABELS), epochs=1, training=pst.Training(**QUIET))
    assert "Categorical" in caplog.text


@pytest.mark.parametrize(("last", "warned"), [(nn.Softmax(1), True), (nn.LogSoftmax(1), False), (nn.ReLU(), False)])
def test_of_a_network_that_ends_in_a_softmax_is_warned(last, warned):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pst.fit(nn.Sequential(mlp(), last), pst.MAP(), (X, LABELS), epochs=1, training=pst.Training(**QUIET))
    assert [w.category for w in caught if "softmax" in str(w.message)] == [pst.PosterityWarning] * warned


def test_a_loss_that_is_no_number_stops_the_fit_and_keeps_the_checkpoint(tmp_path):
    file = tmp_path / "run.safetensors"
    training = pst.Training(
        batch_size=60, lr=1e4, optimizer="sgd", schedule="constant", checkpoint=file, checkpoint_every=1, **QUIET
    )
    with pytest.raises(pst.PosterityError, match=r"at step \d+.*checkpoint is"):
        pst.fit(linear(), pst.MAP(), (X, Y), likelihood=pst.likelihoods.Gaussian(0.5), epochs=500, training=training)
    from posterity.files import read_state

    weights = read_state(file, "checkpoint")["run"]["module"]["weight"]
    assert weights.isfinite().all()


class Root(nn.Module):
    """Its loss is finite, and the gradient of its scale is 0·∞."""

    def __init__(self):
        super().__init__()
        self.line, self.scale = linear(), nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        return self.line(x) + 0 * self.scale.sqrt()


def test_weights_that_a_step_has_broken_are_neither_a_posterior_nor_a_checkpoint(tmp_path):
    """The loss is that of before the step."""
    last, kept = {"steps": 1}, {"steps": 2, "checkpoint": tmp_path / "run", "checkpoint_every": 1}
    for options in (last, kept):
        with pytest.raises(pst.PosterityError, match="parameter 'scale' is not finite after step 1"):
            training = pst.Training(**options, **QUIET)
            pst.fit(Root(), pst.MAP(), (X, Y), likelihood=pst.likelihoods.Gaussian(0.5), training=training)
    assert not (tmp_path / "run").exists()


def test_counts_and_seeds_may_be_numpys_integers(tmp_path):
    one, kept = np.int64(1), {"checkpoint": tmp_path / "run"}
    training = pst.Training(batch_size=np.int64(16), accumulate=np.int64(2), **kept, **QUIET)
    posterior = pst.fit(mlp(), pst.MAP(), (X, LABELS), epochs=one, seed=one, members=2 * one, training=training)
    pst.save(posterior, tmp_path / "q")
    assert pst.load(tmp_path / "q", mlp()).seed == posterior.seed


def test_other_numbers_may_be_numpys_too(tmp_path):
    held = {"validation": np.float32(0.2), "patience": np.int64(3), "accumulate": np.uint16(2)}
    training = pst.Training(batch_size=16, lr=np.float32(0.01), **held, **QUIET)
    likelihood = pst.likelihoods.Categorical(temperature=np.float32(0.5))
    method = pst.SWAG(rank=np.int64(2), start=np.float32(0.5), every=np.int64(1))
    posterior = pst.fit(mlp(), method, (X, LABELS), likelihood=likelihood, epochs=8, training=training)
    pst.save(posterior, tmp_path / "q")
    again = pst.load(tmp_path / "q", mlp())
    assert again.likelihood.temperature == 0.5
    torch.testing.assert_close(again.predict(X, np.int64(4)).probs, posterior.predict(X, 4).probs)
    data = (X.numpy(), LABELS.numpy())
    counts = {"draws": np.int64(2), "resamples": np.int64(5), "bins": np.int64(4)}
    few = pst.evaluate(again, data, ood={"far": 9 * data[0]}, **counts)
    assert few.figures == pst.evaluate(again, data, ood={"far": 9 * X}, draws=2, resamples=5, bins=4).figures
    with pytest.raises(pst.PosterityError, match=r"must lie in \(0, 1\), got 2.0"):
        pst.Training(validation=np.float32(2))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_classes_are_integers_of_any_size(dtype):
    network = mlp()
    one, other = (
        pst.fit(network, pst.MAP(), (X, labels), epochs=1, training=pst.Training(**QUIET)).mean()
        for labels in (LABELS, LABELS.to(dtype))
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.compile's own
def test_compiled_training_is_the_same_training():
    torch.manual_seed(0)
    net = mlp()
    plain, compiled = (
        pst.fit(net, pst.MAP(), (X, LABELS), epochs=3, training=pst.Training(batch_size=20, compile=c, **QUIET))
        for c in (False, True)
    )
    torch.testing.assert_close(compiled.mean(), plain.mean(), rtol=1e-6, atol=1e-8)


def test_augmentation_sees_every_batch_and_its_own_stream():
    seen = []

    def augment(inputs, generator):
        seen.append(float(torch.rand((), generator=generator)))
        return inputs

    pst.fit(mlp(), pst.MAP(), (X, LABELS), epochs=2, training=pst.Training(batch_size=20, augment=augment, **QUIET))
    assert len(seen) == len(set(seen)) == 6


def test_a_run_that_ends_within_an_epoch_says_how_far_it_came(capsys):
    """60 examples in batches of 6 are ten steps an epoch."""
    pst.fit(linear(), pst.MAP(), (X, Y), training=pst.Training(batch_size=6, steps=13, progress=True))
    lines = capsys.readouterr().err.splitlines()
    assert "epoch 1/1.3 " in lines[0] and "epoch 1.3/1.3 " in lines[1]


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_bar_keeps_its_title_and_the_time_left_however_much_a_method_measures(monkeypatch, columns):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", terminal)
    for name, value in {"COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    pst.fit(mlp(), pst.SparseVD(), (X, LABELS), epochs=4)
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).replace("\r", "\n").strip().splitlines()[-1]
    assert re.match(r"SparseVD ━+ \d:\d\d:\d\d loss ", last) and len(last) <= columns
