"""A correlated prior against torch's multivariate normal: density, marginals, divergences, tempering."""

from __future__ import annotations

import pytest
import torch

from posterity.flat import Layout
from posterity.probability.correlated import Correlated
from posterity.probability.gaussians import DiagonalNormal, FullNormal, LowRankNormal
from posterity.probability.kl import kl_divergence
from posterity.probability.priors import Normal
from posterity.types import PosterityError

D = torch.distributions
LAYOUT = Layout(("a", "b"), (torch.Size([2, 2]), torch.Size([3])))
G = torch.Generator().manual_seed(0)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=G, dtype=torch.float64)


def factor(size: int) -> torch.Tensor:
    mix = torch.eye(size, dtype=torch.float64) + 0.3 * randn(size, size)
    return torch.linalg.cholesky(mix @ mix.T)


PRIOR = Correlated(randn(7), factor(7), LAYOUT, Normal(0.5))
REFERENCE = D.MultivariateNormal(PRIOR.mean, scale_tril=PRIOR.scale_tril)


def test_density_of_covered_and_other_parameters():
    weights, other = randn(7), randn(4)
    params = {**LAYOUT.unflatten(weights), "c": other}
    expected = REFERENCE.log_prob(weights) + D.Normal(torch.zeros(4).double(), 0.5).log_prob(other).sum()
    torch.testing.assert_close(PRIOR.log_prob(params), expected)


def test_flat_is_the_marginal_in_any_order_with_the_base_for_the_rest():
    flat = PRIOR.flat(Layout(("b", "c"), (torch.Size([3]), torch.Size([2]))))
    expected = torch.block_diag(REFERENCE.covariance_matrix[4:, 4:], 0.25 * torch.eye(2).double())
    torch.testing.assert_close(flat.covariance, expected)
    torch.testing.assert_close(flat.mean, torch.cat([PRIOR.mean[4:], torch.zeros(2).double()]))


@pytest.mark.parametrize("family", ["full", "diagonal", "low-rank"])
def test_divergences_are_torchs(family):
    mean, std, directions = randn(7), 0.1 + randn(7).abs(), randn(2, 7)
    tril = factor(7)
    q, covariance = {
        "full": (FullNormal(mean, tril), tril @ tril.T),
        "diagonal": (DiagonalNormal(mean, std), std.square().diag()),
        "low-rank": (
            LowRankNormal(mean, std, directions, 0.7),
            std.square().diag() + 0.49 * directions.T @ directions,
        ),
    }[family]
    expected = D.kl_divergence(D.MultivariateNormal(mean, covariance), REFERENCE)
    torch.testing.assert_close(kl_divergence(q, PRIOR), expected)


def test_tempering_runs_from_the_prior_to_the_base():
    base = Normal(2.0, 0.3)
    torch.testing.assert_close(PRIOR.tempered(base, 1.0).covariance, PRIOR.covariance)
    none = PRIOR.tempered(base, torch.inf)
    torch.testing.assert_close(none.covariance, 4 * torch.eye(7).double())
    torch.testing.assert_close(none.mean, torch.full((7,), 0.3).double())
    half = PRIOR.tempered(base, 2.0)  # Λ = ½ (Λ_base + Λ_prior)
    precision = 0.5 * (0.25 * torch.eye(7).double() + PRIOR.precision)
    torch.testing.assert_close(half.precision, precision)
    pull = 0.5 * (0.25 * 0.3 * torch.ones(7).double() + PRIOR.precision @ PRIOR.mean)
    torch.testing.assert_close(half.mean, torch.linalg.solve(precision, pull))


def test_tempering_from_a_base_that_is_correlated_too():
    base = Correlated(randn(7), 2 * factor(7), LAYOUT, Normal(0.5))
    found = PRIOR.tempered(base, 3.0)
    a, b = randn(7), randn(7)
    known, start = (prior.log_density(a) - prior.log_density(b) for prior in (PRIOR, base))
    torch.testing.assert_close(found.log_density(a) - found.log_density(b), start + (known - start) / 3)


def test_tempering_of_independent_weights_is_the_same_rule():
    std, mean = {"a": torch.tensor([0.1, 0.5]).double()}, {"a": torch.tensor([1.0, -2.0]).double()}
    base, layout = Normal(2.0, 0.3), Layout(("a",), (torch.Size([2]),))
    found = Normal(std, mean).tempered(base, 3.0)
    same = Correlated(mean["a"], std["a"].diag(), layout, base).tempered(base, 3.0)
    torch.testing.assert_close(found.mean["a"], same.mean)
    torch.testing.assert_close(found.std["a"].square(), same.covariance.diagonal())


def test_renewed_weights_are_independent_with_the_base():
    marks = {"b": torch.tensor([True, False, True])}
    base = Normal(3.0, 0.1)
    fresh = PRIOR.renewed(marks, base)
    kept = torch.tensor([0, 1, 2, 3, 5])
    torch.testing.assert_close(fresh.covariance[kept][:, kept], PRIOR.covariance[kept][:, kept])
    torch.testing.assert_close(fresh.covariance[4], 9 * torch.eye(7).double()[4])
    torch.testing.assert_close(fresh.mean[[4, 6]], torch.full((2,), 0.1).double())


def test_the_marginals_serve_methods_with_independent_weights():
    own = PRIOR.independent()
    torch.testing.assert_close(own.at("b").std, PRIOR.covariance.diagonal()[4:].sqrt())
    assert own.at("c").std == 0.5


def test_what_is_no_temperature_is_refused():
    with pytest.raises(PosterityError, match="temperature of a carried prior must be positive"):
        PRIOR.tempered(Normal(), 0.0)
    with pytest.raises(PosterityError, match="improper"):
        Normal({"a": torch.tensor([2.0])}, {"a": torch.zeros(1)}).tempered(Normal(1.0), 0.5)
    with pytest.raises(PosterityError, match="improper"):
        PRIOR.tempered(Normal(0.1), 0.5)


def test_a_prior_by_parameter_is_shown_in_a_few_words():
    shown = repr(Normal({"a": torch.ones(300)}, {"a": torch.zeros(300)}))
    assert shown == "Normal(std=<300 numbers, mean 1>, mean=<300 numbers, mean 0>)"
    assert repr(PRIOR).startswith("Correlated(7 weights")
