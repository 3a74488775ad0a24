"""Mean-field inference where the answer is known: conjugate linear regression, its evidence, and the schedules."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import posterity as pst
from posterity.layers import Moped, kl, variational
from posterity.methods.mean_field import MeanField, evidence_bound
from posterity.methods.tempering import BlundellKL, CyclicalKL, LinearKL, kl_schedule
from posterity.optim.config import OptimizerConfig
from posterity.probability import priors
from posterity.types import Plan

NOISE, PRIOR = 0.5, 1.5


def regression(n: int = 256, d: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs that are correlated, so that the covariance is not diagonal."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    x = x + 0.5 * x.roll(1, 1)
    w = torch.randn(d, generator=g, dtype=torch.float64)
    return x, x @ w + NOISE * torch.randn(n, generator=g, dtype=torch.float64)


def exact(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Posterior mean, posterior precision, log evidence."""
    n, d = x.shape
    precision = x.T @ x / NOISE**2 + torch.eye(d, dtype=x.dtype) / PRIOR**2
    mean = torch.linalg.solve(precision, x.T @ y) / NOISE**2
    covariance = NOISE**2 * torch.eye(n, dtype=x.dtype) + PRIOR**2 * x @ x.T
    evidence = torch.distributions.MultivariateNormal(torch.zeros(n, dtype=x.dtype), covariance).log_prob(y)
    return mean, precision, evidence.item()


def fitted(method: MeanField, seed: int = 0, **training) -> pst.WeightPosterior:
    x, y = regression()
    training = pst.Training(**{"batch_size": 64, "lr": 0.03, "steps": 600, "progress": False} | training)

    def module() -> nn.Module:  # made inside fit, so that the seed has a say in where it starts
        return nn.Linear(x.shape[1], 1, bias=False).double()

    return pst.fit(
        module, method, (x, y[:, None]), likelihood=pst.likelihoods.Gaussian(NOISE), seed=seed, training=training
    )


def method(**options) -> MeanField:
    return MeanField(prior=priors.Normal(PRIOR), init_std=0.05, mc_samples=8, **options)


class Pooled(nn.Module):
    """One Linear layer for every token, and their sum."""

    def __init__(self, tokens: int, features: int) -> None:
        super().__init__()
        self.tokens, self.linear = tokens, nn.Linear(features, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.unflatten(1, (self.tokens, -1))).sum(1)


def test_the_tokens_of_an_example_share_their_noise():
    """Σ_t x_t w is regression on Σ_t x_t; noise of each token by itself would make the stds 1.5 times too large."""
    tokens, noise = 8, 2.0
    x, _ = regression(64, 3 * tokens)
    pooled = (x + 0.5).unflatten(1, (tokens, -1)).sum(1)
    stds = (1 + pooled.square().sum(0) / noise**2).rsqrt()
    q = pst.fit(
        Pooled(tokens, 3).double(),
        MeanField(mc_samples=8),
        (x + 0.5, pooled.sum(1, keepdim=True)),
        likelihood=pst.likelihoods.Gaussian(noise),
        training=pst.Training(batch_size=64, lr=0.02, steps=1200, progress=False),
    )
    torch.testing.assert_close(q.variance()["linear.weight"][0].sqrt(), stds, rtol=0.1, atol=0)


@pytest.mark.parametrize("estimator", ["local", "reparameterised", pytest.param("flipout", marks=pytest.mark.slow)])
def test_linear_regression_has_the_ridge_mean_and_the_precisions_as_variances(estimator):
    mean, precision, _ = exact(*regression())
    q = fitted(method(estimator=estimator), steps=1200)
    std = precision.diagonal().rsqrt()
    assert ((q.mean()["weight"][0] - mean).abs() / std).max() < 0.3
    ratio = q.variance()["weight"][0] * precision.diagonal()
    assert (ratio - 1).abs().max() < 0.10


@pytest.mark.slow
def test_over_twenty_restarts_the_variances_are_right_to_three_percent():
    _, precision, _ = exact(*regression())
    ratios = [fitted(method(), seed).variance()["weight"][0] * precision.diagonal() for seed in range(20)]
    assert abs(torch.stack(ratios).mean() - 1) < 0.03


def test_the_bound_is_below_the_evidence_by_what_a_diagonal_must_lose():
    x, y = regression()
    _, precision, evidence = exact(x, y)
    bound = evidence_bound(fitted(method()), priors.Normal(PRIOR), [pst.types.Batch(x, y[:, None])], draws=1000)
    # The best diagonal Gaussian falls short by ½(Σ log diag Λ − log det Λ).
    gap = 0.5 * (precision.diagonal().log().sum() - torch.logdet(precision)).item()
    assert evidence - bound == pytest.approx(gap, abs=0.15)
    assert bound < evidence


def test_the_bound_of_the_exact_posterior_is_the_evidence():
    x, y = regression()
    mean, precision, evidence = exact(x, y)
    factor = torch.linalg.cholesky(torch.linalg.inv(precision))
    module, likelihood = nn.Linear(5, 1, bias=False).double(), pst.likelihoods.Gaussian(NOISE)
    q = pst.posteriors.FullGaussian(module, likelihood, {"weight": mean[None]}, factor)
    bound = evidence_bound(q, priors.Normal(PRIOR), [pst.types.Batch(x, y[:, None])], draws=2)
    assert bound == pytest.approx(evidence, abs=1e-6)


def test_the_bound_takes_each_draw_with_its_own_statistics_and_the_weights_of_examples():
    x, y = regression(60)
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1)).double()
    q = pst.fit(net, MeanField(init_std=0.1), (x, y[:, None]), epochs=1, training=pst.Training(progress=False))
    weights = torch.arange(60, dtype=torch.float64)
    bound = evidence_bound(q, priors.Normal(1.0), [pst.types.Batch(x, y[:, None], weights)], draws=3)
    expected = 0.0
    for (params, _), draw in zip(q.samples(3), q.draws(3), strict=True):
        fit = (q.likelihood.log_prob(draw(x), y[:, None]) * weights).sum()
        prior = priors.Normal(1.0).log_prob({name: params[name] for name in q.bayesian.names})
        expected += float(fit + prior - q.log_prob(params)) / 3
    assert bound == pytest.approx(expected, rel=1e-10)


@pytest.mark.slow
def test_a_trained_full_covariance_reaches_the_evidence():
    """The shortfall is KL(q‖exact), which the noise of the draws leaves open: 0.007 nats with 8 of them a step."""
    x, y = regression()
    evidence = exact(x, y)[2]
    full = fitted(replace(method(family="full"), mc_samples=64), steps=4000, batch_size=len(x), lr=0.01)
    bound = evidence_bound(full, priors.Normal(PRIOR), [pst.types.Batch(x, y[:, None])], draws=20_000)
    assert bound == pytest.approx(evidence, abs=1e-3)


def test_deterministic_biases_get_no_variance_and_bayesian_ones_do():
    x, y = regression()
    net = nn.Linear(5, 1).double()
    training = pst.Training(steps=3, progress=False)
    for bayesian in (False, True):
        q = pst.fit(
            net,
            MeanField(bayesian_bias=bayesian),
            (x, y[:, None]),
            likelihood=pst.likelihoods.Gaussian(0.5),
            training=training,
        )
        assert bool((q.variance()["bias"] > 0).all()) is bayesian


def plan(steps: int = 100, per_epoch: int = 10) -> Plan:
    return Plan(1000, steps, per_epoch, 100, OptimizerConfig())


def test_blundell_weights_sum_to_the_batches_of_an_epoch():
    weights = [BlundellKL().weight(step, plan()) for step in range(20)]
    assert sum(weights[:10]) == pytest.approx(10)
    expected = [10 * 2 ** (10 - i) / (2**10 - 1) for i in range(1, 11)]
    assert weights == pytest.approx(expected * 2)
    assert BlundellKL().weight(0, plan(5000, 5000)) == pytest.approx(2500)


def test_warm_ups_rise_from_nothing_to_one():
    linear = LinearKL(fraction=0.5, delay=0.1)
    assert [linear.weight(s, plan()) for s in (0, 10, 35, 60, 99)] == pytest.approx([0, 0, 0.5, 1, 1])
    cyclical = CyclicalKL(cycles=2, ramp=0.5)
    assert [cyclical.weight(s, plan()) for s in (0, 12, 25, 49, 50, 75)] == pytest.approx([0, 0.45, 1, 1, 0, 1])
    assert kl_schedule("constant").weight(0, plan()) == 1


def test_a_warm_up_longer_than_the_run_is_refused():
    with pytest.raises(pst.PosterityError, match="never be whole"):
        LinearKL(fraction=0.75, delay=0.5)


def test_a_long_warm_up_has_twenty_stairs():
    weights = [LinearKL(fraction=0.5).weight(s, plan(4000)) for s in range(4000)]
    assert sorted(set(weights)) == pytest.approx([k / 20 for k in range(21)])
    assert sum(weights[:2000]) / 2000 == pytest.approx(0.475)  # half of a stair below the straight line


def test_the_loop_weighs_the_kl_by_schedule_and_temperature():
    seen = []

    class Spy(MeanField):
        def penalty(self, module, temperature):
            seen.append(temperature)
            return super().penalty(module, temperature)

    x, y = regression()
    spy = Spy(kl_schedule=LinearKL(fraction=0.5), temperature=0.4)
    training = pst.Training(steps=4, schedule="linear", progress=False)
    pst.fit(nn.Linear(5, 1).double(), spy, (x, y[:, None]), likelihood=pst.likelihoods.Gaussian(0.5), training=training)
    assert seen == pytest.approx([0, 0.2, 0.4, 0.4])


def test_free_bits_leave_small_divergences_alone():
    net = variational(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), init_std=0.5)
    each = net.blocks[0].kl_each().detach()
    per_weight = each / torch.tensor([12, 6])
    free = float(per_weight.mean())  # above one of the two, below the other
    penalty = MeanField(free_bits=free).penalty(net, 2.0)
    expected = 2 * torch.maximum(each, free * torch.tensor([12.0, 6.0])).sum()
    torch.testing.assert_close(penalty, expected)
    assert penalty > 2 * kl(net)
    torch.testing.assert_close(MeanField(free_bits=1e-9).penalty(net, 1.0), kl(net))
    plain = nn.Linear(2, 1, bias=False)
    mean = {"weight": torch.zeros(1, 2)}
    earlier = pst.posteriors.FullGaussian(plain, pst.likelihoods.Gaussian(NOISE), mean, torch.eye(2))
    with pytest.raises(pst.PosterityError, match="need a prior of independent weights"):
        MeanField(free_bits=free).penalty(variational(plain, prior=earlier.as_prior()), 1.0)


def test_radial_and_low_rank_families_fit():
    for family, kind in (("low-rank", "low-rank"), ("radial", "implicit")):
        q = fitted(method(family=family), steps=500)
        assert q.kind == kind
        mean = exact(*regression())[0]
        assert (q.mean()["weight"][0] - mean).abs().max() < 0.2


def test_measures_and_symptoms():
    x, y = regression()
    training = pst.Training(steps=8, batch_size=64, progress=False)
    options = {"likelihood": pst.likelihoods.Gaussian(0.5), "training": training}
    q = pst.fit(nn.Linear(5, 1).double(), MeanField(init_std=0.1), (x, y[:, None]), **options)
    assert q.history[-1]["std"] == pytest.approx(0.1, rel=0.1)
    assert 0 < q.history[-1]["kl"] < 1
    with pytest.warns(pst.PosterityWarning) as said:
        pst.fit(nn.Linear(5, 1).double(), MeanField(init_std=1e-7), (x, y[:, None]), **options)
    assert any("std has collapsed" in str(warning.message) for warning in said)
    with pytest.warns(pst.PosterityWarning, match="drowns the likelihood"):
        net = nn.Linear(5, 1).double()
        nn.init.zeros_(net.weight)
        options["training"] = pst.Training(steps=2, lr=1e-6, progress=False)
        pst.fit(net, MeanField(init_std=0.1), (x, y[:, None]), **options)


def test_a_pre_trained_network_is_the_start():
    x, y = regression()
    net = nn.Linear(5, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(exact(x, y)[0][None])
    training = pst.Training(steps=1, lr=1e-6, progress=False)
    start = MeanField(init_std=Moped(delta=0.05), prior=priors.Normal(1.0))
    q = pst.fit(net, start, (x, y[:, None]), likelihood=pst.likelihoods.Gaussian(0.5), training=training)
    torch.testing.assert_close(q.mean()["weight"], net.weight.detach(), rtol=0, atol=1e-5)
    torch.testing.assert_close(q.variance()["weight"].sqrt(), 0.05 * net.weight.detach().abs(), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {"init_std": 0.0},
        {"mc_samples": 0},
        {"temperature": -1.0},
        {"kl_schedule": "steep"},
        {"free_bits": float("nan")},
    ],
)
def test_bad_hyper_parameters(options):
    with pytest.raises(pst.PosterityError):
        MeanField(**options)


def test_a_cold_posterior_has_the_variance_of_repeated_data():
    """At temperature T the data count 1/T times: precision XᵀX/(T noise²) + 1/prior²."""
    q = fitted(method(temperature=0.25), steps=1200)
    precision = regression()[0].square().sum(0) / NOISE**2 / 0.25 + 1 / PRIOR**2
    assert (q.variance()["weight"][0] * precision - 1).abs().max() < 0.10
