"""Training noise: a normal distribution to sixteen bits, from one stream, in the memory layout that was asked for."""

import math

import pytest
import torch

from posterity.random import generator_for, normal_, normal_like

N = 2**20


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("std", [1.0, 0.3])
def test_moments(dtype, std):
    z = normal_(torch.empty(N, dtype=dtype), std, generator=generator_for(0)).double() / std
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        assert abs(z.pow(power).mean() - moment) < 4 * math.sqrt(spread / N), power


def test_distribution():
    """The largest distance of the empirical distribution function stays under its 99.9% quantile."""
    z = normal_(torch.empty(N), generator=generator_for(1)).double().sort().values
    steps = torch.arange(N + 1, dtype=torch.float64) / N
    exact = torch.special.ndtr(z)
    distance = max((steps[1:] - exact).max(), (exact - steps[:-1]).max())
    assert distance < 1.95 / math.sqrt(N)


def test_neighbours_are_independent():
    """Four numbers come from each 64 random bits."""
    z = normal_(torch.empty(N), generator=generator_for(2)).double().view(-1, 4)
    off = z.T.cov() - torch.eye(4, dtype=torch.float64)
    assert off.abs().max() < 5 * math.sqrt(2 * 4 / N)
    squares = z.square().T.corrcoef() - torch.eye(4, dtype=torch.float64)
    assert squares.abs().max() < 5 * math.sqrt(4 / N)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 1001])
def test_same_stream_same_numbers(size):
    one, two = (normal_(torch.empty(size), generator=generator_for(3)) for _ in range(2))
    assert torch.equal(one, two)
    later = generator_for(3)
    assert size == 0 or not torch.equal(
        normal_(torch.empty(size), generator=later), normal_(torch.empty(size), generator=later)
    )


def test_layout_of_the_example():
    like = torch.zeros(3, 4, 5, 6).to(memory_format=torch.channels_last)
    torch.manual_seed(0)
    noise = normal_like(like)
    assert noise.stride() == like.stride()
    assert noise.unique().numel() > 300  # every place was filled
    torch.manual_seed(0)
    assert torch.equal(noise, normal_like(like))
