"""KL against torch.distributions and large-sample Monte Carlo, its direction and its scale."""

import math
from dataclasses import dataclass

import pytest
import torch

from posterity.probability.gaussians import DiagonalNormal, FullNormal, LowRankNormal
from posterity.probability.kl import kl_divergence, monte_carlo_kl, register_kl
from posterity.probability.priors import Laplace, LogUniform, Normal, Prior, ScaleMixture, StudentT
from posterity.types import PosterityError

D = torch.distributions
G = torch.Generator().manual_seed(0)
MEAN = torch.randn(6, generator=G, dtype=torch.float64)
STD = torch.rand(6, generator=G, dtype=torch.float64) + 0.2
ROOT = torch.randn(6, 6, generator=G, dtype=torch.float64) * 0.3
TRIL = torch.linalg.cholesky(ROOT @ ROOT.T + 0.2 * torch.eye(6, dtype=torch.float64))
DEVIATIONS = torch.randn(2, 6, generator=G, dtype=torch.float64)
PRIOR = Normal(STD * 2, MEAN * 0.5)


def covariance(q):
    if isinstance(q, FullNormal):
        return q.scale_tril @ q.scale_tril.T
    extra = q.scale**2 * q.deviations.T @ q.deviations if isinstance(q, LowRankNormal) else 0
    return torch.diag(q.std**2) + extra


FAMILIES = [DiagonalNormal(MEAN, STD), FullNormal(MEAN, TRIL), LowRankNormal(MEAN, STD, DEVIATIONS, 0.6)]


@pytest.mark.parametrize("q", FAMILIES, ids=lambda q: type(q).__name__)
def test_closed_form_is_torchs(q):
    exact = D.kl_divergence(
        D.MultivariateNormal(q.mean, covariance(q)), D.MultivariateNormal(PRIOR.mean, torch.diag(PRIOR.std**2))
    )
    torch.testing.assert_close(kl_divergence(q, PRIOR), exact, rtol=1e-10, atol=1e-10)
    shared = D.kl_divergence(
        D.MultivariateNormal(q.mean, covariance(q)),
        D.MultivariateNormal(torch.zeros(6, dtype=torch.float64), 0.49 * torch.eye(6, dtype=torch.float64)),
    )
    for std in (0.7, torch.tensor(0.7, dtype=torch.float64)):
        torch.testing.assert_close(kl_divergence(q, Normal(std)), shared)


@pytest.mark.parametrize("q", FAMILIES, ids=lambda q: type(q).__name__)
def test_log_density_is_torchs(q):
    point = MEAN + 0.3
    exact = D.MultivariateNormal(q.mean, covariance(q)).log_prob(point)
    torch.testing.assert_close(q.log_prob(point), exact, rtol=1e-9, atol=1e-9)


def test_low_rank_draws_share_one_z_over_the_whole_vector():
    q = LowRankNormal(MEAN, STD * 0.01, DEVIATIONS, 1.0)
    generator = torch.Generator().manual_seed(3)
    draws = torch.stack([q.sample(generator) for _ in range(20_000)])
    exact = covariance(q)
    # The standard error of a covariance entry is at most √((Σii Σjj + Σij²)/n); 5 of them over 36 entries.
    error = ((exact.diagonal()[:, None] * exact.diagonal()[None] + exact**2) / len(draws)).sqrt()
    assert ((torch.cov(draws.T) - exact).abs() < 5 * error).all()


def test_direction_is_posterior_first():
    q = DiagonalNormal(torch.tensor(0.05, dtype=torch.float64), torch.tensor(0.0067, dtype=torch.float64))
    assert kl_divergence(q, Normal(0.1)).item() == pytest.approx(2.33, abs=0.005)


def test_doubling_a_layer_doubles_it():
    twice = DiagonalNormal(torch.cat([MEAN, MEAN]), torch.cat([STD, STD]))
    torch.testing.assert_close(kl_divergence(twice, Normal(0.5)), 2 * kl_divergence(FAMILIES[0], Normal(0.5)))


@pytest.mark.parametrize("prior", [Laplace(0.7), Normal(0.5)], ids=lambda p: type(p).__name__)
def test_closed_form_is_monte_carlos(prior):
    q = FAMILIES[0]
    each = torch.stack([monte_carlo_kl(q, prior, torch.Generator().manual_seed(s), 1) for s in range(20_000)])
    error = each.std() / len(each) ** 0.5
    assert abs(each.mean() - kl_divergence(q, prior)) < 4 * error


def test_gradients_of_the_closed_forms():
    def kl(mean, std, prior):
        return kl_divergence(DiagonalNormal(mean, std), prior)

    leaves = (MEAN.clone().requires_grad_(), STD.clone().requires_grad_())
    for prior in (Normal(0.5), Laplace(0.5), LogUniform()):
        assert torch.autograd.gradcheck(lambda m, s, p=prior: kl(m, s, p), leaves)


def test_log_uniform_fits_monte_carlo_within_a_hundredth_of_a_nat():
    """KL = const − ½ log α + E log|ξ|, ξ ~ N(1, α): compared by differences to a large α, where it vanishes."""
    noise = torch.randn(2_000_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    log_alphas = torch.linspace(-8, 8, 9, dtype=torch.float64)
    std = (0.5 * log_alphas).exp()
    fitted = torch.stack(
        [kl_divergence(DiagonalNormal(torch.ones(1, dtype=torch.float64), s[None]), LogUniform()) for s in std]
    )
    exact = torch.stack([(1 + s * noise).abs().log().mean() - s.log() for s in std])
    # As α → ∞, E log|ξ| − ½ log α → E log|z| = −(γ + log 2)/2.
    exact = exact + 0.5 * (0.5772156649 + 0.6931471806)
    assert (fitted - exact).abs().max() < 0.01
    assert (fitted > 0).all() and (fitted.diff() < 0).all()


def test_pairs_without_closed_form_are_unbiased_monte_carlo():
    q, prior = FAMILIES[0], ScaleMixture(1.0, 0.2)
    few = torch.stack([kl_divergence(q, prior, torch.Generator().manual_seed(s), samples=4) for s in range(3000)])
    z = torch.linspace(-9, 9, 20_001, dtype=torch.float64)[:, None]
    log_ratio = D.Normal(0.0, 1.0).log_prob(z) - STD.log() - prior.log_density(MEAN + STD * z)
    exact = torch.trapezoid(D.Normal(0.0, 1.0).log_prob(z).exp() * log_ratio, z, dim=0).sum()
    assert abs(few.mean() - exact) < 5 * few.std() / len(few) ** 0.5


@pytest.mark.parametrize("q", FAMILIES, ids=lambda q: type(q).__name__)
@pytest.mark.parametrize("prior", [StudentT(0.4), ScaleMixture(1.0, 0.2)], ids=lambda p: type(p).__name__)
def test_every_family_has_a_kl_to_heavy_tails(q, prior):
    """Weights of the prior are independent, so E log p is a sum over marginals, each an integral in one dimension."""
    few = torch.stack([kl_divergence(q, prior, torch.Generator().manual_seed(s), samples=4) for s in range(2000)])
    z = torch.linspace(-9, 9, 20_001, dtype=torch.float64)[:, None]
    marginal = covariance(q).diagonal().sqrt()
    weighed = D.Normal(0.0, 1.0).log_prob(z).exp() * prior.log_density(q.mean + marginal * z)
    expected = torch.trapezoid(weighed, z, dim=0)
    exact = -D.MultivariateNormal(q.mean, covariance(q)).entropy() - expected.sum()
    assert abs(few.mean() - exact) < 5 * few.std() / len(few) ** 0.5


def test_an_unknown_pair_is_named():
    class Odd(Prior):
        pass

    with pytest.raises(PosterityError, match="DiagonalNormal‖Odd"):
        kl_divergence(FAMILIES[0], Odd())


def test_a_prior_of_ones_own_is_told_how_to_get_a_kl_and_gets_it(monkeypatch):
    """KL of N(0, ½²) against a prior that is N(0, 1) under another name, by 4000 draws; a draw's std is 0.18."""

    @dataclass(frozen=True, repr=False)
    class Own(Normal):
        pass

    q = DiagonalNormal(torch.zeros(1, dtype=torch.float64), torch.full((1,), 0.5, dtype=torch.float64))
    with pytest.raises(PosterityError, match=r"register_kl\(DiagonalNormal, Own\)\(monte_carlo_kl\)"):
        kl_divergence(q, Own())
    torch.manual_seed(0)
    monkeypatch.setattr("posterity.probability.kl._CLOSED_FORMS", {})
    register_kl(DiagonalNormal, Own)(monte_carlo_kl)
    estimate = torch.stack([kl_divergence(q, Own()) for _ in range(4000)]).mean()
    assert float(estimate) == pytest.approx(0.5 * (0.25 - 1 - math.log(0.25)), abs=4 * 0.18 / 4000**0.5)
