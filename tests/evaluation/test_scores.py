import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from posterity.evaluation import calibration, scores, selective
from posterity.prediction import Classification
from posterity.prediction.accumulate import accumulator
from posterity.probability.likelihoods import Gaussian
from posterity.types import PosterityError

HAND = torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.1, 0.9], [0.5, 0.5]], dtype=torch.float64)
TRUTH = torch.tensor([0, 1, 1, 1])


def simulated(n=20_000, classes=4, seed=0):
    """Probabilities, and targets drawn from them: perfectly calibrated."""
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(n, classes, generator=generator, dtype=torch.float64).mul(2).softmax(1)
    return probs, torch.multinomial(probs, 1, generator=generator)[:, 0]


def test_by_hand():
    assert scores.accuracy(HAND, TRUTH).item() == pytest.approx(2 / 4)  # ties go to the first class
    assert scores.nll(HAND, TRUTH).item() == pytest.approx(-math.log(0.7 * 0.4 * 0.9 * 0.5) / 4)
    assert scores.brier(HAND, TRUTH).item() == pytest.approx((2 * 0.09 + 2 * 0.36 + 2 * 0.01 + 2 * 0.25) / 4)
    by_hand = -(0.7 * math.log(0.7) + 0.3 * math.log(0.3))
    assert scores.entropy(HAND[:1]).item() == pytest.approx(by_hand)


def test_a_regression_has_no_classes_to_score():
    outputs = accumulator(Gaussian(0.5))
    outputs.add(torch.zeros(3, 4, 1))
    with pytest.raises(PosterityError, match="a regression has no class probabilities"):
        scores.accuracy(outputs.finish(), TRUTH)


def test_agrees_with_sklearn():
    probs, targets = simulated(2000)
    assert scores.nll(probs, targets).item() == pytest.approx(sk.log_loss(targets, probs), rel=1e-10)
    assert scores.accuracy(probs, targets).item() == sk.accuracy_score(targets, probs.argmax(1))
    binary = probs[:, :2] / probs[:, :2].sum(1, keepdim=True)
    label = targets % 2
    # scikit-learn's Brier score of two classes counts one of them
    assert scores.brier(binary, label).item() == pytest.approx(2 * sk.brier_score_loss(label, binary[:, 1]), rel=1e-10)


@pytest.mark.parametrize("score", [scores.nll, scores.brier])
def test_proper_scores_are_minimised_by_the_truth(score):
    probs, targets = simulated(50_000)
    truth = score(probs, targets).item()
    for sharpness in (0.5, 0.8, 1.25, 2.0):
        assert score(probs.pow(sharpness) / probs.pow(sharpness).sum(1, keepdim=True), targets).item() > truth
    assert score(0.9 * probs + 0.1 / 4, targets).item() > truth


def test_accuracy_is_not_proper():
    probs, targets = simulated(1000)
    sharper = probs.pow(3) / probs.pow(3).sum(1, keepdim=True)
    assert scores.accuracy(sharper, targets) == scores.accuracy(probs, targets)


def test_brier_split_of_a_forecast_with_two_values():
    # 40 forecasts of 0.8, 24 of which happen; 60 of 0.3, 18 of which happen
    p = torch.cat([torch.full((40,), 0.8), torch.full((60,), 0.3)]).double()
    y = torch.cat([torch.arange(40) < 24, torch.arange(60) < 18]).long()
    calibration, refinement = scores.brier_split(torch.stack([1 - p, p], 1), y, bins=10)
    assert calibration.item() == pytest.approx(2 * 0.4 * (0.8 - 0.6) ** 2)
    assert refinement.item() == pytest.approx(2 * (0.4 * 0.6 * 0.4 + 0.6 * 0.3 * 0.7))


def test_brier_split_sums_to_the_score_and_honesty_has_little_calibration_loss():
    probs, targets = simulated(50_000)
    calibration, refinement = scores.brier_split(probs, targets)
    assert (calibration + refinement).item() == pytest.approx(scores.brier(probs, targets).item(), rel=1e-12)
    # each of 4 × 15 bins adds about p(1 − p)/n ≤ 1/4n
    assert 0 < calibration.item() < 60 / 4 / 50_000
    bold = probs.pow(2) / probs.pow(2).sum(1, keepdim=True)
    assert scores.brier_split(bold, targets)[0].item() > 100 * calibration.item()


@given(st.integers(0, 2**31), st.integers(2, 30))
@settings(max_examples=25, deadline=None)
def test_counts_as_weights_are_repeated_examples(seed, n):
    probs, targets = simulated(n, seed=seed)
    counts = torch.randint(0, 4, (n,), generator=torch.Generator().manual_seed(seed))
    if counts.sum() == 0:
        return
    repeated = torch.arange(n).repeat_interleave(counts)
    for score in (scores.accuracy, scores.nll, scores.brier, lambda p, y, w=None: scores.brier_split(p, y, 5, w)[0]):
        weighted = score(probs, targets, counts.double())
        assert weighted.item() == pytest.approx(score(probs[repeated], targets[repeated]).item(), rel=1e-10)


def test_a_prediction_and_its_probabilities_are_the_same():
    probs, targets = simulated(50)
    prediction = Classification(1, None, 0.0, probs, torch.zeros(50), torch.zeros(50, 4))
    assert scores.nll(prediction, targets) == scores.nll(probs, targets) == scores.nll(probs.numpy(), targets.numpy())


def test_zero_probability_of_the_truth_is_finite():
    assert math.isfinite(scores.nll([[1.0, 0.0]], [1]))


@pytest.mark.parametrize(
    ("probs", "targets", "sentence"),
    [
        ([[0.5, 0.4]], [0], "must sum to one, but some are off by 0.1"),
        ([[1.5, -0.5]], [0], "finite real numbers from 0 to 1"),
        ([[np.nan, 0.5]], [0], "finite real numbers"),
        ([[0.5, 0.5]], [0, 1], "1 predictions need 1 targets"),
        ([[0.5, 0.5]], [2], "run from 2 to 2, but there are 2"),
        ([[0.5, 0.5]], [-1], "run from -1"),
        ([[0.5, 0.5]], [0.5], "whole numbers"),
        ([0.5, 0.5], [0, 1], "must be \\[examples, classes\\]"),
        ([[1.0]], [0], "two classes"),
        (torch.zeros(0, 2), [], "must be \\[examples, classes\\]"),
    ],
)
def test_bad_input(probs, targets, sentence):
    with pytest.raises(PosterityError, match=sentence):
        scores.nll(torch.as_tensor(probs), torch.as_tensor(targets))


def test_weights_of_another_length():
    with pytest.raises(PosterityError, match="4 examples need weights"):
        scores.nll(HAND, TRUTH, torch.ones(3))


def test_weights_of_whole_numbers_are_repetitions():
    """They made the scores whole numbers, too: an NLL of 1.27 was 0.81, and every calibration error 0."""
    probs, targets = simulated(50)
    counts = torch.randint(0, 4, (50,), generator=torch.Generator().manual_seed(1))
    rows = torch.arange(50).repeat_interleave(counts)
    figures = (scores.nll, scores.brier, calibration.ece, selective.misclassification_auroc)
    for figure in figures:
        repeated = figure(probs[rows], targets[rows]).item()
        for weights in (counts, counts.tolist(), counts.numpy()):
            assert figure(probs, targets, weights=weights).item() == pytest.approx(repeated, rel=1e-12)
