"""Learning-rate factors at the ends of a run."""

import pytest

import posterity as pst
from posterity.optim import schedules
from posterity.types import Plan


def test_schedules_hit_their_endpoints():
    plan = Plan(100, 100, 10, 10, None)
    at = lambda s, step: schedules.schedule(s).factor(step, plan)  # noqa: E731
    assert at("constant", 57) == 1
    assert at("linear", 0) == 1 and at("linear", 50) == pytest.approx(0.5)
    assert at("cosine", 0) == 1 and at("cosine", 50) == pytest.approx(0.5) and at("cosine", 99) < 1e-3
    assert at("one-cycle", 0) == pytest.approx(1 / 25) and at("one-cycle", 30) == 1 and at("one-cycle", 99) < 1e-2
    assert (
        at("multi-step", 49) == 1
        and at("multi-step", 50) == pytest.approx(0.1)
        and at("multi-step", 75) == pytest.approx(0.01)
    )
    cycle = schedules.CyclicalCosine(4)
    assert [round(cycle.factor(s, plan), 3) for s in (0, 25, 50, 75)] == [1, 1, 1, 1]
    assert all(cycle.factor(s, plan) < 0.01 for s in (24, 49, 74, 99))


def test_schedules_between_their_endpoints():
    plan = Plan(100, 100, 10, 10, None)
    at = lambda s, step: s.factor(step, plan)  # noqa: E731
    assert at(schedules.Linear(end=0.2), 25) == pytest.approx(0.8)
    assert at(schedules.Cosine(end=0.2), 25) == pytest.approx(0.2 + 0.8 * (2 + 2**0.5) / 4)
    assert at(schedules.OneCycle(), 15) == pytest.approx((1 / 25 + 1) / 2)
    assert at(schedules.OneCycle(), 65) == pytest.approx(0.5)
    assert at(schedules.MultiStep(warmup=0.2), 4) == pytest.approx(0.25)
    assert at(schedules.MultiStep(warmup=0.2), 60) == pytest.approx(0.1)
    assert at(schedules.CyclicalCosine(4), 55) == pytest.approx(0.5 * (1 + 0.8090169943749475))  # cos of a fifth of π


def test_a_schedule_of_no_cycles_is_refused():
    for cycles, sentence in ((0, "cycles must be positive"), (2.5, "cycles must be a whole number")):
        with pytest.raises(pst.PosterityError, match=sentence):
            schedules.CyclicalCosine(cycles)
