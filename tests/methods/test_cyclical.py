import itertools
import math

import pytest
import torch
from torch import nn

import posterity as pst
from posterity.methods.cyclical import Cycles
from posterity.types import Plan, PosterityError

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(5))
Y = (X.sum(1) > 0).long()


def plan(steps):
    return Plan(60, steps, 10, 20, None, 0.1)


@pytest.mark.parametrize(("steps", "cycles"), [(100, 4), (103, 4), (99, 7)])
def test_every_cycle_begins_at_the_full_rate_and_ends_near_zero(steps, cycles):
    method = pst.Cyclical(cycles=cycles, explore=0.5, samples=2)
    pace, times = method.schedule(plan(steps)), method.timetable(plan(steps))
    begins = [times.begin(i) for i in range(cycles)]
    rates = [pace.lr(step) for step in range(steps)]
    assert [step for step in range(steps) if rates[step] == 1.0] == begins
    for begin, end in zip(begins, [*begins[1:], steps], strict=True):
        length = end - begin
        assert length in (steps // cycles, steps // cycles + 1)
        expected = [0.5 * (math.cos(math.pi * i / length) + 1) for i in range(length)]
        assert rates[begin:end] == pytest.approx(expected)
        assert rates[end - 1] < 0.04


@pytest.mark.parametrize("cycles", [Cycles(10, 33, 4), Cycles(0, 99, 7)])
def test_the_shortest_cycle_is_that_after_the_long_one(cycles):
    begins = [cycles.begin(i) for i in range(cycles.cycles + 1)]
    assert begins[0] == cycles.first and begins[-1] == cycles.steps
    assert cycles.shortest == min(end - begin for begin, end in itertools.pairwise(begins))


def test_noise_is_on_in_the_last_part_of_each_cycle_only():
    method = pst.Cyclical(of=pst.SGLD(temperature=0.7), cycles=4, explore=0.8, samples=2)
    pace = method.schedule(plan(100))
    hot = [step for step in range(100) if pace.temperature(step) > 0]
    assert hot == [25 * cycle + i for cycle in range(4) for i in range(20, 25)]
    assert {pace.temperature(step) for step in hot} == {0.7}


def test_samples_are_spread_over_the_sampling_part_and_end_each_cycle():
    times = pst.Cyclical(cycles=4, explore=0.4, samples=3).timetable(plan(100))
    assert sorted(times.sampled(0.4, 3)) == [25 * c + i for c in range(4) for i in (15, 20, 25)]
    for steps in (97, 100, 131):
        times = pst.Cyclical(cycles=4, explore=0.9, samples=2).timetable(plan(steps))
        kept = sorted(times.sampled(0.9, 2))
        assert len(kept) == 8
        assert kept[-1] == steps


def test_fast_geometric_first_walks_one_long_cycle():
    method = pst.FastGeometric(start=0.6, cycles=4, peak=0.25)
    pace = method.schedule(plan(100))
    assert pace.lr(0) == 1.0
    assert pace.lr(30) == pytest.approx(0.5)
    assert pace.lr(60) == pace.lr(70) == pytest.approx(0.25)
    assert sorted(method.timetable(plan(100)).sampled(0.9, 1)) == [70, 80, 90, 100]
    assert all(pace.temperature(step) == 0 for step in range(100))


@pytest.mark.parametrize("method", [pst.Cyclical(of=pst.SGHMC(lr=0.05)), pst.Snapshot(), pst.FastGeometric()])
def test_fit_gives_the_samples_of_all_cycles(method):
    training = pst.Training(batch_size=4, progress=False)
    posterior = pst.fit(nn.Linear(3, 2), method, (X, Y), epochs=10, training=training)
    assert posterior.distinct == method.cycles * method.samples
    assert len({float(point["weight"].sum()) for point in posterior.points}) == posterior.distinct


def test_snapshots_are_plain_sgd_with_warm_restarts():
    """Against torch's own SGD under the same rates and batches: full batch, so that there is no shuffling."""
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    method = pst.Snapshot(of=pst.SGHMC(lr=0.05, temperature=0.0, friction=0.2), cycles=3, explore=0.0)
    training = pst.Training(batch_size=60, steps=30, progress=False)
    posterior = pst.fit(module, method, (X, Y), training=training)
    pace, kept = method.schedule(plan(30)), []
    decay, velocity = 1 / 60, [torch.zeros_like(p) for p in module.parameters()]
    for step in range(30):
        module.zero_grad()
        nn.functional.cross_entropy(module(X), Y).backward()
        with torch.no_grad():
            for p, v in zip(module.parameters(), velocity, strict=True):
                v.mul_(0.8).sub_(0.05 * pace.lr(step) * (p.grad + decay * p))
                p.add_(v)
        if (step + 1) % 10 == 0:
            kept.append(module.weight.detach().clone())
    for point, expected in zip(posterior.points, kept, strict=True):
        torch.testing.assert_close(point["weight"], expected, rtol=1e-5, atol=1e-6)


def test_a_prior_of_several_numbers_is_the_samplers_too():
    given = pst.priors.Normal(torch.tensor([0.2, 0.5]))
    assert pst.Cyclical(prior=given).of.prior is given
    assert pst.HWA(prior=given).of.prior is given


def test_the_prior_is_the_samplers():
    given = pst.Cyclical(prior=pst.priors.Normal(0.2))
    assert given.of.prior == pst.priors.Normal(0.2)
    assert pst.Cyclical(of=pst.SGLD(prior=pst.priors.Normal(3.0))).prior == pst.priors.Normal(3.0)


@pytest.mark.parametrize("length, explore, samples", [(30, 0.9, 3), (10, 0.8, 2), (50, 0.9, 5), (37, 0.8, 3)])
def test_a_cycle_gives_all_its_samples_even_when_it_just_can(length, explore, samples):
    method = pst.Cyclical(cycles=4, explore=explore, samples=samples)
    times, pace = method.timetable(plan(4 * length)), method.schedule(plan(4 * length))
    kept = times.sampled(explore, samples)
    assert len(kept) == 4 * samples
    assert all(pace.temperature(step - 1) == 1.0 for step in kept)


def test_what_cannot_work_is_refused():
    with pytest.raises(PosterityError, match="leave burn_in, thin and lr_schedule out"):
        pst.Cyclical(of=pst.SGLD(thin=5))
    with pytest.raises(PosterityError, match="needs a sampler"):
        pst.Cyclical(of=pst.MAP())
    with pytest.raises(PosterityError, match="cycles must be positive"):
        pst.Cyclical(cycles=0)
    for options in ({"cycles": 2.5}, {"samples": 1.5}):
        with pytest.raises(PosterityError, match="whole number"):
            pst.Cyclical(**options)
    with pytest.raises(PosterityError, match="too short for 3 samples"):
        pst.Cyclical().timetable(plan(40))
    with pytest.raises(PosterityError, match="schedule of its own"):
        pst.fit(
            nn.Linear(3, 2), pst.Cyclical(), (X, Y), training=pst.Training(schedule="cosine", steps=400, batch_size=4)
        )
