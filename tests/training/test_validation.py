"""Held-out data: checked, weighted, and what early stopping goes back to."""

import pytest
import torch
from torch import nn

import posterity as pst
from posterity.optim.config import OptimizerConfig
from posterity.training.watch import settled
from posterity.types import Plan
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


@pytest.mark.parametrize(
    ("method", "epoch"),
    [
        (pst.MeanField(), 1),
        (pst.MeanField(kl_schedule="linear"), 6),  # whole from step 0.25·20·5 on, the first of epoch 6
        (pst.MeanField(kl_schedule="blundell"), 1),  # the same in every epoch
        (pst.MeanField(kl_schedule="cyclical"), 18),  # the last of 4 cycles begins after 15 epochs and rises for 2.5
        (pst.HWA(of=pst.MeanField(kl_schedule="linear")), 6),
        (pst.IVON(warmup=0.5), 11),
        (pst.SparseVD(), 19),  # fine-tuning, not the steps without KL at the start
        (pst.Cyclical(cycles=2, explore=0.5, samples=1), 16),  # the noisy half of the last cycle
        (pst.Snapshot(cycles=2), 1),  # never any noise
    ],
    ids=repr,
)
def test_early_stopping_counts_epochs_once_the_temperature_stays(method, epoch):
    plan = Plan(num_data=40, steps=100, steps_per_epoch=5, batch_size=8, algorithm=OptimizerConfig("sgd"))
    assert settled(method.schedule(plan).temperature, plan) == 5 * epoch


def test_early_stopping_does_not_go_back_to_before_the_kl_was_whole():
    seen = []

    class Look:
        def on_epoch(self, run, figures):
            seen.append(method.moments(run)[1]["0.weight"].clone())

    held = (X[40:], 1 - LABELS[40:])  # the best is the first epoch that counts: what is learned is wrong
    training = pst.Training(
        batch_size=8, lr=0.1, schedule="constant", validation=held, patience=2, callbacks=(Look(),), **QUIET
    )
    method = pst.MeanField(kl_schedule="linear", prior=pst.priors.Normal(10.0))
    q = pst.fit(mlp(), method, (X[:40], LABELS[:40]), epochs=20, training=training)
    losses = [row["validation_loss"] for row in q.history]
    assert min(losses) == losses[0] and len(losses) >= 6 + 2
    best = losses.index(min(losses[5:]))
    torch.testing.assert_close(q.variance()["0.weight"], seen[best])


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
