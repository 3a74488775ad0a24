import math

import pytest
import torch
from torch import nn

from posterity import masks
from posterity.types import PosterityError

MEAN = {"w": torch.tensor([[1.0, -2.0, 0.0, 0.5]], dtype=torch.float64), "b": torch.tensor([3.0])}
VARIANCE = {"w": torch.tensor([[4.0, 1.0, 9.0, 0.0]], dtype=torch.float64), "b": torch.tensor([1.0])}


def test_log_alpha_and_signal_to_noise_by_hand():
    alpha = masks.log_alpha(MEAN, VARIANCE)
    assert list(alpha) == ["w"]  # biases are not pruned
    assert alpha["w"].tolist() == [[math.log(4), math.log(1 / 4), math.inf, -math.inf]]
    torch.testing.assert_close(
        masks.signal_to_noise(MEAN, VARIANCE)["w"], torch.tensor([[0.5, 2.0, 0.0, math.inf]], dtype=torch.float64)
    )


def test_a_zero_mean_without_variance_is_dropped():
    zero = {"w": torch.zeros(1, 2)}
    assert masks.log_alpha(zero, {"w": torch.tensor([[0.0, 1.0]])})["w"].tolist() == [[math.inf, math.inf]]


def test_scores_refuse_what_they_cannot_use():
    with pytest.raises(PosterityError, match="no variances"):
        masks.log_alpha(MEAN, {name: torch.zeros_like(value) for name, value in VARIANCE.items()})
    with pytest.raises(PosterityError, match="negative"):
        masks.log_alpha(MEAN, {"w": -VARIANCE["w"]})


def test_magnitude_random_and_by_unit():
    params = {"w": torch.tensor([[1.0, -3.0], [0.5, 0.0]]), "b": torch.ones(2)}
    assert masks.magnitude(params)["w"].tolist() == [[1, 3], [0.5, 0]]
    assert masks.by_unit(masks.magnitude(params))["w"].tolist() == [[2, 2], [0.25, 0.25]]
    one, two = (masks.random(params, torch.Generator().manual_seed(seed))["w"] for seed in (1, 1))
    assert torch.equal(one, two) and not torch.equal(one, masks.random(params, torch.Generator().manual_seed(2))["w"])


def test_thresholds_cut_strictly():
    scores = {"w": torch.tensor([1.0, 3.0, 5.0])}
    assert masks.below(scores, 3.0)["w"].tolist() == [True, False, False]
    assert masks.above(scores, 3.0)["w"].tolist() == [False, False, True]


@pytest.mark.parametrize("keep", [0.001, 0.1, 0.3, 0.5, 1.0])
def test_top_fraction_keeps_exactly_the_best(keep):
    generator = torch.Generator().manual_seed(0)
    scores = {"a": torch.rand(10, 10, generator=generator), "b": 10 * torch.rand(5, 40, generator=generator)}
    best = masks.top_fraction(scores, keep)
    chosen = torch.cat([scores[name][best[name]] for name in scores])
    left = torch.cat([scores[name][~best[name]] for name in scores])
    assert len(chosen) == max(1, round(keep * 300))
    assert len(left) == 0 or chosen.min() >= left.max()
    each = masks.top_fraction(scores, keep, per_layer=True)
    assert [int(m.sum()) for m in each.values()] == [max(1, round(keep * n)) for n in (100, 200)]


def test_top_fraction_counts_ties_and_refuses_nonsense():
    assert int(masks.top_fraction({"w": torch.ones(30)}, 0.1)["w"].sum()) == 3
    for keep in (0.0, 1.1, -0.2):
        with pytest.raises(PosterityError, match=r"\(0, 1\]"):
            masks.top_fraction({"w": torch.ones(3)}, keep)
    for per_layer in (False, True):
        with pytest.raises(PosterityError, match="scores of 'b' hold NaN"):
            masks.top_fraction({"a": torch.ones(3), "b": torch.tensor([1.0, torch.nan])}, 0.5, per_layer)


@pytest.mark.parametrize("keep", [0.01, 0.2, 0.5, 0.9, 1.0])
def test_of_equal_scores_the_first_are_kept(keep):
    scores = torch.randint(6, (500,), generator=torch.Generator().manual_seed(4)).float()
    scores[scores == 5] = torch.inf
    order = torch.argsort(scores, descending=True, stable=True)[: round(500 * keep)]
    assert masks.top_fraction({"w": scores}, keep)["w"].nonzero().squeeze(1).tolist() == order.sort().values.tolist()


def test_bisection_finds_the_edge():
    tried = []

    def accuracy(keep):
        tried.append(keep)
        return 0.9 if keep >= 0.037 else 0.5

    found = masks.smallest_keep(accuracy, floor=0.9, rounds=12)
    assert found in tried and 0.037 <= found < 0.037 * 1.003  # e^(6.9 / 2^12) = 1.0017
    assert masks.smallest_keep(lambda keep: 1.0, floor=0.9, low=0.01) == 0.01
    assert masks.smallest_keep(lambda keep: 0.0, floor=0.9) == 1.0


def test_masks_are_applied_to_a_copy():
    module = nn.Linear(2, 2)
    module.weight.data = torch.tensor([[math.inf, 1.0], [2.0, 3.0]])
    masked = masks.apply(module, {"weight": torch.tensor([[False, True], [True, False]])})
    assert masked.weight.tolist() == [[0, 1], [2, 0]]
    assert module.weight[0, 0] == math.inf
    assert masks.sparsity(dict(masked.named_parameters())) == {"weight": 0.5}


def test_foreign_masks_are_refused():
    module = nn.Linear(2, 2)
    with pytest.raises(PosterityError, match="no such parameter"):
        masks.apply(module, {"other": torch.ones(2, 2, dtype=torch.bool)})
    with pytest.raises(PosterityError, match=r"torch.bool of shape \(2, 2\)"):
        masks.apply(module, {"weight": torch.ones(2, 3, dtype=torch.bool)})
    with pytest.raises(PosterityError, match=r"torch.float32"):
        masks.apply(module, {"weight": torch.ones(2, 2)})
