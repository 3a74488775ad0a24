"""The estimators have the moments of weight sampling, and the gradients that finite differences find."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from posterity.layers.estimators import (
    Geometry,
    deviation,
    drawn,
    flipout_convolution,
    flipout_linear,
    local_convolution,
    local_linear,
)

GEOMETRIES = {
    "1d, stride": (1, Geometry((2,), (1,), (1,), False, (0,), 1)),
    "2d, dilation and groups": (2, Geometry((1, 1), (1, 0), (2, 1), False, (0, 0), 2)),
    "3d": (3, Geometry((1, 1, 1), (0, 1, 1), (1, 1, 1), False, (0, 0, 0), 1)),
    "2d transposed": (2, Geometry((2, 2), (1, 1), (1, 1), True, (1, 0), 1)),
    "1d transposed, groups": (1, Geometry((2,), (0,), (1,), True, (0,), 2)),
}


def tensor(*shape: int, seed: int = 0, positive: bool = False) -> torch.Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return 0.1 + values.square() if positive else values


def convolution(dimensions: int, geometry: Geometry) -> dict[str, torch.Tensor]:
    shape = (4, 4 // geometry.groups, *[3] * dimensions)
    return {
        "x": tensor(2, 4, *[5] * dimensions, seed=1),
        "mean": tensor(*shape, seed=2),
        "variance": tensor(*shape, seed=3, positive=True),
        "bias": tensor(4, seed=4),
        "bias_variance": tensor(4, seed=5, positive=True),
    }


def close_moments(draws: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> None:
    """5 standard errors: a false alarm in fewer than one of 10,000 tests of this size."""
    count = len(draws)
    assert ((draws.mean(0) - mean).abs() <= 5 * (variance / count).sqrt()).all()
    assert ((draws.var(0) / variance - 1).abs() <= 5 * (2.5 / count) ** 0.5).all()  # kurtosis at most a little over 3


def step(variance: torch.Tensor) -> torch.Tensor:
    return variance.sqrt() * torch.randn_like(variance)


def test_local_and_flipout_linear_have_the_moments_of_weight_sampling():
    torch.manual_seed(0)
    x, mean, variance = tensor(3, 6, seed=1), tensor(4, 6, seed=2), tensor(4, 6, seed=3, positive=True)
    bias, bias_variance = tensor(4, seed=4), tensor(4, seed=5, positive=True)
    center, spread = F.linear(x, mean, bias), F.linear(x.square(), variance, bias_variance)
    close_moments(local_linear(x.expand(20_000, 3, 6), mean, variance, bias, bias_variance), center, spread)
    flipped = [flipout_linear(x, mean, step(variance), bias, step(bias_variance)) for _ in range(4000)]
    close_moments(torch.stack(flipped), center, spread)
    sampled = [F.linear(x, mean + step(variance), bias + step(bias_variance)) for _ in range(4000)]
    close_moments(torch.stack(sampled), center, spread)


@pytest.mark.parametrize("case", GEOMETRIES.values(), ids=GEOMETRIES.keys())
def test_local_and_flipout_convolutions_have_the_moments_of_weight_sampling(case):
    dimensions, geometry = case
    torch.manual_seed(0)
    t = convolution(dimensions, geometry)
    center = torch.convolution(t["x"], t["mean"], t["bias"], *geometry)
    spread = torch.convolution(t["x"].square(), t["variance"], t["bias_variance"], *geometry)
    many = t["x"].expand(2000, *t["x"].shape).flatten(0, 1)
    local = local_convolution(many, *list(t.values())[1:], geometry).unflatten(0, (2000, 2))
    close_moments(local, center, spread)
    flipped = [
        flipout_convolution(t["x"], t["mean"], step(t["variance"]), t["bias"], step(t["bias_variance"]), geometry)
        for _ in range(2000)
    ]
    close_moments(torch.stack(flipped), center, spread)


def test_noise_of_two_examples_is_uncorrelated_by_flipout_and_local_and_correlated_by_weight_sampling():
    torch.manual_seed(1)
    x = tensor(1, 6, seed=1).expand(2, 6)  # the same example twice
    mean, variance = tensor(1, 6, seed=2), tensor(1, 6, seed=3, positive=True)
    count = 4000

    def correlation(draws: list[torch.Tensor]) -> float:
        return float(torch.corrcoef(torch.stack(draws).squeeze(-1).T)[0, 1])

    steps = [step(variance) for _ in range(count)]
    assert correlation([F.linear(x, mean + s) for s in steps]) > 0.999
    assert abs(correlation([flipout_linear(x, mean, s) for s in steps])) < 5 / count**0.5
    assert abs(correlation([local_linear(x, mean, variance) for _ in steps])) < 5 / count**0.5


def test_flipout_gives_the_inputs_signs_of_their_own_under_one_deviation():
    """Over signs alone an output varies by Σ (x·deviation)², each input (a convolution's channel) by itself."""
    torch.manual_seed(2)
    x, mean, fixed, bias = tensor(1, 6, seed=1), tensor(4, 6, seed=2), tensor(4, 6, seed=3), tensor(4, seed=4)
    flipped = flipout_linear(x.expand(20_000, 6), mean, fixed, None, bias)
    close_moments(flipped, F.linear(x, mean)[0], F.linear(x.square(), fixed.square(), bias.square())[0])
    geometry = Geometry((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    image, kernel, fixed = tensor(1, 6, 3, 3, seed=1), tensor(4, 6, 2, 2, seed=2), tensor(4, 6, 2, 2, seed=3)
    parts = [F.conv2d(image[:, c : c + 1], fixed[:, c : c + 1])[0] for c in range(6)]
    spread = torch.stack(parts).square().sum(0) + bias.square()[:, None, None]
    flipped = flipout_convolution(image.expand(20_000, 6, 3, 3), kernel, fixed, None, bias, geometry)
    close_moments(flipped, F.conv2d(image, kernel)[0], spread)


def test_drawn_weights_have_the_means_and_variances_that_are_given():
    torch.manual_seed(4)
    mean, variance = tensor(6, seed=2), tensor(6, seed=3, positive=True)
    close_moments(drawn(mean.expand(20_000, 6), variance.expand(20_000, 6)), mean, variance)


def test_without_deviation_flipout_has_no_noise():
    x, mean = tensor(5, 6), tensor(4, 6, seed=1)
    torch.testing.assert_close(flipout_linear(x, mean, torch.zeros_like(mean)), F.linear(x, mean), rtol=0, atol=0)


def test_local_linear_gradients():
    x, mean = tensor(3, 5).requires_grad_(), tensor(4, 5, seed=1).requires_grad_()
    variance = tensor(4, 5, seed=2, positive=True).requires_grad_()
    bias, bias_variance = tensor(4, seed=3).requires_grad_(), tensor(4, seed=4, positive=True).requires_grad_()

    def seeded(*inputs: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return local_linear(*inputs)

    assert torch.autograd.gradcheck(seeded, (x, mean, variance, bias, bias_variance))
    assert torch.autograd.gradcheck(seeded, (x.unsqueeze(0), mean, variance))


@pytest.mark.parametrize("case", GEOMETRIES.values(), ids=GEOMETRIES.keys())
def test_local_convolution_gradients(case):
    dimensions, geometry = case
    t = convolution(dimensions, geometry)
    t["x"] = t["x"][:1]

    def seeded(*inputs: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return local_convolution(*inputs, geometry)

    inputs = tuple(value.clone().requires_grad_() for value in t.values())
    assert torch.autograd.gradcheck(seeded, inputs, fast_mode=True)


def test_inputs_without_variance_leave_finite_gradients():
    """Black pixels give outputs of variance 0, whose square root has no slope."""
    x = torch.zeros(2, 5)
    mean, variance = torch.ones(3, 5, requires_grad=True), torch.full((3, 5), 0.1, requires_grad=True)
    local_linear(x, mean, variance).square().sum().backward()
    assert mean.grad.isfinite().all() and variance.grad.isfinite().all()


def test_deviation_gradient():
    log_std = tensor(7).requires_grad_()

    def seeded(value: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return deviation(value)

    assert torch.autograd.gradcheck(seeded, (log_std,))


def test_autocast_gives_the_type_that_autocast_gives():
    x, mean, variance = torch.randn(4, 6), torch.randn(3, 6, requires_grad=True), torch.rand(3, 6, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = local_linear(x, mean, variance)
        assert out.dtype == F.linear(x, mean).dtype == torch.bfloat16
    out.float().sum().backward()
    assert mean.grad.dtype == torch.float32
