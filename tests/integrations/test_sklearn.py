import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

import posterity as pst
from posterity.integrations.sklearn import BayesianClassifier, BayesianRegressor


@pytest.mark.parametrize("estimator", [BayesianClassifier(epochs=15), BayesianRegressor(epochs=15)], ids=type)
def test_sklearns_own_checks(estimator):
    failed = {
        check["check_name"]: str(check["exception"])
        for check in check_estimator(estimator, on_fail=None, on_skip=None)
        if check["status"] == "failed"
    }
    assert failed == {}


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [BayesianClassifier(), BayesianRegressor()], ids=type)
def test_sklearns_own_checks_with_default_epochs(estimator):
    test_sklearns_own_checks(estimator)


def line(n, seed, noise=20.0):
    """A line in units far from one: the estimator must find slope and noise all the same."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(1000, 2000, (n, 1))
    return X, 0.5 * X[:, 0] + noise * rng.standard_normal(n) + 300


def test_regression_in_the_targets_own_units():
    estimator = BayesianRegressor(model=nn.Linear, random_state=0, epochs=60).fit(*line(600, 0))
    X, y = line(2000, 1)
    mean, std = estimator.predict(X, return_std=True)
    assert np.abs(mean - (0.5 * X[:, 0] + 300)).max() < 8
    assert std == pytest.approx(20, rel=0.15)
    assert np.mean(np.abs(y - mean) < 1.96 * std) == pytest.approx(0.95, abs=0.03)
    assert np.array_equal(estimator.predict(X), mean)


def test_labels_of_any_kind():
    X, y = make_moons(200, noise=0.1, random_state=0)
    names = np.array(["left", "right"])[y]
    estimator = BayesianClassifier(random_state=0, epochs=40).fit(X, names)
    assert estimator.classes_.tolist() == ["left", "right"]
    assert estimator.score(X, names) > 0.95
    probs = estimator.predict_proba(X)
    assert probs.sum(1) == pytest.approx(1)
    assert (estimator.predict(X) == names[0]).sum() == (probs.argmax(1) == y[0]).sum()
    parts = estimator.prediction(X)
    torch.testing.assert_close(parts.entropy, parts.aleatoric + parts.epistemic)


@pytest.mark.parametrize("method", [pst.SWAG(rank=5), pst.Dropout(rate=0.1, insert=("fc2", "fc3"))], ids=repr)
def test_any_method(method):
    X, y = make_moons(150, noise=0.1, random_state=0)
    estimator = BayesianClassifier(method, random_state=1, epochs=30).fit(X, y)
    assert estimator.prediction(X).epistemic.max() > 0
    again = clone(estimator).fit(X, y)
    weights = again.posterior_.module.state_dict()
    assert all(torch.equal(weights[name], w) for name, w in estimator.posterior_.module.state_dict().items())
    # To rounding: whether draws go one by one or together is a matter of which was faster when it was tried.
    np.testing.assert_allclose(again.predict_proba(X), estimator.predict_proba(X), rtol=0, atol=1e-12)


def test_an_ensemble_of_ones_own_network():
    X, y = make_moons(150, noise=0.1, random_state=0)

    def network(inputs, outputs):
        return nn.Sequential(nn.Linear(inputs, 20), nn.ReLU(), nn.Linear(20, outputs))

    estimator = BayesianClassifier(model=network, members=3, random_state=0, epochs=30).fit(X, y)
    assert isinstance(estimator.posterior_, pst.Mixture) and len(estimator.posterior_.parts) == 3


@pytest.mark.parametrize("members", [1, 2])
def test_a_network_with_batchnorm_predicts_with_as_many_draws_as_were_asked_for(members):
    X, y = make_moons(150, noise=0.1, random_state=0)

    def network(inputs, outputs):
        return nn.Sequential(nn.Linear(inputs, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, outputs))

    estimator = BayesianClassifier(pst.SWAG(rank=2), network, draws=40, members=members, random_state=0, epochs=30)
    assert estimator.fit(X, y).score(X, y) > 0.85
    assert estimator.prediction(X).draws == 40


def test_in_sklearns_tools():
    X, y = make_moons(120, noise=0.2, random_state=0)
    piped = make_pipeline(PolynomialFeatures(2), BayesianClassifier(random_state=0, epochs=15))
    assert cross_val_score(piped, X, y, cv=2).mean() > 0.7
    search = GridSearchCV(BayesianClassifier(random_state=0), {"epochs": [1, 30]}, cv=2).fit(X, y)
    assert search.best_params_ == {"epochs": 30}


def test_bad_input():
    X, y = make_moons(20, random_state=0)
    with pytest.raises(NotFittedError):
        BayesianClassifier().predict(X)
    with pytest.raises(ValueError, match="got one class"):
        BayesianClassifier().fit(X, np.zeros(20, int))
    with pytest.raises(ValueError, match="a network or a function of"):
        BayesianClassifier(model="mlp").fit(X, y)
    with pytest.raises(ValueError, match="the network has 5 outputs, and there are 2 classes"):
        BayesianClassifier(model=nn.Linear(2, 5), epochs=1).fit(X, y)
    with pytest.raises(ValueError, match="NaN"):
        BayesianRegressor().fit(np.full((5, 1), np.nan), np.ones(5))


def test_no_epochs_are_refused():
    with pytest.raises(pst.PosterityError, match="epochs must be at least 1, got 0"):
        BayesianClassifier(epochs=0).fit([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1])
