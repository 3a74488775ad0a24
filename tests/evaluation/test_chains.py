import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import posterity as pst
from posterity.evaluation.chains import chain_details, has_chains
from posterity.evaluation.diagnostics import effective_sample_size, split_rhat, traces
from posterity.posteriors import Empirical, Mixture
from posterity.types import PosterityError
from tests.evaluation.test_diagnostics import autoregressive

X = torch.linspace(-2, 2, 300, dtype=torch.float64)[:, None]
DATA = (X, (X[:, 0] > 0).long())


def walk(offset, samples=60, seed=0):
    """A chain of logistic slopes around an offset."""
    generator = torch.Generator().manual_seed(seed)
    slopes = offset + 0.3 * torch.randn(samples, generator=generator, dtype=torch.float64)
    points = [{"weight": torch.stack([-slope, slope])[:, None]} for slope in slopes]
    return Empirical(nn.Linear(1, 2, bias=False, dtype=torch.float64), pst.likelihoods.Categorical(), points)


def arviz():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it announces its next version when it is imported
        return pytest.importorskip("arviz")


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_arviz_agrees(correlation):
    """The same split-R̂ to rounding; its effective sample size ends the sum another way, under 2% here, and may exceed
    the number of samples, where ours stops."""
    az = arviz()
    chains = autoregressive(4, 1000, correlation)
    for k in range(5):
        one = chains[:, :, k]
        assert float(split_rhat(one)) == pytest.approx(float(az.rhat(one.numpy(), method="split")), rel=1e-12)
        theirs = min(4000.0, float(az.ess(one.numpy(), method="mean")))
        assert float(effective_sample_size(one)) == pytest.approx(theirs, rel=0.02)


def test_arviz_reads_the_chains():
    az = arviz()
    chains, few = Mixture([walk(1.0), walk(1.0, seed=1)]), (X[::50], DATA[1][::50])
    found = pst.to_arviz(chains, few)
    predicted = traces(chains, few)
    assert dict(found.sizes) == {"chain": 2, "draw": 60, "input": 6, "output": 2}
    np.testing.assert_array_equal(found["prediction"].values, predicted.numpy())
    ours, theirs = split_rhat(predicted), az.rhat(found, method="split")["prediction"].values
    np.testing.assert_allclose(theirs, ours.numpy(), rtol=1e-10)


def test_without_arviz_there_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(PosterityError, match="pip install"):
        pst.to_arviz(walk(1.0), DATA)


def test_what_has_chains():
    assert has_chains(walk(1.0)) and has_chains(Mixture([walk(1.0), walk(2.0)]))
    assert not has_chains(walk(1.0, samples=3))
    assert not has_chains(Mixture([walk(1.0, samples=1), walk(2.0, samples=1)]))  # an ensemble is no chain


def test_quantiles_and_the_worst_trace():
    """Two chains around slopes of 1 and −1: stuck apart everywhere, and most where the probabilities move least."""
    found = chain_details(Mixture([walk(1.0), walk(-1.0, seed=1)]), DATA)
    assert (found["chains"], found["samples"]) == (2, 60)
    assert found["rhat"] == sorted(found["rhat"]) and found["rhat"][0] > 2
    assert found["ess"] == sorted(found["ess"], reverse=True) and found["ess"][0] < 10
    assert found["label_disagreement"] == pytest.approx(1.0)
    first, second = (np.array(chain) for chain in found["trace"])
    assert abs(first.mean() - second.mean()) > 2 * max(first.std(), second.std())
    assert len(found["symptoms"]) == 2


def test_quantiles_of_effective_samples_end_with_the_fewest():
    chains, few = Mixture([walk(1.0), walk(1.0, seed=1)]), (X[:20], DATA[1][:20])
    each = effective_sample_size(traces(chains, few)).flatten().sort().values  # 40 of them
    middle, fewer, fewest = chain_details(chains, few)["ess"]
    assert (fewer, fewest) == (pytest.approx(float(each[2])), pytest.approx(float(each[0])))
    assert float(each[19]) <= middle <= float(each[20])


def test_the_trace_is_that_of_the_prediction_that_mixes_worst():
    chains, few = Mixture([walk(1.0), walk(1.2, seed=1)]), (X[:20], DATA[1][:20])
    predicted = traces(chains, few)
    worst = int(split_rhat(predicted).flatten().argmax())
    expected = predicted.flatten(2)[..., worst]
    assert worst > 0 and np.array(chain_details(chains, few)["trace"]) == pytest.approx(expected.numpy(), abs=1e-5)


def test_agreeing_chains_have_no_symptoms():
    found = chain_details(Mixture([walk(1.0, 400), walk(1.0, 400, seed=1)]), DATA)
    assert found["rhat"][-1] < 1.03  # 4 halves of 200: R̂ is about 1 + 1/200
    assert found["ess"][-1] > 400
    assert found["symptoms"] == []
    assert len(found["trace"][0]) == 200


def test_an_evaluation_looks_at_chains_where_there_are_some():
    scores = pst.evaluate(Mixture([walk(1.0), walk(1.0, seed=1)]), DATA, draws=8, resamples=0)
    assert scores.details["chains"]["chains"] == 2
    assert "chains" not in pst.evaluate(walk(1.0, samples=1), DATA, draws=8, resamples=0).details
