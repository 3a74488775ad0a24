import math

import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from posterity.evaluation.calibration import (
    classwise_ece,
    classwise_gaps,
    ece,
    equal_mass,
    max_calibration_error,
    reliability,
)
from posterity.types import PosterityError


def of_confidence(confidence, right):
    """Two-class probabilities with these confidences, and targets that make them right or wrong."""
    c = torch.tensor(confidence, dtype=torch.float64)
    return torch.stack([c, 1 - c], 1), (~torch.tensor(right)).long()


def honest(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(n, 5, generator=generator, dtype=torch.float64).mul(1.5).softmax(1)
    return probs, torch.multinomial(probs, 1, generator=generator)[:, 0]


def test_hand_worked_bins():
    # bins of width 0.2: {0.55, 0.59} accuracy 1/2, {0.61, 0.75, 0.79} accuracy 1, {0.95} accuracy 0
    probs, targets = of_confidence([0.55, 0.59, 0.61, 0.75, 0.79, 0.95], [True, False, True, True, True, False])
    gaps = [abs(1 - 0.55 - 0.59), abs(3 - 0.61 - 0.75 - 0.79), 0.95]
    assert ece(probs, targets, bins=5).item() == pytest.approx(sum(gaps) / 6)
    assert max_calibration_error(probs, targets, bins=5).item() == pytest.approx(0.95)
    diagram = reliability(probs, targets, bins=5)
    assert diagram.count == [0, 0, 2, 3, 1]
    assert diagram.accuracy[2:] == pytest.approx([0.5, 1, 0])
    assert diagram.confidence[2:] == pytest.approx([0.57, (0.61 + 0.75 + 0.79) / 3, 0.95])
    assert math.isnan(diagram.accuracy[0])


def test_hand_worked_equal_mass_bins():
    probs, targets = of_confidence([0.5, 0.6, 0.7, 0.8, 0.9, 1.0], [True, False, True, True, True, True])
    # two bins of three: (|2 − 1.8| + |3 − 2.7|)/6
    assert ece(probs, targets, bins=2, mass=True).item() == pytest.approx((0.2 + 0.3) / 6)
    assert len(equal_mass(torch.ones(100), 10)) == 2  # all the same: one bin


def test_confidences_of_one_are_not_averaged_with_others_in_bins_of_equal_mass():
    probs, targets = of_confidence([0.6, 0.8, 1.0, 1.0, 1.0, 1.0], [True, True, True, True, True, False])
    # Two are too unsure by 0.4 and 0.2; of four that are sure three are right.
    assert ece(probs, targets, bins=2, mass=True).item() == pytest.approx((0.4 + 0.2) / 6 + 1 / 6)


def test_bins_of_equal_mass_of_very_many_pixels():
    """torch's own quantiles end at sixteen million numbers: some 256 pictures of 256 × 256 pixels."""
    values = torch.arange(2**24 + 1, dtype=torch.float32) / 2**24
    assert equal_mass(values, 4).tolist() == pytest.approx([0, 0.25, 0.5, 0.75, 1])


def test_confidence_of_one_belongs_to_the_last_bin():
    probs, targets = of_confidence([1.0, 0.95], [False, True])
    assert max_calibration_error(probs, targets, bins=10).item() == pytest.approx(abs(1 - 1.95) / 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tenth_belongs_to_the_bin_that_begins_there(dtype):
    """0.7 and 0.9 in single precision are a little less, and three tenths in double a little more than 0.3."""
    for k in range(5, 10):
        probs = torch.tensor([[k / 10, 1 - k / 10]], dtype=dtype)
        assert reliability(probs, [0], bins=10).count.index(1) == k
    probs = torch.tensor([[0.3, 0.7], [0.2, 0.8]], dtype=dtype)
    _, counts = classwise_gaps(probs, [0, 1])
    assert counts[0].nonzero().flatten().tolist() == [2, 3]
    assert counts[1].nonzero().flatten().tolist() == [7, 8]


@pytest.mark.parametrize("bins", [7, 15])
def test_agrees_with_torchmetrics(bins):
    probs, targets = honest(3000)
    theirs = [multiclass_calibration_error(probs, targets, 5, bins, norm).item() for norm in ("l1", "max")]
    assert ece(probs, targets, bins).item() == pytest.approx(theirs[0], abs=1e-6)
    assert max_calibration_error(probs, targets, bins).item() == pytest.approx(theirs[1], abs=1e-6)


def test_classwise_is_the_mean_of_binary_errors():
    probs, targets = honest(2000)
    each = []
    for k in range(5):
        index = (probs[:, k] * 10).long().clamp_max(9)
        gap = (targets == k).double() - probs[:, k]
        each.append(sum(abs(gap[index == b].sum().item()) for b in range(10)) / 2000)
    assert classwise_ece(probs, targets, bins=10).item() == pytest.approx(sum(each) / 5)
    gaps, counts = classwise_gaps(probs, targets, bins=10)
    error = (gaps.nan_to_num().abs() * counts).sum(1) / 2000
    assert error.mean().item() == pytest.approx(sum(each) / 5)


def test_error_of_honest_probabilities_falls_as_one_over_root_n():
    """The ECE of a calibrated forecaster is biased upwards at finite n, by a known amount, and tends to 0."""
    measured = {}
    for n in (1000, 16_000):
        found = []
        for seed in range(40):
            probs, targets = honest(n, seed)
            found.append(ece(probs, targets).item())
        confidence = honest(n)[0].amax(1)
        index = (confidence * 15).long().clamp_max(14)
        spread = sum((confidence * (1 - confidence))[index == b].sum().sqrt().item() for b in range(15))
        expected = math.sqrt(2 / math.pi) * spread / n
        measured[n] = sum(found) / 40
        assert measured[n] == pytest.approx(expected, rel=0.1)
    assert measured[1000] / measured[16_000] == pytest.approx(4, rel=0.15)


@pytest.mark.parametrize("mass", [False, True])
def test_overconfidence_is_measured(mass):
    # confidence 0.9 everywhere, right 3 times of 4
    probs, targets = of_confidence([0.9] * 100, [i % 4 != 0 for i in range(100)])
    assert ece(probs, targets, mass=mass).item() == pytest.approx(0.15)


def test_weights_are_repetitions():
    probs, targets = honest(60)
    counts = torch.arange(60) % 3
    repeated = torch.arange(60).repeat_interleave(counts)
    for figure in (ece, max_calibration_error, classwise_ece):
        weighted = figure(probs, targets, weights=torch.stack([counts, counts]).double())
        assert weighted.tolist() == pytest.approx([figure(probs[repeated], targets[repeated]).item()] * 2)


def test_bad_bins():
    with pytest.raises(PosterityError, match="bins must be a positive whole number, got 0"):
        ece(*honest(10), bins=0)
