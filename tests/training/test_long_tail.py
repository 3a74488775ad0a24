"""Rare classes: logit adjustment is the Bayes-optimal shift, balanced sampling shows every class equally often."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as pst
from posterity.prediction import Classification
from posterity.probability.likelihoods import Categorical
from posterity.training.stream import Resident

PRIORS = torch.tensor([0.9, 0.08, 0.02], dtype=torch.float64)
MEANS = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
FLAT = pst.MAP(prior=pst.priors.Normal(1e4))


def log_density(x):
    """log p(x | y) for every class, but for a constant."""
    return -0.5 * (x[:, None] - MEANS).square().sum(-1)


def mixture(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.multinomial(PRIORS, n, replacement=True, generator=generator)
    return MEANS[y] + torch.randn(n, 2, generator=generator, dtype=torch.float64), y


def test_with_the_true_densities_both_worlds_are_bayes_rule():
    x, y = mixture(500)
    f, likelihood = log_density(x), Categorical(frequencies=PRIORS)
    in_data = (f + PRIORS.log()).softmax(1)
    torch.testing.assert_close(likelihood.log_prob(f, y), in_data.gather(1, y[:, None])[:, 0].log())
    torch.testing.assert_close(likelihood.loss(f, y), -likelihood.log_prob(f, y).mean())
    torch.testing.assert_close(likelihood.probs(f), f.softmax(1))
    expected = torch.diag_embed(in_data) - in_data[:, :, None] * in_data[:, None]
    torch.testing.assert_close(likelihood.hessian(f), expected)
    drawn = likelihood.sample(f[:1].expand(20_000, 3), torch.Generator().manual_seed(0)).bincount(minlength=3) / 20_000
    assert ((drawn - in_data[0]).abs() < 4 * (in_data[0] * (1 - in_data[0]) / 20_000).sqrt()).all()


def fitted(data, seed=0, **options):
    training = pst.Training(
        batch_size=len(data[1]), lr=0.1, steps=600, progress=False, balance=options.pop("balance", False)
    )
    q = pst.fit(nn.Linear(2, 3).double(), FLAT, data, training=training, seed=seed, **options)
    weight, bias = q.mean()["weight"], q.mean()["bias"]
    return q, weight - weight.mean(0), bias - bias.mean()


def test_the_adjusted_fit_is_the_plain_fit_shifted_by_the_log_frequencies():
    """Both maximise one likelihood in two parametrisations, so this holds on every sample."""
    data = mixture(2000)
    frequencies = data[1].bincount()
    _, weight, bias = fitted(data)
    q, same, adjusted = fitted(data, likelihood=Categorical(frequencies=frequencies))
    shift = frequencies.double().log()
    # Shifts of up to 3.8; what is left is what 600 steps of Adam leave.
    torch.testing.assert_close(same, weight, rtol=0, atol=0.02)
    torch.testing.assert_close(adjusted, bias - (shift - shift.mean()), rtol=0, atol=0.02)
    # The mixture's own: w_k = μ_k and b_k = −|μ_k|²/2. The 40 rarest examples leave an error of about 1/√40 = 0.16.
    torch.testing.assert_close(same, MEANS - MEANS.mean(0), rtol=0, atol=0.5)
    optimal = -0.5 * MEANS.square().sum(1)
    torch.testing.assert_close(adjusted, optimal - optimal.mean(), rtol=0, atol=0.6)
    fresh = torch.randn(3000, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64) + MEANS.repeat(
        1000, 1
    )
    found = (q.predict(fresh, draws=1).label == torch.arange(3).repeat(1000)).double().mean()
    best = (log_density(fresh).argmax(1) == torch.arange(3).repeat(1000)).double().mean()
    plain = ((log_density(fresh) + PRIORS.log()).argmax(1) == torch.arange(3).repeat(1000)).double().mean()
    assert plain < best - 0.15 and found > best - 0.02


def test_frequencies_are_stored_with_the_posterior(tmp_path):
    data = mixture(200)
    q, _, _ = fitted(data, likelihood=Categorical(frequencies=data[1].bincount(minlength=3)))
    pst.save(q, tmp_path / "q.safetensors")
    assert pst.load(tmp_path / "q.safetensors", nn.Linear(2, 3)).likelihood == q.likelihood
    assert pst.tempered(q, 2.0).likelihood.frequencies == q.likelihood.frequencies


def test_balanced_epochs_hold_every_class_equally_often():
    targets = torch.tensor([7] * 90 + [2] * 9 + [5] * 3)
    stream = Resident(torch.arange(102), targets, 32, seed=3, balance=True)
    epochs = [torch.cat([batch.inputs for batch, _ in stream.epoch(index)]) for index in range(200)]
    for chosen in epochs:
        assert len(chosen) == 102 and [(targets[chosen] == label).sum() for label in (2, 5, 7)] == [34, 34, 34]
    # Each of the 9 examples of class 2 comes 34/9 times an epoch, binomially: 200 epochs tell to 4 standard errors.
    times = torch.cat(epochs).bincount(minlength=102)[90:99] / 200
    assert ((times - 34 / 9).abs() < 4 * math.sqrt(34 / 9 * 8 / 9 / 200)).all()
    assert torch.cat([batch.inputs for batch in stream.once()]).sort().values.tolist() == list(range(102))


def test_balanced_sampling_finds_the_balanced_rule():
    q, _, bias = fitted(mixture(2000), balance=True)
    optimal = -0.5 * MEANS.square().sum(1)
    torch.testing.assert_close(bias, optimal - optimal.mean(), rtol=0, atol=0.8)
    assert q.likelihood == Categorical()


def test_balance_reaches_every_member():
    x, y = mixture(300)
    training = pst.Training(batch_size=300, lr=0.1, steps=300, progress=False, balance=True)
    q = pst.fit(nn.Linear(2, 3).double(), FLAT, (x, y), members=2, training=training)
    for part in q.parts:
        shares = part.predict(x[y == 2], draws=1).probs.mean(0)
        assert shares.argmax() == 2


def test_bad_tails_are_refused():
    x, y = mixture(50)
    balance = pst.Training(balance=True, progress=False)
    bad = [
        lambda: Categorical(frequencies=[3, 0, 1]),
        lambda: Categorical(frequencies=torch.ones(2, 2)),
        lambda: pst.fit(nn.Linear(2, 3).double(), FLAT, (x, y), likelihood=Categorical(frequencies=[1, 2])),
        lambda: pst.fit(nn.Linear(2, 1).double(), FLAT, (x, x[:, :1]), training=balance),
        lambda: pst.fit(nn.Linear(2, 3).double(), FLAT, DataLoader(TensorDataset(x, y)), training=balance),
    ]
    for call in bad:
        with pytest.raises(pst.PosterityError):
            call()


def test_a_data_set_with_a_tail():
    digits = pst.data.load("digits")
    tail = digits.long_tailed(20, seed=1)
    counts = tail.train[1].bincount()
    assert counts[0] / counts[9] == pytest.approx(20, rel=0.1) and (counts.diff() < 0).all()
    assert torch.equal(tail.test[1], digits.test[1])
    assert torch.equal(tail.train[0], digits.long_tailed(20, seed=1).train[0])


def test_figures_by_class_by_hand():
    probs = torch.tensor([[0.8, 0.2, 0.0], [0.4, 0.6, 0.0], [0.5, 0.5, 0.0], [0.1, 0.9, 0.0]])
    aleatoric = torch.tensor([0.1, 0.2, 0.3, 0.4])
    prediction = Classification(1, None, 0.0, probs=probs, aleatoric=aleatoric, variance=torch.zeros(4, 3))
    found = pst.by_class(prediction, torch.tensor([0, 0, 1, 1]))
    assert found.count.tolist() == [2, 2, 0] and found.predicted.tolist() == [2, 2, 0]
    assert found.accuracy.tolist()[:2] == [0.5, 0.5] and math.isnan(found.accuracy[2])
    assert found.nll[0].item() == pytest.approx(-(math.log(0.8) + math.log(0.4)) / 2, rel=1e-6)
    assert found.aleatoric[1].item() == pytest.approx(0.35)
    assert found.epistemic[0].item() == pytest.approx(float(prediction.entropy[:2].mean()) - 0.15, rel=1e-6)
