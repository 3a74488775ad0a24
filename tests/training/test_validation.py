"""Held-out data: checked, weighted, and what early stopping goes back to."""

import pytest
import torch
from torch import nn

import posterity as pst
from tests.training.problem import LABELS, QUIET, X, mlp


@pytest.mark.parametrize(
    ("held", "match"),
    [
        ((X, LABELS + 5), "validation data: class targets run from 5 to 6"),
        ([(X, LABELS.double())], "validation data: Categorical needs integer"),
        ((X[:, :2], LABELS), "validation data: the network cannot take inputs"),
    ],
)
def test_validation_data_that_do_not_fit_are_refused_before_the_first_step(held, match):
    with pytest.raises(pst.PosterityError, match=match):
        pst.fit(mlp(), pst.MAP(), (X, LABELS), epochs=1, training=pst.Training(validation=held, **QUIET))


@pytest.mark.parametrize("count", [2, 3])
def test_a_validation_fraction_of_a_list_of_batches_is_refused(count):
    training = pst.Training(validation=0.25, **QUIET)
    with pytest.raises(pst.PosterityError, match="a validation fraction needs tensors"):
        pst.fit(mlp(), pst.MAP(), [(X, LABELS)] * count, epochs=1, training=training)


def test_weights_of_validation_examples_count_as_copies():
    weights = torch.tensor([3.0, 0.0] * 10, dtype=torch.float64)
    held = [(X[40:], LABELS[40:], weights)]
    q = pst.fit(mlp(), pst.MAP(), (X[:40], LABELS[:40]), epochs=2, training=pst.Training(validation=held, **QUIET))
    own = -(q.predict(X[40:]).log_prob(LABELS[40:]) * weights).mean().item()
    assert q.history[-1]["validation_loss"] == pytest.approx(own, rel=1e-6)


def test_early_stopping_keeps_the_best():
    torch.manual_seed(0)
    held = (X[40:], LABELS[40:])
    training = pst.Training(batch_size=8, lr=0.3, schedule="constant", validation=held, patience=3, **QUIET)
    q = pst.fit(mlp(), pst.MAP(prior=pst.priors.Normal(50.0)), (X[:40], LABELS[:40]), epochs=200, training=training)
    losses = [row["validation_loss"] for row in q.history]
    assert len(losses) < 200 and min(losses) == losses[-4]
    assert -q.predict(held[0]).log_prob(held[1]).mean().item() == pytest.approx(min(losses), rel=1e-6)


def test_early_stopping_keeps_the_spread_and_the_noise_of_the_best():
    generator = torch.Generator().manual_seed(0)
    targets = X[:, :1] + 0.3 * torch.randn(len(X), 1, dtype=torch.float64, generator=generator)
    seen = []

    class Look:
        def on_epoch(self, run, figures):
            seen.append((run.optimizer.moments(run.module)[1]["0.weight"].clone(), run.noise.frozen().std))

    held = (X[40:], targets[40:])
    training = pst.Training(batch_size=8, lr=1.0, validation=held, patience=3, callbacks=(Look(),), **QUIET)
    method, data = pst.IVON(beta2=0.9), (X[:40], targets[:40])
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    q = pst.fit(network, method, data, epochs=200, training=training)
    losses = [row["validation_loss"] for row in q.history]
    assert len(losses) < 200 and min(losses) == losses[-4]
    variance, noise = seen[-4]
    torch.testing.assert_close(q.variance()["0.weight"], variance)
    assert q.likelihood.std == noise


def test_the_doctor_looks_at_a_run_that_stopped_early_too():
    training = pst.Training(batch_size=8, lr=0.1, schedule="constant", validation=(X, 1 - LABELS), patience=1, **QUIET)
    with pytest.warns(pst.PosterityWarning) as said:
        q = pst.fit(mlp(), pst.MeanField(init_std=1e-12), (X, LABELS), epochs=200, training=training)
    assert len(q.history) < 200
    assert any("std has collapsed" in str(warning.message) for warning in said)


@pytest.mark.filterwarnings("ignore:the chain gave 0 samples")
@pytest.mark.parametrize("method", [pst.SWA(), pst.SGLD()], ids=repr)
def test_early_stopping_before_there_are_snapshots_says_what_to_leave_out(method):
    training = pst.Training(batch_size=8, validation=(X, 1 - LABELS), patience=1, **QUIET)
    with pytest.raises(pst.PosterityError, match=r"stopped early, after 0 .*: leave patience out"):
        pst.fit(mlp(), method, (X, LABELS), epochs=200, training=training)


def test_a_validation_fraction_is_held_out():
    q = pst.fit(mlp(), pst.MAP(), (X, LABELS), epochs=2, training=pst.Training(validation=0.25, **QUIET))
    assert "validation_loss" in q.history[-1]
