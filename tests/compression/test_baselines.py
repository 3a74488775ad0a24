import math
from functools import partial

import pytest
import torch

from posterity.compression import Gradual, Iterative, OneShot, Pruning, score
from posterity.types import PosterityError


def weights(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(10, 10, generator=generator), "b": 3 * torch.randn(10, 30, generator=generator)}


def left(masks):
    return sum(int(m.sum()) for m in masks.values()) / sum(m.numel() for m in masks.values())


def test_schedules_by_hand():
    assert [OneShot(0.5).share(t) for t in (0, 0.49, 0.5, 1)] == [0, 0, 1, 1]
    cubic = Gradual(0.2, 0.8)
    assert [cubic.share(t) for t in (0.0, 0.2, 0.8, 1.0)] == [0, 0, 1, 1]
    assert cubic.share(0.5) == pytest.approx(1 - 0.5**3)
    steps = Iterative(rounds=3, start=0.2, stop=0.8)
    assert [steps.share(t) for t in (0.1, 0.2, 0.49, 0.5, 0.79, 0.8, 1.0)] == pytest.approx(
        [0, 1 / 3, 1 / 3, 2 / 3, 2 / 3, 1, 1]
    )
    assert [Iterative(rounds=1, start=0.4).share(t) for t in (0.39, 0.4)] == [0, 1]


@pytest.mark.parametrize("schedule", [OneShot(0.3), Gradual(), Iterative()])
def test_keep_is_reached_and_never_grows_back(schedule):
    pruning, params, masks = Pruning(keep=0.1, schedule=schedule), weights(), None
    fractions = []
    for step in range(11):
        before = masks
        masks = pruning.masks(params, step / 10, masks)
        fractions.append(left(masks))
        if before is not None:
            assert all(bool((before[name] | ~masks[name]).all()) for name in masks)
        params = weights(seed=step)  # the weights move in between
    assert fractions[0] == 1 and fractions[-1] == pytest.approx(0.1)
    assert fractions == sorted(fractions, reverse=True)
    assert fractions[4] == pytest.approx(1 - 0.9 * schedule.share(0.4), abs=1 / 400)


def test_regrown_weights_come_back():
    params = {"w": torch.tensor([[3.0, 1.0]])}
    masks = Pruning(keep=0.5, schedule=OneShot(0.0)).masks(params, 1.0)
    moved = {"w": torch.tensor([[0.5, 9.0]])}
    assert Pruning(keep=0.5, schedule=OneShot(0.0)).masks(moved, 1.0, masks)["w"].tolist() == [[True, False]]
    assert Pruning(keep=0.5, schedule=OneShot(0.0), regrow=True).masks(moved, 1.0, masks)["w"].tolist() == [
        [False, True]
    ]


def test_threshold_rises_with_the_schedule():
    params = {"w": torch.tensor([[0.0, 0.1, 0.6, 1.0]])}
    pruning = Pruning(threshold=0.8, schedule=Iterative(rounds=2, start=0.5, stop=1.0))
    assert [int(pruning.masks(params, t)["w"].sum()) for t in (0.0, 0.5, 1.0)] == [4, 2, 1]


def test_criterion_and_layers():
    params = weights()
    chance = partial(score.random, generator=torch.Generator().manual_seed(0))
    masks = Pruning(keep=0.25, schedule=OneShot(0), per_layer=True).masks(params, 1.0, criterion=chance)
    assert [int(m.sum()) for m in masks.values()] == [25, 75]
    by_size = Pruning(keep=0.25, schedule=OneShot(0)).masks(params, 1.0)
    assert int(by_size["b"].sum()) > 90  # three times as large, so nearly all of them


def test_bad_settings_are_refused():
    for bad in ({}, {"keep": 0.1, "threshold": 1.0}, {"keep": 0.0}, {"threshold": -1.0}, {"threshold": math.nan}):
        with pytest.raises(PosterityError):
            Pruning(**bad)
    with pytest.raises(PosterityError, match="start < stop"):
        Gradual(0.5, 0.5)
    with pytest.raises(PosterityError, match="at least one round"):
        Iterative(rounds=0)
