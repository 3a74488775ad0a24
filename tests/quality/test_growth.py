"""Growth and floor: exponents, FLOPs and seconds with known answers, and what the page says of them."""

import pytest
from benchmarks.speed import floor, growth, growth_page
from torch import nn


def test_the_exponent_of_a_power_law():
    x = [1.0, 10.0, 100.0]
    assert growth.exponent(x, [3 * v**0.7 for v in x]) == pytest.approx(0.7)


@pytest.mark.parametrize("weights", [1e4, 1e6])
def test_networks_have_as_many_weights_as_asked_for(weights):
    assert sum(p.numel() for p in growth.network(weights).parameters()) == pytest.approx(weights, rel=0.05)


def test_the_flops_of_one_layer():
    """Forward and the weight's gradient are 2·batch·inputs·outputs each; the input needs no gradient."""
    assert floor.step_flops(nn.Linear(5, 3), (5,), 7) == 2 * 2 * 7 * 5 * 3


def test_the_floor_is_the_longer_of_arithmetic_and_traffic():
    rates = {"FLOPs a second": 100.0, "bytes a second": 10.0}
    assert floor.seconds(rates, flops=1000, weights=1) == 10.0
    assert floor.seconds(rates, flops=1, weights=1) == 4.0


def test_the_page_says_what_is_steeper_than_linear():
    points = {10: 1.0, 100: 4.0, 1000: 16.0 * 10**0.5}
    cases = {f"draws {n}": {"predict": {"seconds": s, "peak_bytes": 1}} for n, s in points.items()}
    found = {
        "torch": "2",
        "date": "2026-11-16",
        "cases": cases,
        "figures": {"bytes a second": 1e9, "draws: time of predict": 1.3},
    }
    steep = "Above 1.1: time of predict against draws (1.30; 1.10 at the end)."
    assert growth_page.verdict(found) == f"torch 2, 2026-11-16. {steep}"
    flat = found | {"figures": {"draws: time of predict": 1.0}}
    assert growth_page.verdict(flat) == "torch 2, 2026-11-16. No exponent is above 1.1."


def test_the_page_says_how_far_the_floor_is():
    rows = {name: {"seconds": 3.0} for name in growth_page.LINES} | {"floor": {"seconds": 2.0}}
    assert "| IVON | 1.5 |" in growth_page.distances({"cases": {"weights 10000": rows}})
