import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torchmetrics.functional.classification import binary_auroc, binary_average_precision

from posterity.evaluation.ood import certainties, entropy_divergence, ood_figures
from posterity.evaluation.ranking import aupr, auroc, fpr_at_tpr
from posterity.evaluation.selective import accuracy_coverage, aurc, misclassification_auroc
from posterity.prediction import Classification
from posterity.types import PosterityError


def pairs(scores, positive):
    """The O(n²) definition: how often a positive beats a negative, ties counting half."""
    wins = [(p > q) + 0.5 * (p == q) for p in scores[positive].tolist() for q in scores[~positive].tolist()]
    return sum(wins) / len(wins)


@given(st.integers(0, 2**31), st.integers(4, 60), st.integers(2, 50))
@settings(max_examples=40, deadline=None)
def test_auroc_against_pair_counting(seed, n, levels):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (n,), generator=generator).double()  # few levels: many ties
    positive = torch.arange(n) % 2 == 0
    assert auroc(scores, positive).item() == pytest.approx(pairs(scores, positive))


def test_agrees_with_sklearn_and_torchmetrics():
    generator = torch.Generator().manual_seed(3)
    positive = torch.rand(500, generator=generator) < 0.3
    scores = (positive + torch.randn(500, generator=generator)).round(decimals=1)
    assert auroc(scores, positive).item() == pytest.approx(sk.roc_auc_score(positive, scores))
    assert aupr(scores, positive).item() == pytest.approx(sk.average_precision_score(positive, scores))
    inside = scores.double().sigmoid()
    assert auroc(inside, positive).item() == pytest.approx(binary_auroc(inside, positive.long()).item(), abs=1e-6)
    theirs = binary_average_precision(inside, positive.long()).item()
    assert aupr(inside, positive).item() == pytest.approx(theirs, abs=1e-6)
    fpr, tpr, _ = sk.roc_curve(positive, scores, drop_intermediate=False)
    assert fpr_at_tpr(scores, positive, 0.95).item() == pytest.approx(np.interp(0.95, tpr, fpr))


def test_fpr_is_interpolated():
    # two positives at 3 and 1, a negative tied with the second: TPR goes from ½ to 1 while FPR goes from 0 to ½
    scores, positive = torch.tensor([3.0, 1.0, 1.0, 0.0]), torch.tensor([True, True, False, False])
    assert fpr_at_tpr(scores, positive, 0.5).item() == 0
    assert fpr_at_tpr(scores, positive, 0.75).item() == pytest.approx(0.25)
    assert fpr_at_tpr(scores, positive, 1.0).item() == pytest.approx(0.5)


def test_weights_are_repetitions():
    generator = torch.Generator().manual_seed(5)
    scores = torch.randint(10, (40,), generator=generator).double()
    positive = torch.rand(40, generator=generator) < 0.5
    counts = torch.randint(0, 4, (40,), generator=generator)
    repeated = torch.arange(40).repeat_interleave(counts)
    for figure in (auroc, aupr, fpr_at_tpr):
        weighted = figure(scores, positive, weights=torch.stack([counts, counts]).double())
        assert weighted.tolist() == pytest.approx([figure(scores[repeated], positive[repeated]).item()] * 2)


def test_one_class_is_refused():
    with pytest.raises(PosterityError, match="all 3 examples are positive"):
        auroc([1.0, 2.0, 3.0], [True, True, True])
    with pytest.raises(PosterityError, match="all 2 examples are positive"):
        misclassification_auroc([[0.9, 0.1], [0.8, 0.2]], [0, 0])
    with pytest.raises(PosterityError, match="3 scores, 2 labels"):
        auroc([1.0, 2.0, 3.0], [True, False])
    with pytest.raises(PosterityError, match="lies in"):
        fpr_at_tpr([1.0, 2.0], [True, False], 1.5)


def two_class(confidence, right):
    c = torch.tensor(confidence, dtype=torch.float64)
    return torch.stack([c, 1 - c], 1), (~torch.tensor(right)).long()


def test_risk_and_coverage_by_hand():
    probs, targets = two_class([0.9, 0.8, 0.7, 0.6], [True, False, True, False])
    assert aurc(probs, targets).item() == pytest.approx((0 + 1 / 2 + 1 / 3 + 2 / 4) / 4)
    coverage, accuracy = accuracy_coverage(probs, targets)
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert accuracy.tolist() == pytest.approx([1, 1 / 2, 2 / 3, 1 / 2])


def test_equally_confident_examples_share_their_errors():
    probs, targets = two_class([0.9, 0.9, 0.6], [True, False, True])
    by_hand = (1 / 2 + 1 / 2 + 1 / 3) / 3
    assert aurc(probs, targets).item() == pytest.approx(by_hand)
    assert aurc(probs.flip(0), targets.flip(0)).item() == pytest.approx(by_hand)


def test_risk_and_coverage_of_repeated_examples():
    """Of a resampled test set each copy of an example is a step of its own: it was taken as one, off by 9e-4."""
    generator = torch.Generator().manual_seed(4)
    probs = torch.randn(500, 3, generator=generator, dtype=torch.float64).softmax(1)
    probs = (probs * 30).round() / 30  # ties among different examples, too
    probs[:, 2] = 1 - probs[:, :2].sum(1)
    targets = torch.randint(3, (500,), generator=generator)
    counts = torch.randint(0, 4, (2, 500), generator=generator)
    for own, found in zip(counts, aurc(probs, targets, weights=counts.float()), strict=True):
        rows = torch.arange(500).repeat_interleave(own)
        assert found.item() == pytest.approx(aurc(probs[rows], targets[rows]).item(), rel=1e-12)


def test_misclassification_auroc_is_right_against_wrong():
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(300, 3, generator=generator).softmax(1)
    targets = torch.randint(3, (300,), generator=generator)
    confidence, label = probs.max(1)
    assert misclassification_auroc(probs, targets).item() == pytest.approx(pairs(confidence, label == targets))


def predicted(probs, aleatoric):
    return Classification(2, None, 0.0, probs, aleatoric, torch.zeros_like(probs))


def test_ood_figures_of_known_separation():
    sure = torch.tensor([[0.98, 0.02], [0.97, 0.03], [0.6, 0.4]], dtype=torch.float64)
    unsure = torch.tensor([[0.55, 0.45], [0.7, 0.3]], dtype=torch.float64)
    figures = ood_figures(sure, unsure)
    # of six pairs only (0.6, 0.7) is the wrong way round
    assert figures["auroc_confidence"].item() == pytest.approx(5 / 6)
    assert figures["auroc_entropy"].item() == pytest.approx(5 / 6)
    assert "auroc_epistemic" not in figures
    half = torch.full((3,), 0.1, dtype=torch.float64), torch.full((2,), 0.0, dtype=torch.float64)
    with_parts = ood_figures(predicted(sure, half[0]), predicted(unsure, half[1]))
    epistemic = -certainties(predicted(unsure, half[1]))["epistemic"]
    assert epistemic.tolist() == pytest.approx(torch.special.entr(unsure).sum(1).tolist())
    assert "auroc_epistemic" in with_parts


def test_entropy_divergence_by_hand():
    edges = np.logspace(-8, 0.5, 30)
    inside, outside = edges[[3, 3, 3, 10]] * 1.01, edges[[10, 10, 20]] * 1.01
    p, q = np.full(29, 1e-7), np.full(29, 1e-7)
    p[3] += 3
    p[10] += 1
    q[10] += 2
    q[20] += 1
    p, q = p / p.sum(), q / q.sum()
    expected = (p * np.log(p / q)).sum() + (q * np.log(q / p)).sum()
    assert entropy_divergence(inside, outside).item() == pytest.approx(expected)
    assert entropy_divergence(inside, inside).item() == pytest.approx(0, abs=1e-12)
    assert entropy_divergence(inside, outside).item() == pytest.approx(entropy_divergence(outside, inside).item())
    # what lies outside the bins is not counted
    assert entropy_divergence([*inside, 0.0, 1e-9], outside).item() == pytest.approx(expected)


def test_entropy_divergence_takes_weights():
    edges = torch.logspace(-8, 0.5, 30, dtype=torch.float64)
    inside, outside = edges[[3, 10]] * 1.01, edges[[10, 20]] * 1.01
    weighted = entropy_divergence(inside, outside, (torch.tensor([[3.0, 1.0]]), torch.tensor([[2.0, 1.0]])))
    repeated = entropy_divergence(edges[[3, 3, 3, 10]] * 1.01, edges[[10, 10, 20]] * 1.01)
    assert weighted.item() == pytest.approx(repeated.item(), rel=1e-6)


def test_weights_of_known_and_foreign_inputs_are_repetitions():
    """Those of the foreign inputs follow those of the known ones."""
    generator = torch.Generator().manual_seed(7)
    known, foreign = (torch.randn(n, 3, generator=generator, dtype=torch.float64).softmax(1) for n in (30, 20))
    counts = torch.randint(0, 4, (50,), generator=generator)
    expected = ood_figures(known.repeat_interleave(counts[:30], 0), foreign.repeat_interleave(counts[30:], 0))
    for name, value in ood_figures(known, foreign, counts.double()).items():
        assert value.item() == pytest.approx(expected[name].item(), rel=1e-6), name
