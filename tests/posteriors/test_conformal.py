import math

import pytest
import torch
from torch import nn

from posterity.evaluation import evaluate
from posterity.posteriors import DiagonalGaussian, Empirical, conformal, load, save
from posterity.probability.likelihoods import Categorical, Gaussian
from posterity.types import PosterityError


def classifier():
    generator = torch.Generator().manual_seed(1)
    mean = {"weight": torch.randn(5, 6, generator=generator), "bias": torch.zeros(5)}
    return DiagonalGaussian(nn.Linear(6, 5), Categorical(), mean, {n: torch.full_like(m, 0.3) for n, m in mean.items()})


def regression(std):
    params = {"weight": torch.tensor([[1.0]]), "bias": torch.zeros(1)}
    return Empirical(nn.Linear(1, 1), Gaussian(std), [params])


def classes(n, seed):
    """Labels that have little to do with the network: coverage must hold all the same."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator)
    logits = x[:, :5] + torch.randn(n, 5, generator=generator)
    return x, logits.argmax(1)


def numbers(n, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, generator=generator)
    return x, x + 0.7 * torch.randn(n, 1, generator=generator)


def expected(n, level):
    """Mean and std of the coverage of one calibration set: Beta(k, n + 1 − k) with k = ⌈(n + 1) level⌉."""
    k = math.ceil((n + 1) * level)
    a, b = k, n + 1 - k
    return a / (a + b), math.sqrt(a * b / (a + b) ** 2 / (a + b + 1))


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95])
def test_sets_cover_what_they_promise(level):
    n, tests = 1000, 20_000
    wrapped = conformal(classifier(), classes(n, 0), level)
    mean, spread = expected(n, level)
    error = math.hypot(spread, math.sqrt(level * (1 - level) / tests))
    covered = wrapped.covered(classes(tests, 1)).double().mean().item()
    assert covered == pytest.approx(mean, abs=3.5 * error)
    assert covered > level - 3.5 * error


def test_a_sentence_is_covered_where_all_its_words_are():
    words, n, tests, level = 3, 1000, 6000, 0.8
    module = nn.Sequential(nn.Unflatten(1, (words, 6)), nn.Linear(6, 5))
    q = Empirical(module, Categorical(), [{f"1.{name}": value for name, value in classifier().mean().items()}])

    def sentences(count, seed):
        x, y = classes(words * count, seed)
        return x.view(count, -1), y.view(count, words)

    wrapped = conformal(q, sentences(n, 0), level)
    mean, spread = expected(n, level)
    error = math.hypot(spread, math.sqrt(level * (1 - level) / tests))
    x, y = sentences(tests, 1)
    covered = wrapped.covered((x, y))
    assert covered.double().mean().item() == pytest.approx(mean, abs=3.5 * error)
    assert covered.tolist() == wrapped.sets(x)[torch.arange(tests)[:, None], torch.arange(words), y].all(1).tolist()


@pytest.mark.parametrize("std", [0.1, 5.0])
def test_intervals_cover_however_wrong_the_stated_noise(std):
    n, tests, level = 1000, 20_000, 0.9
    posterior = regression(std)
    alone = evaluate(posterior, numbers(tests, 1), resamples=0)["coverage_90"]
    assert abs(alone - level) > 0.09
    mean, spread = expected(n, level)
    wrapped = conformal(posterior, numbers(n, 0), level)
    error = math.hypot(spread, math.sqrt(level * (1 - level) / tests))
    assert wrapped.covered(numbers(tests, 1)).double().mean().item() == pytest.approx(mean, abs=3.5 * error)


def test_average_over_calibration_sets_is_the_promise():
    """Over calibration sets of 19 the expected coverage at level 0.9 is 18/20 exactly."""
    posterior, test = regression(1.0), numbers(2000, 99)
    found = [conformal(posterior, numbers(19, seed), 0.9).covered(test).double().mean().item() for seed in range(300)]
    mean, spread = expected(19, 0.9)
    assert mean == 0.9
    assert sum(found) / 300 == pytest.approx(mean, abs=3.5 * spread / math.sqrt(300) + 0.007)


@pytest.mark.parametrize(("n", "level", "rank"), [(19, 0.9, 18), (24, 0.56, 14), (30, 0.5, 16), (9, 0.9, 9)])
def test_the_threshold_is_the_strangeness_of_that_rank(n, level, rank):
    """⌈(n + 1) level⌉, also where 25 · 0.56 is a little over 14 in floating point."""
    x, y = numbers(n, 0)
    strange = ((y - x).abs() / 0.7).flatten().sort().values
    assert conformal(regression(0.7), (x, y), level).threshold == pytest.approx(strange[rank - 1].item(), rel=1e-5)


def test_a_set_is_never_empty_and_the_threshold_decides():
    wrapped = conformal(classifier(), classes(200, 0), 0.3)
    sets = wrapped.sets(classes(500, 1)[0])
    assert sets.any(1).all()
    wide = conformal(classifier(), classes(200, 0), 0.98).sets(classes(500, 1)[0])
    assert wide.sum() > sets.sum() and (wide | ~sets).all()


def test_predicts_as_the_posterior_inside_and_is_saved_like_any(tmp_path):
    posterior, x = classifier(), classes(10, 3)[0]
    wrapped = conformal(posterior, classes(100, 0), 0.8)
    torch.testing.assert_close(wrapped.predict(x).probs, posterior.predict(x).probs)
    save(wrapped, tmp_path / "wrapped.safetensors")
    back = load(tmp_path / "wrapped.safetensors", nn.Linear(6, 5))
    assert torch.equal(back.sets(x), wrapped.sets(x)) and back.level == 0.8
    assert "level=0.8" in repr(back)


def test_bad_input():
    with pytest.raises(PosterityError, match="lies in"):
        conformal(classifier(), classes(50, 0), 90)
    with pytest.raises(PosterityError, match="needs at least 19 calibration examples, got 18"):
        conformal(classifier(), classes(18, 0), 0.95)
    with pytest.raises(PosterityError, match="use intervals"):
        conformal(regression(1.0), numbers(50, 0)).sets(torch.zeros(2, 1))
    with pytest.raises(PosterityError, match="use sets"):
        conformal(classifier(), classes(50, 0)).intervals(torch.zeros(2, 6))
    with pytest.raises(PosterityError, match="no examples"):
        conformal(classifier(), classes(50, 0)).covered([])
