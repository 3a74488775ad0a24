"""KL of the sparsifying priors against sampling; phases; groups."""

from __future__ import annotations

import copy
import itertools
import math
from functools import partial

import pytest
import torch
from torch import nn

from posterity.layers.convert import Scheme, convert
from posterity.layers.divergence import diagonal_kl
from posterity.layers.noisy import LOCAL
from posterity.layers.select import select
from posterity.layers.sparse import GroupLocal, Phase, SparseLocal, SparseSampled
from posterity.probability.gaussians import DiagonalNormal
from posterity.probability.kl import kl_divergence
from posterity.probability.priors import EmpiricalNormal, LogUniform, Normal
from posterity.types import PosterityError

DOUBLE = torch.float64


def log_uniform_kl(log_alpha: float) -> float:
    mean = torch.ones(1, dtype=DOUBLE)
    return diagonal_kl(mean, torch.full((1,), log_alpha / 2, dtype=DOUBLE), LogUniform()).item()


def integral(log_alpha: float) -> float:
    """E log|ξ| − ½ log α for ξ ~ N(1, α): KL up to the constant that an improper prior leaves open.

    In u = log|ξ| the integrand is smooth: ∫ u [φ_α(eᵘ) + φ_α(−eᵘ)] eᵘ du.
    """
    alpha = math.exp(log_alpha)
    u = torch.linspace(-40, 12, 400_001, dtype=DOUBLE)
    x = u.exp()
    density = (torch.exp(-((x - 1) ** 2) / (2 * alpha)) + torch.exp(-((x + 1) ** 2) / (2 * alpha))) / math.sqrt(
        2 * math.pi * alpha
    )
    return torch.trapezoid(u * density * x, u).item() - 0.5 * log_alpha


def test_log_uniform_kl_is_the_integral_to_a_hundredth_of_a_nat():
    grid = torch.linspace(-11.9, 7.9, 100).tolist()
    limit = -0.5 * (0.5772156649015329 + math.log(2))  # E log|N(0, 1)|: noise without any signal in it
    for log_alpha in grid:
        assert log_uniform_kl(log_alpha) == pytest.approx(integral(log_alpha) - limit, abs=0.01)


def test_log_uniform_kl_is_the_published_fit():
    mean, log_std = torch.tensor([1.0, -0.5, 2.0], dtype=DOUBLE), torch.tensor([-3.0, 0.2, 1.9], dtype=DOUBLE)
    log_alpha = 2 * (log_std - mean.abs().log())
    fit = 0.63576 * torch.sigmoid(1.87320 + 1.48695 * log_alpha) - 0.5 * torch.log1p(torch.exp(-log_alpha)) - 0.63576
    torch.testing.assert_close(diagonal_kl(mean, log_std, LogUniform()), -fit.sum())
    torch.testing.assert_close(kl_divergence(DiagonalNormal(mean, log_std.exp()), LogUniform()), -fit.sum())


def test_log_uniform_kl_is_positive_and_falls_with_noise():
    values = [log_uniform_kl(a) for a in torch.linspace(-20, 7.9, 200).tolist()]
    assert min(values) >= 0
    assert all(left > right for left, right in itertools.pairwise(values))


def test_log_uniform_kl_gradients():
    torch.manual_seed(0)
    mean = torch.randn(20, dtype=DOUBLE).requires_grad_()
    log_std = torch.randn(20, dtype=DOUBLE).requires_grad_()
    assert torch.autograd.gradcheck(lambda m, s: diagonal_kl(m, s, LogUniform()), (mean, log_std))
    zero = torch.zeros(2, requires_grad=True)
    diagonal_kl(zero, torch.zeros(2), LogUniform()).backward()
    assert (zero.grad == 0).all()


def test_a_weight_of_next_to_no_noise_still_feels_the_prior():
    """Where log α is clipped on both sides, as in published code, scales of 1 with a std of 0.01 never go."""
    mean, log_std = torch.ones(3, requires_grad=True), torch.tensor([-4.6, -6.0, -20.0], requires_grad=True)
    value = diagonal_kl(mean, log_std, LogUniform())
    value.backward()
    torch.testing.assert_close(value, -log_std.sum() + 3 * 0.63576, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(log_std.grad, torch.full((3,), -1.0), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(mean.grad, torch.full((3,), 1.0), rtol=1e-3, atol=1e-3)


def test_ard_kl_is_half_the_log_of_one_plus_the_signal_and_what_sampling_gives():
    torch.manual_seed(0)
    mean, std = torch.tensor([0.5, -2.0, 0.01], dtype=DOUBLE), torch.tensor([0.3, 0.1, 1.0], dtype=DOUBLE)
    net = nn.Linear(3, 1, bias=False).to(DOUBLE)
    block = built(net, EmpiricalNormal(per="weight")).blocks[0]
    with torch.no_grad():
        block.mean.copy_(mean)
        block.log_std.copy_(std.log())
    expected = 0.5 * torch.log1p((mean / std).square()).sum()
    torch.testing.assert_close(block.kl(), expected)
    assert block.kl() > 0
    q = torch.distributions.Normal(mean, std)
    p = torch.distributions.Normal(0.0, (mean.square() + std.square()).sqrt())
    draws = q.sample((200_000,))
    each = (q.log_prob(draws) - p.log_prob(draws)).sum(1)
    assert abs(each.mean() - expected).item() < 5 * each.std().item() / len(each) ** 0.5


def built(module: nn.Module, prior, scheme: Scheme | None = None, init_std: float = 0.1):
    net = copy.deepcopy(module)
    scheme = scheme or Scheme(drawn=SparseSampled, noisy=SparseLocal, layers=LOCAL)
    return convert(net, select(net, None), scheme, prior, init_std)


def test_moments_and_eval_mode_are_those_of_the_survivors():
    torch.manual_seed(0)
    module = nn.Linear(5, 4).to(DOUBLE)
    net = built(module, LogUniform(), init_std=1e-4)
    block = net.blocks[0]
    with torch.no_grad():
        block.log_std[:10] = 5.0  # noise
    gone = torch.zeros(20, dtype=torch.bool).index_fill(0, torch.arange(10), True)
    assert (~block.survivors() == gone).all()
    x = torch.randn(3, 5, dtype=DOUBLE)
    pruned = nn.functional.linear(x, (module.weight.flatten() * ~gone).view(4, 5), module.bias)
    torch.testing.assert_close(net.eval()(x), pruned)
    torch.testing.assert_close(net.plain()(x), pruned)
    assert (net.std()["weight"].flatten()[:10] == 0).all() and (net.std()["weight"].flatten()[10:] > 0).all()


@pytest.mark.parametrize("scheme", ["local", "sampled"])
def test_phases(scheme):
    """Free: noise and mean. Clipped: noise about zero. Frozen: nothing, and no way back."""
    torch.manual_seed(0)
    layers = LOCAL if scheme == "local" else {}
    family = Scheme(drawn=SparseSampled, noisy=SparseLocal, layers=layers)
    module = nn.Linear(1, 2, bias=False).to(DOUBLE)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[0.1], [1.0]]))
    net = built(module, LogUniform(), family)
    block = net.blocks[0]
    with torch.no_grad():
        block.log_std.copy_(torch.tensor([1.0, 0.01], dtype=DOUBLE).log())  # the first weight is noise
    x = torch.ones(1, 1, dtype=DOUBLE)

    def moments(count: int = 3000) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            outputs = torch.stack([net(x)[0] for _ in range(count)])
        return outputs.mean(0), outputs.std(0)

    mean, std = moments()
    assert mean[0].item() == pytest.approx(0.1, abs=5 / 3000**0.5)
    assert std[0].item() == pytest.approx(1.0, rel=0.1)
    block.advance(Phase.CLIPPED)
    with torch.no_grad():
        block.mean[0], block.log_std[0] = 10.0, math.log(100.0)  # a mean that shows, and still noise
    mean, std = moments()
    assert mean[0].item() == pytest.approx(0.0, abs=500 / 3000**0.5)
    assert std[0].item() == pytest.approx(100.0, rel=0.1)
    assert mean[1].item() == pytest.approx(1.0, abs=0.01)
    block.advance(Phase.FROZEN)
    mean, std = moments(10)
    assert mean[0].abs() < 1e-100 and std[0] < 1e-100 and std[1] > 0
    with torch.no_grad():
        block.log_std[0] = -10.0  # all signal now, but too late
    assert not block.survivors()[0]
    other = built(module, LogUniform(), family)
    other.load_state_dict(net.state_dict())
    assert other.blocks[0].phase == Phase.FROZEN and not other.blocks[0].survivors()[0]


def groups(unit_weight: object = 1.0) -> Scheme:
    noisy = partial(GroupLocal, threshold=3.0, group_std=0.1, unit_weight=unit_weight)
    return Scheme(drawn=SparseSampled, noisy=noisy, layers=LOCAL)


def test_group_moments_are_those_of_a_product_of_gaussians():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(6, 2)).to(DOUBLE)
    net = built(module, Normal(1.0), groups())
    block = net.blocks[0]
    with torch.no_grad():
        block.scale.copy_(1 + 0.3 * torch.randn_like(block.scale))
        block.log_std.fill_(math.log(0.5))  # as wide as the means, so that the product of both variances counts, too
        block.log_scale_std.fill_(math.log(0.6))
        draws = torch.stack([block.draw() for _ in range(6000)])
    error = (draws.var(0) / len(draws)).sqrt()
    assert ((draws.mean(0) - block.center()).abs() < 5 * error).all()
    fourth = (draws - draws.mean(0)).pow(4).mean(0)
    spread = ((fourth - draws.var(0).square()) / len(draws)).sqrt()
    assert ((draws.var(0) - block.std().square()).abs() < 5 * spread).all()
    # One scale a filter, one an input.
    assert block.groups.shapes == ((3, 1, 1), (1, 6))
    turned = built(nn.ConvTranspose1d(2, 3, 4).to(DOUBLE), Normal(1.0), groups()).blocks[0]  # [inputs, filters, 4]
    assert turned.groups.shapes == ((1, 3, 1),)


def test_group_kl_is_that_of_scales_and_weights():
    module = nn.Linear(4, 3, bias=False).to(DOUBLE)
    for prior, times in itertools.product((Normal(0.7), LogUniform()), (1.0, 5.0)):
        block = built(module, prior, groups(times)).blocks[0]
        scales = diagonal_kl(block.scale, block.log_scale_std, LogUniform())
        weights = diagonal_kl(block.mean, block.log_std, prior)
        torch.testing.assert_close(block.kl(), times * scales + weights)


def test_units_of_each_layer_can_have_a_weight_of_their_own():
    module = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False)).to(DOUBLE)
    plain, weighed = (built(module, Normal(1.0), groups(w)).blocks[0] for w in (1.0, {"0.*": 7.0, "1.weight": 0.5}))
    scales = zip(plain.scale.split([4, 3]), plain.log_scale_std.split([4, 3]), strict=True)
    first, second = (diagonal_kl(mean, log_std, LogUniform()) for mean, log_std in scales)
    torch.testing.assert_close(weighed.kl() - plain.kl(), 6 * first - 0.5 * second)
    with pytest.raises(PosterityError, match=r"says nothing about parameter '1\.weight'"):
        built(module, Normal(1.0), groups({"0.*": 7.0}))


def test_a_unit_whose_scale_is_noise_goes_as_a_whole():
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    net = built(module, Normal(1.0), groups())
    block = net.blocks[0]
    with torch.no_grad():
        block.log_scale_std[1] = 5.0  # the second input of the first layer
        block.log_scale_std[4 + 2] = 5.0  # the third input of the second
    first, second = block.slots.layout.unflatten(block.survivors()).values()
    assert not first[:, 1].any() and first[:, [0, 2, 3]].all()
    assert not second[:, 2].any() and second[:, :2].all()
    plain = net.plain()
    assert (plain[0].weight[:, 1] == 0).all()
    drawn = net.draw()["0.weight"]
    assert (drawn[:, 1] == 0).all() and (drawn[:, [0, 2, 3]] != 0).all()
    (net(torch.randn(5, 4)).square().mean() + net.kl()).backward()
    assert block.scale.grad.abs().min() > 0 and block.log_scale_std.grad.isfinite().all()
