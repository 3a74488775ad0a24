import math

import pytest
import torch

from posterity.evaluation.bootstrap import bootstrap, interval, resample
from posterity.evaluation.calibration import ece
from posterity.evaluation.checks import weighted_mean
from posterity.random import generator_for
from posterity.types import PosterityError


def test_counts_are_multinomial():
    counts = resample(50, 20_000, generator_for(0))
    assert (counts.sum(1) == 50).all()
    assert counts.mean().item() == 1
    # Var of a multinomial count: n·(1/n)(1 − 1/n)
    assert counts.var().item() == pytest.approx(1 - 1 / 50, rel=0.02)
    covariance = torch.cov(counts[:, :2].T)[0, 1].item()
    assert covariance == pytest.approx(-1 / 50, abs=5 / math.sqrt(20_000))


def test_standard_error_of_a_mean():
    values = torch.randn(400, generator=generator_for(1), dtype=torch.float64)
    found = bootstrap(lambda w: {"mean": weighted_mean(values, w)}, (400,), 4000, generator_for(2))["mean"]
    low, high, error = interval(values.mean().item(), found)
    expected = values.std(correction=0).item() / math.sqrt(400)
    assert error == pytest.approx(expected, rel=0.05)  # 4000 resamples leave about 1%
    assert (high - low) / 2 == pytest.approx(1.96 * expected, rel=0.08)


def test_intervals_of_a_mean_cover_it():
    generator = generator_for(3)
    hits = 0
    for _ in range(400):
        values = torch.rand(80, generator=generator, dtype=torch.float64)
        found = bootstrap(lambda w, v=values: {"m": weighted_mean(v, w)}, (80,), 200, generator)["m"]
        low, high, _ = interval(values.mean().item(), found)
        hits += low <= 0.5 <= high
    assert hits / 400 == pytest.approx(0.94, abs=0.04)


def test_a_biased_figure_stays_inside_its_own_interval():
    generator = generator_for(4)
    probs = torch.randn(500, 3, generator=generator).softmax(1)
    targets = torch.multinomial(probs, 1, generator=generator)[:, 0]
    value = ece(probs, targets).item()
    found = bootstrap(lambda w: {"ece": ece(probs, targets, weights=w)}, (500,), 500, generator)["ece"]
    assert found.mean().item() > value  # what resampling does to a calibration error
    low, high, _ = interval(value, found)
    assert low < value < high


def test_blocks_of_resamples_do_not_change_anything(monkeypatch):
    values = torch.arange(10.0)
    whole = bootstrap(lambda w: {"m": weighted_mean(values, w)}, (10,), 30, generator_for(5))["m"]
    assert whole.shape == (30,)
    again = bootstrap(lambda w: {"m": weighted_mean(values, w)}, (10,), 30, generator_for(5))["m"]
    assert torch.equal(whole, again)
    monkeypatch.setattr("posterity.evaluation.bootstrap._ELEMENTS", 70)
    parts = bootstrap(lambda w: {"m": weighted_mean(values, w)}, (10,), 30, generator_for(5))["m"]
    assert torch.equal(whole, parts)


def test_groups_are_resampled_each_by_itself():
    seen = []
    bootstrap(lambda w: seen.append(w) or {"m": w.sum(1)}, (5, 7), 20, generator_for(6))
    assert (seen[0][:, :5].sum(1) == 5).all() and (seen[0][:, 5:].sum(1) == 7).all()


def test_an_interval_by_hand():
    """Replicates spread evenly over [0, 1], about a figure of 2: nine tenths of them lie within 0.45 of their mean."""
    replicates = torch.linspace(0, 1, 1001, dtype=torch.float64)
    low, high, error = interval(2.0, replicates, level=0.9)
    assert (low, high) == (pytest.approx(1.55), pytest.approx(2.45))
    assert error == pytest.approx(math.sqrt(1 / 12), rel=2e-3)


def test_figures_that_could_not_be_computed_are_left_out():
    low, high, _ = interval(0.5, torch.tensor([0.4, 0.6, math.nan]))
    assert low < 0.5 < high
    assert math.isnan(interval(0.5, torch.tensor([])).low)


def test_bad_input():
    with pytest.raises(PosterityError, match="examples and resamples, got 0 and 10"):
        resample(0, 10, generator_for(0))
