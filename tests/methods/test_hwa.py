"""HWA's moments are those of its snapshots, its draws have the stated covariance, and training never sees it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from tests.contract.cases import data, network
from torch import nn

import posterity as pst
from posterity.methods.hwa import HWA
from posterity.methods.mean_field import MeanField
from posterity.optim.config import OptimizerConfig
from posterity.types import Plan


class Recorder:
    """Remembers the variational parameters after every step."""

    def __init__(self, method: MeanField) -> None:
        self.method, self.means, self.variances = method, [], []

    def on_epoch(self, run, figures):
        mean, variance = self.method.moments(run)
        self.means.append({k: v.clone() for k, v in mean.items()})
        self.variances.append({k: v.clone() for k, v in variance.items()})


def fitted(of: MeanField, **options) -> tuple[pst.WeightPosterior, Recorder]:
    """Ten epochs of three steps, a snapshot at the end of each of the last five."""
    recorder = Recorder(of)
    training = pst.Training(batch_size=32, lr=0.02, progress=False, callbacks=(recorder,))
    method = HWA(of=of, start=15, every="epoch", **options)
    return pst.fit(network(), method, data(), epochs=10, seed=3, training=training), recorder


def stacked(values: list[dict[str, torch.Tensor]], name: str) -> np.ndarray:
    return np.stack([v[name].numpy() for v in values[5:]])


@pytest.mark.parametrize("spread", ["moments", "variational", "mixture"])
def test_moments_are_numpys(spread):
    q, seen = fitted(MeanField(init_std=0.1), spread=spread)
    for name in seen.means[0]:
        means, variances = stacked(seen.means, name), stacked(seen.variances, name)
        parts = {"moments": means.var(0), "variational": variances.mean(0)}
        parts["mixture"] = parts["moments"] + parts["variational"]
        np.testing.assert_allclose(q.mean()[name].numpy(), means.mean(0), rtol=1e-12)
        np.testing.assert_allclose(q.variance()[name].numpy(), parts[spread], rtol=1e-9, atol=1e-18)


def test_a_decaying_average_weighs_late_snapshots_more():
    q, seen = fitted(MeanField(init_std=0.1), spread="moments", decay=0.6)
    means = stacked(seen.means, "0.weight")
    shares = [max(1 / n, 0.4) for n in range(1, 6)]
    weights = np.array([shares[i] * np.prod([1 - s for s in shares[i + 1 :]]) for i in range(5)])
    assert weights.sum() == pytest.approx(1)
    average = np.tensordot(weights, means, 1)
    np.testing.assert_allclose(q.mean()["0.weight"].numpy(), average, rtol=1e-10)
    expected = np.tensordot(weights, (means - average) ** 2, 1)
    np.testing.assert_allclose(q.variance()["0.weight"].numpy(), expected, rtol=1e-9)


def test_low_rank_draws_have_the_covariance_of_the_formula():
    q, seen = fitted(MeanField(init_std=0.1), rank=3, spread="mixture")
    names = list(q.bayesian.names)
    flat = [torch.cat([m[n].flatten() for n in names]) for m in seen.means[5:]]
    running, rows = flat[0], []
    for n, mean in enumerate(flat, 1):
        running = running + (mean - running) / n
        rows.append(mean - running)
    deviations = torch.stack(rows[-3:])
    means = torch.stack(flat)
    within = torch.stack([torch.cat([v[n].flatten() for n in names]) for v in seen.variances[5:]]).mean(0)
    diagonal = means.var(0, correction=0) + within
    expected = 0.5 * torch.diag(diagonal) + deviations.T @ deviations / (2 * (3 - 1))
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([q.q.sample(generator) for _ in range(20_000)])
    found = torch.cov(draws.T)
    # Standard error of a sample covariance: √((C_ij² + C_ii C_jj)/n). Some 10,000 entries: 6 of them.
    error = ((expected.square() + expected.diagonal().outer(expected.diagonal())) / len(draws)).sqrt()
    assert ((found - expected).abs() <= 6 * error + 1e-15).all()
    together = (expected - torch.diag(expected.diagonal())).abs() > 20 * error
    assert together.any()  # weights do move together, by far more than chance


def test_the_average_never_touches_training():
    """The last snapshot of the means is the same whether or not earlier ones were averaged."""
    _, early = fitted(MeanField(init_std=0.1))
    recorder = Recorder(MeanField(init_std=0.1))
    training = pst.Training(batch_size=32, lr=0.02, progress=False, callbacks=(recorder,))
    other = HWA(of=MeanField(init_std=0.1), start=15, every=2, decay=0.5, lr=0.01, end_lr=0.001)
    pst.fit(network(), other, data(), epochs=10, seed=3, training=training)
    for name, value in early.means[4].items():  # up to the start both saw the same rates
        torch.testing.assert_close(recorder.means[4][name], value, rtol=0, atol=0)


def test_deterministic_biases_keep_a_variance_of_their_path_only():
    q, _ = fitted(MeanField(init_std=0.1), spread="variational")
    assert (q.variance()["0.bias"] == 0).all() and (q.variance()["0.weight"] > 0).all()
    q, _ = fitted(MeanField(init_std=0.1), spread="moments")
    assert (q.variance()["0.bias"] > 0).all()


def test_the_learning_rate_is_truly_cyclical():
    plan = Plan(1000, 100, 10, 100, OptimizerConfig(), lr=0.1)
    rate = HWA(start=0.5, every=10, lr=0.04, end_lr=0.01).schedule(plan).lr
    factors = [rate(step) for step in range(100)]
    assert factors[0] == pytest.approx(1.0)
    for cycle in range(50, 100, 10):
        assert factors[cycle] == pytest.approx(0.4)
        assert factors[cycle + 9] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(factors[50:60]))
    rate = HWA(start=0.53, every=10, lr=0.04, end_lr=0.01).schedule(plan).lr
    assert rate(53) == pytest.approx(0.4) and rate(62) == pytest.approx(0.1) and rate(63) == pytest.approx(0.4)


def test_what_is_carried_on_reaches_the_wrapped_method():
    prior, std = pst.priors.Normal(0.3), {"weight": torch.ones(2, 3)}
    carried = HWA(of=MeanField()).carrying(prior, std)
    assert carried.prior is carried.of.prior is prior
    assert carried.of.init_std.std is std


def test_its_learning_rates_are_rates_whatever_the_wrapped_methods_own():
    plan = Plan(1000, 100, 10, 100, OptimizerConfig())
    factor = HWA(of=pst.IVON(lr=0.5), start=0.5, every=10, lr=0.04, end_lr=0.01).schedule(plan).lr
    assert 0.5 * factor(50) == pytest.approx(0.04) and 0.5 * factor(59) == pytest.approx(0.01)


def test_the_temperature_is_the_wrapped_methods():
    plan = Plan(1000, 100, 10, 100, OptimizerConfig())
    pace = HWA(of=MeanField(kl_schedule="linear", temperature=0.5)).schedule(plan)
    assert pace.temperature(0) == 0 and pace.temperature(99) == 0.5


def published_recursion(snapshots: np.ndarray) -> list[float]:
    """σ ← (n σ + μ²)/(n + 1) − mean², as printed."""
    mean, sigma, path = 0.0, 0.0, []
    for n, mu in enumerate(snapshots):
        mean = (n * mean + mu) / (n + 1)
        sigma = (n * sigma + mu**2) / (n + 1) - mean**2
        path.append(sigma)
    return path


def test_the_published_recursion_diverges_to_negative_variances_and_the_moments_do_not():
    generator = np.random.default_rng(0)
    snapshots = 0.5 + 0.1 * generator.standard_normal(200)
    path = published_recursion(snapshots)
    assert path[1] < 0 and path[9] < -1 and path[199] < -20
    last = [published_recursion(0.5 + 0.1 * generator.standard_normal(10))[-1] for _ in range(2000)]
    assert np.mean(last) == pytest.approx(-9 * 0.25 / 2, rel=0.03)  # −(n − 1) a²/2
    assert snapshots.var() == pytest.approx(0.01, rel=0.5)


def test_resumed_moments_are_those_of_an_uninterrupted_run(tmp_path):
    class Stop(Exception):  # noqa: N818
        pass

    class StopAfter:
        def on_epoch(self, run, figures):
            if run.step == 21:
                raise Stop

    method = HWA(of=MeanField(init_std=0.1), start=15, every=2, rank=3)
    options = {"batch_size": 32, "progress": False}
    whole = pst.fit(network(), method, data(), epochs=10, seed=3, training=pst.Training(**options))
    kept = {**options, "checkpoint": tmp_path / "run", "checkpoint_every": 1}
    with pytest.raises(Stop):
        pst.fit(network(), method, data(), epochs=10, seed=3, training=pst.Training(**kept, callbacks=(StopAfter(),)))
    resumed = pst.fit(network(), method, data(), epochs=10, seed=3, training=pst.Training(**kept, resume=True))
    torch.testing.assert_close(resumed.mean(), whole.mean(), rtol=0, atol=0)
    torch.testing.assert_close(resumed.variance(), whole.variance(), rtol=0, atol=0)


def test_batchnorm_gets_a_bank():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()
    training = pst.Training(batch_size=32, progress=False)
    q = pst.fit(net, HWA(of=MeanField(init_std=0.05)), data(), epochs=6, training=training)
    assert len(q.bank["1.running_mean"]) == 32
    assert math.isfinite(q.predict(data()[0], draws=4).entropy.sum())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"of": pst.MAP()}, "Gaussian method"),
        ({"spread": "wide"}, "spread must be one of"),
        ({"rank": 1}, "rank must be 0"),
        ({"decay": 1.0}, "decay must lie"),
        ({"lr": -1.0}, "lr must be positive"),
    ],
)
def test_bad_hyper_parameters(options, message):
    with pytest.raises(pst.PosterityError, match=message):
        HWA(**options)


def test_too_few_snapshots_are_refused():
    with pytest.raises(pst.PosterityError, match="snapshots would come"):
        pst.fit(network(), HWA(every=50), data(), epochs=4, training=pst.Training(batch_size=32, progress=False))


def test_weights_that_are_not_trained_have_no_part_in_the_density():
    net = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1)).double()
    net[0].requires_grad_(False)
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    training = pst.Training(batch_size=8, progress=False)
    q = pst.fit(net, HWA(of=pst.IVON(), every=2, rank=2), (x, x[:, :1]), epochs=4, training=training)
    rows = q.q.deviations[:, -2:] * q.q.scale
    covariance = q.q.std[-2:].square().diag() + rows.T @ rows
    exact = torch.distributions.MultivariateNormal(q.q.mean[-2:], covariance).log_prob(q.q.mean[-2:] + 0.1)
    torch.testing.assert_close(q.log_prob({name: mean + 0.1 for name, mean in q.mean().items()}), exact)
