import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from posterity.data import DataSet, Kind, Task
from posterity.evaluation import evaluate, scores
from posterity.posteriors import (
    DiagonalGaussian,
    Empirical,
    Mixture,
    Stochastic,
    conformal,
    load,
    save,
    temper,
    tempered,
)
from posterity.posteriors.stochastic import with_dropout
from posterity.posteriors.tempered import minimise
from posterity.probability.likelihoods import Bernoulli, Categorical, Gaussian, MultiHead
from posterity.types import PosterityError, PosterityWarning

N = 4000


@pytest.fixture(scope="module")
def inputs():
    return 2 * torch.randn(N, 6, generator=torch.Generator().manual_seed(0))


def point(scale=1.0, classes=4, likelihood=None):
    generator = torch.Generator().manual_seed(1)
    weight = scale * torch.randn(classes, 6, generator=generator)
    return Empirical(
        nn.Linear(6, classes), likelihood or Categorical(), [{"weight": weight, "bias": torch.zeros(classes)}]
    )


def labels(posterior, x):
    return torch.multinomial(posterior.predict(x).probs, 1, generator=torch.Generator().manual_seed(2))[:, 0]


@pytest.mark.parametrize("known", [0.5, 1.0, 3.0, 30.0, 100.0])
def test_recovers_a_known_temperature(inputs, known):
    """Logits known × too large, labels drawn at the right size."""
    posterior, y = point(known), labels(point(), inputs)
    found = temper(posterior, (inputs, y))
    assert found.likelihood.temperature == pytest.approx(known, rel=0.05)
    assert scores.nll(found.predict(inputs), y) <= scores.nll(posterior.predict(inputs), y) + 1e-9


def test_what_is_tempered_already_is_tempered_to_the_same(inputs):
    posterior, data = point(3.0), (inputs, labels(point(), inputs))
    once = temper(posterior, data).likelihood.temperature
    assert temper(tempered(posterior, 7.0), data).likelihood.temperature == pytest.approx(once, rel=1e-3)


def test_recovers_a_known_temperature_of_one_logit(inputs):
    right = point(classes=1, likelihood=Bernoulli())
    y = labels(right, inputs)
    for known in (2.5, 50.0):
        found = temper(point(known, 1, Bernoulli()), (inputs, y))
        assert found.likelihood.temperature == pytest.approx(known, rel=0.08)


def test_recovers_a_known_temperature_of_one_head(inputs):
    head = MultiHead(heads=((0, 1), (2, 3)), head=1)
    y = labels(point(likelihood=head), inputs)
    found = temper(point(5.0, likelihood=head), (inputs, y))
    assert found.likelihood.temperature == pytest.approx(5.0, rel=0.05)


class Words(nn.Module):
    """Each row of an input by itself."""

    def __init__(self, rows, classes):
        super().__init__()
        self.rows, self.linear = rows, nn.Linear(6, classes)

    def forward(self, x):
        return self.linear(x.unflatten(1, (self.rows, 6)))


def test_the_words_of_a_sentence_are_as_many_examples(inputs):
    alone, y = point(3.0), labels(point(), inputs)
    sentences = Empirical(Words(4, 4), Categorical(), [{f"linear.{n}": p for n, p in alone.mean().items()}])
    found = temper(sentences, (inputs.view(-1, 24), y.view(-1, 4)))
    assert found.likelihood.temperature == pytest.approx(temper(alone, (inputs, y)).likelihood.temperature, rel=1e-3)


def test_many_draws_are_averaged_before_they_are_judged(inputs):
    mean = {"weight": 4 * torch.randn(4, 6, generator=torch.Generator().manual_seed(3)), "bias": torch.zeros(4)}
    q = DiagonalGaussian(
        nn.Linear(6, 4), Categorical(), mean, {name: torch.full_like(m, 0.5) for name, m in mean.items()}
    )
    y = labels(tempered(q, 2.0), inputs)
    found = temper(q, (inputs, y))
    assert found.likelihood.temperature == pytest.approx(2.0, abs=0.4)  # four standard errors of 4,000 labels
    assert isinstance(found, DiagonalGaussian)  # it can still be pruned, or become a prior
    before, after = (evaluate(p, (inputs, y), resamples=0) for p in (q, found))
    assert after["nll"] < before["nll"] and after["ece"] < before["ece"]
    assert after["accuracy"] == pytest.approx(before["accuracy"], abs=0.01)


def test_the_original_is_left_as_it_was(inputs):
    q = point()
    before = q.predict(inputs[:5]).probs
    assert not torch.allclose(tempered(q, 2.0).predict(inputs[:5]).probs, before)
    assert torch.equal(q.predict(inputs[:5]).probs, before) and q.likelihood.temperature == 1


def test_temperature_divides_the_logits(inputs):
    q, x = point(), inputs[:5]
    logits = next(iter(q.draws(1)))(x)
    torch.testing.assert_close(tempered(q, 2.0).predict(x).probs, (logits / 2).softmax(1))
    likelihood = Categorical(2.0)
    torch.testing.assert_close(
        likelihood.log_prob(logits, torch.zeros(5, dtype=torch.long)), (logits / 2).log_softmax(1)[:, 0]
    )
    z = logits.double()[:1].requires_grad_()
    hessian = torch.autograd.functional.hessian(
        lambda f: -likelihood.log_prob(f[None], torch.tensor([1]))[0], z.detach()[0]
    )
    torch.testing.assert_close(likelihood.hessian(z.detach())[0], hessian)
    single = torch.tensor([0.7], dtype=torch.float64)
    curvature = torch.autograd.functional.hessian(lambda f: -Bernoulli(2.0).log_prob(f, torch.tensor([1.0]))[0], single)
    torch.testing.assert_close(Bernoulli(2.0).hessian(single)[0], curvature)


def test_is_saved_like_any_other(tmp_path, inputs):
    x = inputs[:20]
    dropping = Stochastic(with_dropout(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4)), {"1": 0.2}), Categorical())
    for name, q in {"point": point(), "mixture": Mixture([point(), point(2.0)]), "dropout": dropping}.items():
        other = tempered(q, 1.7)
        save(other, tmp_path / name)
        back = load(
            tmp_path / name, nn.Linear(6, 4) if name != "dropout" else nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4))
        )
        assert back.likelihood.temperature == 1.7
        torch.testing.assert_close(back.predict(x).probs, other.predict(x).probs)


def test_golden_section():
    assert minimise(lambda t: (t - 1.234) ** 2, -5, 5) == pytest.approx(1.234, abs=1e-4)


def test_a_threshold_of_coverage_does_not_outlive_its_temperature(inputs):
    """Tempered afterwards, sets of a level of 0.9 held every class."""
    data = inputs, labels(point(), inputs)
    posterior = conformal(point(10.0), data)
    with pytest.raises(PosterityError, match="temper first"):
        temper(posterior, data)
    found = conformal(temper(point(10.0), data), data)
    assert float(found.covered(data).float().mean()) == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize(("scale", "said"), [(1.0, "only the lowest: all of them are"), (-1.0, "only the highest")])
def test_a_temperature_at_the_end_of_its_range_is_spoken_of(inputs, scale, said):
    right = point().predict(inputs).label
    with pytest.warns(PosterityWarning, match=said):
        temper(point(scale), (inputs, right))


def test_bad_input(inputs):
    regression = Empirical(nn.Linear(6, 1), Gaussian(1.0), [{"weight": torch.zeros(1, 6), "bias": torch.zeros(1)}])
    with pytest.raises(PosterityError, match="class logits, but this posterior has Gaussian"):
        temper(regression, (inputs, inputs[:, 0]))
    with pytest.raises(PosterityError, match="temperature must be positive"):
        tempered(point(), 0.0)
    with pytest.raises(PosterityError, match="no examples"):
        temper(point(), [])
    assert math.isclose(tempered(point(), 2).likelihood.temperature, 2.0)


def test_a_data_set_is_tempered_on_its_validation_part_and_not_on_its_test_part(inputs):
    posterior, y = point(3.0), labels(point(), inputs)
    backwards = (inputs, labels(point(-1.0), inputs))  # a test part by which the temperature would be another
    known = DataSet(
        "made up", Task.CLASSIFICATION, Kind.TABULAR, backwards, backwards, (inputs, y), classes=("a", "b", "c", "d")
    )
    found = temper(posterior, known).likelihood.temperature
    assert found == temper(posterior, (inputs, y)).likelihood.temperature
    with pytest.raises(PosterityError, match="no validation part"):
        temper(posterior, replace(known, validation=None))
