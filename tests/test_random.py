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


@pytest.mark.parametrize("size", [0, 1, 2**16, 2**16 + 1, 3 * 2**16 - 2])
def test_noise_made_in_pieces_is_that_of_one_long_stretch_of_bits(size):
    bits = torch.empty(-(-size // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator_for(5))
    quantiles = torch.special.ndtri((torch.arange(2**16).double() + 0.5) / 2**16)
    expected = quantiles[bits.view(torch.uint16)[:size].long()] / quantiles.square().mean().sqrt()
    found = normal_(torch.empty(size), 2.0, generator=generator_for(5)).double()
    torch.testing.assert_close(found, 2 * expected, rtol=2e-7, atol=0)
