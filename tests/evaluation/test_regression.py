import math
from dataclasses import dataclass

import pytest
import torch
from scipy import stats

from posterity.evaluation import regression
from posterity.evaluation.regression import crps, crps_gaussian, crps_samples
from posterity.prediction import Regression
from posterity.probability.likelihoods import Gaussian, HeteroscedasticGaussian, Likelihood, Poisson
from posterity.types import PosterityError


def mixture(means, std):
    """The prediction of draws with these means and Gaussian noise."""
    f = torch.as_tensor(means, dtype=torch.float64)
    noise = torch.full_like(f[0], std**2)
    return Regression(len(f), None, 0.0, f.mean(0), noise, f.var(0, correction=0), f, Gaussian(std))


def exact_crps(means, std, y):
    """E|X − y| − ½E|X − X'| of an equal mixture of Gaussians, from E|N(m, s²)| in closed form (Grimit et al. 2006)."""

    def absolute(m, s):
        return 2 * s * stats.norm.pdf(m / s) + m * (2 * stats.norm.cdf(m / s) - 1)

    first = sum(absolute(y - m, std) for m in means) / len(means)
    second = sum(absolute(a - b, std * math.sqrt(2)) for a in means for b in means) / len(means) ** 2
    return first - second / 2


def test_crps_of_a_gaussian_against_its_integral():
    grid = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    for mean, std, y in [(0.0, 1.0, 0.3), (1.0, 0.5, -1.0), (-2.0, 2.0, 4.0)]:
        steps = (torch.special.ndtr((grid - mean) / std) - (grid >= y).double()).square()
        assert crps_gaussian(mean, std, y).item() == pytest.approx(torch.trapezoid(steps, grid).item(), abs=2e-4)
    assert crps_gaussian(0.0, 1.0, 0.0).item() == pytest.approx((math.sqrt(2) - 1) / math.sqrt(math.pi))


def test_crps_of_samples_is_the_pair_formula_and_tends_to_the_closed_form():
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    targets = torch.tensor([0.0, 0.5, -2.0], dtype=torch.float64)
    spread = (samples[:, None] - samples[None]).abs().mean((0, 1))
    assert torch.allclose(crps_samples(samples, targets), (samples - targets).abs().mean(0) - spread / 2)
    many = torch.randn(200_000, generator=generator, dtype=torch.float64)
    assert crps_samples(many, torch.tensor(0.7)).item() == pytest.approx(crps_gaussian(0, 1, 0.7).item(), abs=0.005)
    assert crps_samples(torch.tensor([2.0]), torch.tensor(5.0)).item() == 3  # a point: the absolute error


@pytest.mark.parametrize(
    ("means", "std"), [([0.0], 1.0), ([-1, 0.5, 2], 0.7), ([-3, 3, 4, 9], 0.5), ([-1, 0.5, 2], 0.01)]
)
@pytest.mark.parametrize("y", [0.2, -4.0, 60.0])
def test_crps_of_a_mixture_against_the_closed_form(means, std, y):
    """Also where the noise is next to nothing beside the spread of the draws."""
    prediction = mixture([[m] for m in means], std)
    expected = exact_crps(means, std, y)
    y = torch.tensor([y], dtype=torch.float64)
    assert crps(prediction, y).item() == pytest.approx(expected, rel=1e-9)


def test_crps_of_draws_with_noise_of_their_own_against_the_integral():
    f = torch.tensor([[[-1.0, 0.5]], [[0.8, -2.0]]], dtype=torch.float64)  # means and raw stds of two draws
    mean, variance = HeteroscedasticGaussian().mean(f), HeteroscedasticGaussian().variance(f)
    prediction = Regression(
        2, None, 0.0, mean.mean(0), variance.mean(0), mean.var(0, correction=0), f, HeteroscedasticGaussian()
    )
    grid = torch.linspace(-15, 15, 200_001, dtype=torch.float64)
    reached = torch.special.ndtr((grid - mean.view(2, 1)) / variance.view(2, 1).sqrt()).mean(0)
    exact = torch.trapezoid((reached - (grid >= 0.3).double()).square(), grid).item()
    assert crps(prediction, torch.tensor([[0.3]], dtype=torch.float64)).item() == pytest.approx(exact, abs=1e-4)


@dataclass(frozen=True)
class Logistic(Likelihood):
    """Noise of one's own, which the library knows by its distribution function alone."""

    scale: float = 0.5

    def mean(self, outputs):
        return outputs

    def variance(self, outputs):
        return torch.full_like(outputs, (self.scale * math.pi) ** 2 / 3)

    def cdf(self, outputs, values):
        return torch.sigmoid((values - outputs) / self.scale)


def test_crps_under_noise_of_ones_own_against_the_closed_form():
    """Logistic noise has s (z − 2 log F(z) − 1) with z = (y − m)/s; the last two targets lie outside the reach."""
    f, y = torch.zeros(1, 5, 1, dtype=torch.float64), torch.tensor([0.0, 0.3, -1.2, 9.0, -20.0], dtype=torch.float64)
    prediction = Regression(1, None, 0.0, f[0], Logistic().variance(f)[0], torch.zeros_like(f[0]), f, Logistic())
    z = y / 0.5
    expected = 0.5 * (z - 2 * torch.nn.functional.logsigmoid(z) - 1)
    torch.testing.assert_close(regression.crps_each(prediction, y)[:, 0], expected, rtol=1e-6, atol=1e-6)


def test_in_pieces_as_at_once(monkeypatch):
    """Examples of the CRPS and draws of the distribution function go through in pieces that stay in cache."""
    generator = torch.Generator().manual_seed(0)
    means, y = (torch.randn(*shape, 2, generator=generator, dtype=torch.float64) for shape in ((7, 5), (5,)))
    prediction = mixture(means, 0.4)
    whole = regression.crps_each(prediction, y), prediction.cdf(y), prediction.quantile(0.9)
    monkeypatch.setattr(regression, "_CACHE_FLOATS", 30)
    monkeypatch.setattr("posterity.prediction.prediction._CACHE_FLOATS", 30)
    pieces = regression.crps_each(prediction, y), prediction.cdf(y), prediction.quantile(0.9)
    torch.testing.assert_close(pieces, whole)


def test_crps_and_nll_are_proper():
    generator = torch.Generator().manual_seed(1)
    y = torch.randn(20_000, generator=generator, dtype=torch.float64)
    for score in (
        lambda m, s: crps_gaussian(m, s, y).mean().item(),
        lambda m, s: regression.nll(mixture(torch.full((1, 20_000), m), s), y).item(),
    ):
        truth = score(0.0, 1.0)
        assert all(score(m, s) > truth for m, s in [(0.1, 1.0), (-0.1, 1.0), (0.0, 0.9), (0.0, 1.1)])


def test_nll_and_rmse_by_hand():
    prediction = mixture([[0.0, 1.0]], 2.0)
    y = torch.tensor([1.0, 3.0])
    expected = -stats.norm.logpdf([1.0, 3.0], [0.0, 1.0], 2.0).mean()
    assert regression.nll(prediction, y).item() == pytest.approx(expected)
    assert regression.rmse(prediction, y).item() == pytest.approx(math.sqrt((1 + 4) / 2))
    assert regression.rmse([0.0, 1.0], y).item() == pytest.approx(math.sqrt((1 + 4) / 2))
    weighted = regression.rmse(prediction, y, torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    assert weighted.tolist() == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_exact_intervals_cover_what_they_say(level):
    n = 20_000
    generator = torch.Generator().manual_seed(2)
    means = torch.randn(1, n, generator=generator, dtype=torch.float64)
    y = means[0] + 0.3 * torch.randn(n, generator=generator, dtype=torch.float64)
    prediction = mixture(means, 0.3)
    error = math.sqrt(level * (1 - level) / n)
    assert regression.coverage(prediction, y, level).item() == pytest.approx(level, abs=4 * error)
    expected = 2 * 0.3 * stats.norm.ppf((1 + level) / 2)
    assert regression.width(prediction, level).item() == pytest.approx(expected, rel=1e-6)
    low, high = prediction.interval(level)
    assert ((y >= low) & (y <= high)).double().mean() == regression.coverage(prediction, y, level)


def test_pit_is_uniform_when_right_and_bent_when_not():
    generator = torch.Generator().manual_seed(3)
    y = torch.randn(5000, generator=generator, dtype=torch.float64)
    right = regression.pit(mixture(torch.zeros(1, 5000), 1.0), y)
    assert stats.kstest(right.numpy(), "uniform").pvalue > 0.01
    narrow = regression.pit(mixture(torch.zeros(1, 5000), 0.5), y)
    assert ((narrow < 0.05) | (narrow > 0.95)).double().mean() > 0.3


def test_columns_of_targets():
    f = torch.randn(4, 10, 4, dtype=torch.float64)
    likelihood = HeteroscedasticGaussian()
    moments = likelihood.mean(f).mean(0), likelihood.variance(f).mean(0), likelihood.mean(f).var(0, correction=0)
    prediction = Regression(4, None, 0.0, *moments, f, likelihood)
    y = torch.randn(10, 2, dtype=torch.float64)
    assert regression.pit(prediction, y).shape == (10, 2)
    assert math.isfinite(crps(prediction, y))
    assert regression.nll(prediction, y).item() == pytest.approx(-prediction.log_prob(y).mean().item())


def test_bad_input():
    prediction = mixture([[0.0, 1.0]], 1.0)
    for function in (regression.rmse, regression.nll, regression.crps, regression.coverage):
        with pytest.raises(PosterityError, match="2 predictions, 3 targets"):
            function(prediction, torch.zeros(3))
    with pytest.raises(PosterityError, match="do not fit predictions"):
        regression.rmse(prediction, torch.zeros(2, 2))
    with pytest.raises(PosterityError, match="NaN or infinite"):
        regression.rmse(prediction, torch.tensor([0.0, math.nan]))
    with pytest.raises(PosterityError, match="level lies in"):
        regression.coverage(prediction, torch.zeros(2), 95)
    with pytest.raises(PosterityError, match="std must be positive"):
        crps_gaussian(0.0, 0.0, 1.0)
    with pytest.raises(PosterityError, match="samples must be"):
        crps_samples(torch.zeros(5, 2), torch.zeros(3))


def test_the_score_of_large_counts_is_the_sum_over_all_of_them():
    rates = (2000.0, 2600.0)
    f = torch.tensor(rates, dtype=torch.float64).log()[:, None].expand(-1, 2)
    y = torch.tensor([400, 2300])
    mean = f.exp()
    prediction = Regression(2, None, 0.0, mean.mean(0), mean.mean(0), mean.var(0, correction=0), f, Poisson())
    grid = torch.arange(6000)
    exact = torch.tensor(sum(stats.poisson.cdf(grid, rate) for rate in rates) / 2)
    score = (exact - (grid >= y[:, None]).double()).square().sum(1)
    torch.testing.assert_close(regression.crps_each(prediction, y), score, rtol=5e-3, atol=0)


@pytest.mark.parametrize("rates", [[0.001], [0.1], [1.0], [0.5, 4.0], [30.0, 40.0]])
def test_counts_have_steps(rates):
    f = torch.tensor(rates, dtype=torch.float64).log()[:, None].expand(-1, 60)
    y = torch.arange(60)
    mean, noise = Poisson().mean(f), Poisson().variance(f)
    prediction = Regression(len(f), None, 0.0, mean.mean(0), noise.mean(0), mean.var(0, correction=0), f, Poisson())
    grid = torch.arange(200)
    exact = torch.tensor(sum(stats.poisson.cdf(grid, rate) for rate in rates) / len(rates))
    torch.testing.assert_close(prediction.cdf(y.double()), exact[:60])
    score = (exact - (grid >= y[:, None]).double()).square().sum(1)
    torch.testing.assert_close(regression.crps_each(prediction, y), score, rtol=1e-5, atol=1e-5)
    before = torch.cat([torch.zeros(1), exact])[:60]
    torch.testing.assert_close(regression.pit(prediction, y), (before + exact[:60]) / 2)
    for level in (0.5, 0.9, 0.95, 0.9995):
        low, high = (int((exact >= end).nonzero()[0]) for end in ((1 - level) / 2, (1 + level) / 2))
        assert [end[0].item() for end in prediction.interval(level)] == [low, high]
        weights = torch.eye(60, dtype=torch.float64)
        held = regression.coverage(prediction, y, level, weights)
        assert held.tolist() == ((low <= y) & (y <= high)).double().tolist()


@pytest.mark.parametrize("rates", [[100.0, 2000.0], [10.0, 10_000.0], [10_000.0], [300.0, 900.0, 2500.0, 4000.0]])
def test_crps_of_large_counts_is_the_sum_over_them_also_beside_small_ones(rates):
    """Draws far apart are steps in F that an integral of few points misses."""
    small = [0.5] * len(rates)
    f = torch.tensor([rates, small, rates], dtype=torch.float64).log().T  # [draws, 3]
    mean = f.exp()
    prediction = Regression(len(f), None, 0.0, mean.mean(0), mean.mean(0), mean.var(0, correction=0), f, Poisson())
    y = torch.tensor([rates[0], 1.0, 1.5 * rates[-1]], dtype=torch.float64)
    counts = torch.arange(30_000, dtype=torch.float64)
    expected = []
    for column, target in zip(f.T, y, strict=True):
        reached = torch.tensor(stats.poisson.cdf(counts[:, None], column.exp())).mean(1)
        expected.append((reached - (counts >= target).double()).square().sum())
    torch.testing.assert_close(regression.crps_each(prediction, y), torch.stack(expected), rtol=1e-4, atol=0)
