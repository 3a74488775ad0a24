import numpy as np
import pytest
import torch
from torch import nn

from posterity.flat import Layout
from posterity.methods.collect import Snapshots, Times, Trajectory
from posterity.run import NoCollector, Run
from posterity.types import Plan, PosterityError

SHAPES = {"a.weight": (7, 5), "a.bias": (7,), "b.weight": (3, 7)}


def snapshots(n, mean=0.0, std=1.0, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        {name: (mean + std * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)
         for name, shape in SHAPES.items()}
        for _ in range(n)
    ]  # fmt: skip


def stored(points):
    layout = Layout.of(points[0])
    return layout, np.stack([layout.flatten(p).double().numpy() for p in points])


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (1e3, 1e-3), (-5.0, 1e-4)])
def test_moments_are_numpys_even_where_the_mean_dwarfs_the_spread(mean, std):
    points = snapshots(50, mean, std)
    layout, matrix = stored(points)
    path = Trajectory(layout, rank=4)
    for point in points:
        path.add(point)
    np.testing.assert_allclose(path.mean.numpy(), matrix.mean(0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(path.variance.numpy(), matrix.var(0), rtol=1e-5)


def test_blocks_cover_every_weight_once(monkeypatch):
    monkeypatch.setitem(__import__("posterity.methods.collect", fromlist=["_BLOCK"])._BLOCK, "cpu", 4)
    points = snapshots(6)
    layout, matrix = stored(points)
    path = Trajectory(layout, rank=3, within=True)
    for point in points:
        path.add(point, {name: w.square() for name, w in point.items()})
    np.testing.assert_allclose(path.mean.numpy(), matrix.mean(0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(path.variance.numpy(), matrix.var(0), rtol=1e-5)
    np.testing.assert_allclose(path.within.numpy(), (matrix**2).mean(0), rtol=1e-5)


@pytest.mark.parametrize("count", [2, 9])
def test_deviations_are_from_the_running_mean_after_its_update_and_the_last_ones_are_kept(count):
    points = snapshots(count, dtype=torch.float64)
    layout, matrix = stored(points)
    path = Trajectory(layout, rank=4, dtype=torch.float64)
    for point in points:
        path.add(point)
    expected = [matrix[n] - matrix[: n + 1].mean(0) for n in range(count)][-4:]
    assert len(path.deviations) == len(expected)
    kept = {tuple(row.round(decimals=9).tolist()) for row in path.deviations}
    assert kept == {tuple(np.round(row, 9).tolist()) for row in expected}


@pytest.mark.parametrize("cut", [0, 1, 3, 5, 9])
def test_resumed_anywhere_gives_the_same_bits(cut):
    points = snapshots(9)
    layout = Layout.of(points[0])
    whole = Trajectory(layout, rank=4)
    for point in points:
        whole.add(point)
    before, after = Trajectory(layout, rank=4), Trajectory(layout, rank=4)
    for point in points[:cut]:
        before.add(point)
    after.load_state_dict(before.state_dict())
    for point in points[cut:]:
        after.add(point)
    for got, expected in zip(after.state_dict().values(), whole.state_dict().values(), strict=True):
        assert torch.equal(torch.as_tensor(got), torch.as_tensor(expected))


@pytest.mark.parametrize(("decay", "dtype", "error"), [(0.9, torch.float64, 1e-12), (0.5, torch.float32, 1e-6)])
def test_decay_weighs_snapshots_exponentially(decay, dtype, error):
    """The second's weights, counted without end, would go beyond float32 with the 128th snapshot."""
    points = snapshots(200, dtype=dtype)
    layout, matrix = stored(points)
    path = Trajectory(layout, rank=0, decay=decay, dtype=dtype)
    for point in points:
        path.add(point)
    weights = np.ones(1)
    for n in range(2, 201):  # the share of the n-th is at least 1/n, so that the first ones are a plain average
        share = max(1 / n, 1 - decay)
        weights = np.append(weights * (1 - share), share)
    mean = weights @ matrix
    np.testing.assert_allclose(path.mean.numpy(), mean, atol=error)
    np.testing.assert_allclose(path.variance.numpy(), weights @ (matrix - mean) ** 2, rtol=100 * error)


def test_bfloat16_weights_leave_float32_moments():
    points = snapshots(30, mean=2.0, dtype=torch.bfloat16)
    layout, matrix = stored(points)
    path = Trajectory(layout, rank=2, rows_dtype=torch.bfloat16)
    for point in points:
        path.add(point)
    assert path.mean.dtype == torch.float32
    assert path.deviations.dtype == torch.bfloat16
    np.testing.assert_allclose(path.mean.numpy(), matrix.mean(0), rtol=1e-5)
    np.testing.assert_allclose(path.variance.numpy(), matrix.var(0), rtol=1e-5)
    np.testing.assert_allclose(path.deviations[1].double().numpy(), matrix[-1] - matrix.mean(0), rtol=1e-2, atol=1e-2)


def test_times_count_what_they_give():
    for start, every, steps in [(0, 1, 5), (3, 4, 20), (10, 7, 11), (5, 5, 20)]:
        times = Times(start, every)
        assert sum(times(step) for step in range(1, steps + 1)) == times.count(steps)
    assert [step for step in range(1, 21) if Times(5, 5)(step)] == [10, 15, 20]


def test_snapshots_observe_a_run_when_due():
    module = nn.Linear(3, 2)
    path = Trajectory(Layout.of(dict(module.named_parameters())), rank=2)
    collector = Snapshots(path, Times(2, 2))
    run = Run(module, None, NoCollector(), None, None)
    for step in range(1, 9):
        run.step = step
        with torch.no_grad():
            module.weight.fill_(float(step))
        collector.observe(run)
    assert path.count == 3  # after 4, 6 and 8
    assert torch.allclose(path.named(path.mean)["weight"], torch.full((2, 3), 6.0))


def test_a_start_that_is_no_number_is_refused_and_numpys_numbers_are_steps():
    plan = Plan(100, 100, 10, 10, None, 0.1)
    for start in ("epoch", float("nan"), None):
        with pytest.raises(PosterityError, match="start must be a step"):
            Times.of(plan, start, 1, 10)
    assert Times.of(plan, np.int64(50), np.int64(5), 10) == Times(50, 5)
    assert Times.of(plan, np.float64(0.5), 5, 10) == Times(50, 5)


def test_bad_input_is_refused():
    points = snapshots(1)
    layout = Layout.of(points[0])
    with pytest.raises(PosterityError, match="rank"):
        Trajectory(layout, rank=-1)
    with pytest.raises(PosterityError, match="decay"):
        Trajectory(layout, rank=2, decay=1.0)
    with pytest.raises(PosterityError, match="0 snapshots"):
        _ = Trajectory(layout, rank=2).mean
    with pytest.raises(PosterityError, match="within=True"):
        Trajectory(layout, rank=2).add(points[0], points[0])
