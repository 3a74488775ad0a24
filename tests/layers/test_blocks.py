"""Draws, moments and KL of the distributions over weights, against torch.distributions and against sampling."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import distributions as dist
from torch import nn

from posterity.layers import kl, variational
from posterity.layers.blocks import radial_entropy
from posterity.layers.convert import LowRankFamily
from posterity.layers.divergence import diagonal_kl, draw_with_kl, moments_with_kl
from posterity.probability import priors

DOUBLE = torch.float64


def linear(inputs: int = 4, outputs: int = 3) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs).to(DOUBLE)


def moved(module: nn.Module, seed: int = 1) -> nn.Module:
    """Variational parameters that are nowhere special."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return module


def test_kl_is_the_sum_that_torch_gives():
    block = moved(variational(linear(), init_std=0.2, prior=priors.Normal(0.7))).blocks[0]
    expected = dist.kl_divergence(dist.Normal(block.mean, block.std()), dist.Normal(0.0, 0.7)).sum()
    torch.testing.assert_close(block.kl(), expected)


def test_kl_against_a_prior_of_its_own_for_every_weight():
    mean, log_std = torch.randn(5, dtype=DOUBLE), torch.randn(5, dtype=DOUBLE)
    std, center = torch.rand(5, dtype=DOUBLE) + 0.1, torch.randn(5, dtype=DOUBLE)
    expected = dist.kl_divergence(dist.Normal(mean, log_std.exp()), dist.Normal(center, std)).sum()
    torch.testing.assert_close(diagonal_kl(mean, log_std, priors.Normal(std, center)), expected)


def test_kl_goes_from_posterior_to_prior():
    """std 0.0067, mean 0.05, prior std 0.1: 2.33 nats, and 136 in the other direction."""
    mean, log_std = torch.tensor([0.05], dtype=DOUBLE), torch.tensor([math.log(0.0067)], dtype=DOUBLE)
    assert diagonal_kl(mean, log_std, priors.Normal(0.1)).item() == pytest.approx(2.33, abs=0.005)
    reverse = dist.kl_divergence(dist.Normal(0.0, 0.1), dist.Normal(mean, log_std.exp()))
    assert reverse.item() == pytest.approx(136, abs=1)


def test_a_layer_twice_as_large_has_twice_the_kl():
    once = nn.Linear(4, 3).to(DOUBLE)
    twice = nn.Linear(4, 6).to(DOUBLE)
    with torch.no_grad():
        twice.weight.copy_(once.weight.repeat(2, 1))
    single, double = (kl(variational(layer, init_std=0.1)) for layer in (once, twice))
    torch.testing.assert_close(double, 2 * single)


@pytest.mark.parametrize(
    "prior",
    [priors.Laplace(0.4), priors.ScaleMixture(1.0, 0.1, 0.3), priors.StudentT(0.3, 3.0), priors.Normal(0.5)],
    ids=lambda p: type(p).__name__,
)
def test_kl_is_what_sampling_gives(prior):
    torch.manual_seed(0)
    block = moved(variational(linear(), init_std=0.2, prior=prior)).blocks[0]
    q = dist.Normal(block.mean.detach(), block.std().detach())
    draws = q.sample((100_000,))
    each = (q.log_prob(draws) - prior.log_density(draws)).sum(-1)
    error = each.std().item() / len(each) ** 0.5
    with torch.no_grad():
        estimate = torch.stack([block.kl() for _ in range(4000)])
    spread = estimate.std().item() / len(estimate) ** 0.5
    assert abs(estimate.mean() - each.mean()).item() < 5 * (error + spread)


def test_kl_gradients_of_the_fused_draw_are_those_of_autograd():
    mean, log_std = (torch.randn(6, dtype=DOUBLE, requires_grad=True) for _ in range(2))
    prior, weight = priors.Normal(0.7, 0.2), torch.randn(6, dtype=DOUBLE)
    torch.manual_seed(0)
    draw, divergence = draw_with_kl(mean, log_std, prior)
    found = torch.autograd.grad((draw * weight).sum() + 0.3 * divergence, (mean, log_std))
    torch.manual_seed(0)
    plain = mean + log_std.exp() * torch.randn_like(mean)
    expected_kl = dist.kl_divergence(dist.Normal(mean, log_std.exp()), dist.Normal(0.2, 0.7)).sum()
    expected = torch.autograd.grad((plain * weight).sum() + 0.3 * expected_kl, (mean, log_std))
    torch.testing.assert_close(draw, plain)
    torch.testing.assert_close(divergence, expected_kl)
    torch.testing.assert_close(found, expected)


def test_gradients_of_the_fused_moments_are_those_of_autograd():
    mean, log_std = (torch.randn(6, dtype=DOUBLE, requires_grad=True) for _ in range(2))
    for prior in (priors.Normal(0.7, 0.2), priors.Normal(torch.rand(6, dtype=DOUBLE) + 0.2)):
        left, right = torch.randn(2, 6, dtype=DOUBLE)
        center, variance, divergence = moments_with_kl(mean, log_std, prior)
        found = torch.autograd.grad((center * left + variance * right).sum() + 0.3 * divergence, (mean, log_std))
        expected_kl = dist.kl_divergence(dist.Normal(mean, log_std.exp()), dist.Normal(prior.mean, prior.std)).sum()
        loss = (mean * left + (2 * log_std).exp() * right).sum() + 0.3 * expected_kl
        torch.testing.assert_close(divergence, expected_kl)
        torch.testing.assert_close(found, torch.autograd.grad(loss, (mean, log_std)))


@pytest.mark.parametrize("estimator", ["reparameterised", "local", "flipout"])
def test_kl_is_that_of_the_parameters_now_whatever_was_drawn_before(estimator):
    net = variational(linear(), estimator=estimator, init_std=0.1)
    x = torch.randn(2, 4, dtype=DOUBLE)
    net(x)
    drawn = kl(net)  # made together with the draw
    torch.testing.assert_close(kl(net), drawn)  # made alone
    net(x)
    with torch.no_grad():
        net.blocks[0].mean.add_(1.0)
    fresh = copy.deepcopy(net)
    torch.testing.assert_close(kl(net), kl(fresh))
    assert kl(net) > drawn
    with torch.no_grad():
        net(x)
    assert kl(net).requires_grad


@pytest.mark.parametrize("estimator", ["reparameterised", "local"])
@pytest.mark.parametrize("fused", [True, False])
def test_kl_after_an_optimizer_step_is_that_of_the_new_parameters(estimator, fused):
    net = variational(linear(), estimator=estimator, init_std=0.1)
    optimizer = torch.optim.Adam(net.parameters(), 0.1, fused=fused)
    net(torch.randn(2, 4, dtype=DOUBLE)).sum().backward()  # its KL is never asked for
    optimizer.step()
    block = net.blocks[0]
    expected = dist.kl_divergence(dist.Normal(block.mean, block.std()), dist.Normal(0.0, 1.0)).sum()
    torch.testing.assert_close(kl(net), expected)
    kl(net).backward()


def test_empirical_bayes_finds_the_scale_that_maximises_the_elbo():
    net = moved(variational(linear(), estimator="reparameterised", init_std=0.2, prior=priors.EmpiricalNormal()))
    block = net.blocks[0]
    fixed = [diagonal_kl(block.mean, block.log_std, priors.Normal(s)).item() for s in torch.linspace(0.05, 3, 2000)]
    assert block.kl().item() == pytest.approx(min(fixed), abs=1e-3)
    # Envelope theorem: the gradient is that of the KL minimised over the scale.
    power = (block.mean.square() + block.log_std.exp().square()).mean()
    minimised = 0.5 * len(block.mean) * power.log() - block.log_std.sum()
    expected = torch.autograd.grad(minimised, (block.mean, block.log_std))
    torch.testing.assert_close(torch.autograd.grad(block.kl(), (block.mean, block.log_std)), expected)


def test_empirical_bayes_by_weight_is_automatic_relevance_determination():
    block = moved(variational(linear(), init_std=0.2, prior=priors.EmpiricalNormal(per="weight"))).blocks[0]
    expected = 0.5 * torch.log1p(block.mean.square() / block.std().square()).sum()
    torch.testing.assert_close(block.kl(), expected)


def test_empirical_bayes_by_unit_shares_a_scale_along_rows():
    block = moved(variational(linear(), init_std=0.2, prior=priors.EmpiricalNormal(per="unit"))).blocks[0]
    power = (block.mean.square() + block.std().square()).view(3, 4)
    expected = dist.kl_divergence(
        dist.Normal(block.mean.view(3, 4), block.std().view(3, 4)), dist.Normal(0.0, power.mean(1, keepdim=True).sqrt())
    ).sum()
    torch.testing.assert_close(block.kl(), expected)


def test_full_covariance_kl_and_moments():
    block = moved(variational(linear(), family="full", init_std=0.2, prior=priors.Normal(0.7))).blocks[0]
    q = dist.MultivariateNormal(block.mean, scale_tril=block.family().scale_tril)
    p = dist.MultivariateNormal(torch.zeros(12, dtype=DOUBLE), 0.49 * torch.eye(12, dtype=DOUBLE))
    torch.testing.assert_close(block.kl(), dist.kl_divergence(q, p))
    torch.testing.assert_close(block.std().square(), q.variance)


def test_low_rank_kl_and_covariance_of_draws():
    torch.manual_seed(0)
    block = moved(variational(linear(), family=LowRankFamily(2), init_std=0.2, prior=priors.Normal(0.7))).blocks[0]
    q = dist.LowRankMultivariateNormal(block.mean, block.directions.T, block.log_std.exp().square())
    p = dist.MultivariateNormal(torch.zeros(12, dtype=DOUBLE), 0.49 * torch.eye(12, dtype=DOUBLE))
    expected = dist.kl_divergence(dist.MultivariateNormal(block.mean, q.covariance_matrix), p)
    torch.testing.assert_close(block.kl(), expected)
    with torch.no_grad():
        draws = torch.stack([block.draw() for _ in range(10_000)])
    covariance, expected = torch.cov(draws.T), q.covariance_matrix.detach()
    # The standard error of a sample covariance is √((C_ij² + C_ii C_jj)/n); 5 of them for 144 entries.
    error = ((expected.square() + expected.diagonal().outer(expected.diagonal())) / len(draws)).sqrt()
    assert ((covariance - expected).abs() < 5 * error).all()


def test_radial_noise_has_the_stated_std_and_entropy():
    torch.manual_seed(0)
    block = variational(linear(), family="radial", init_std=0.2).blocks[0]
    with torch.no_grad():
        draws = torch.stack([block.draw() for _ in range(20_000)])
    # Each coordinate of r ε/‖ε‖ has a kurtosis of 3·3d/(d + 2) < 9: its variance estimate a standard error of √(8/n).
    assert ((draws.var(0) / block.std().square() - 1).abs() < 5 * (8 / 20_000) ** 0.5).all()
    # In one dimension r ε/‖ε‖ is a standard Normal, whose entropy is known.
    assert radial_entropy(1) == pytest.approx(0.5 * math.log(2 * math.pi * math.e))
    noise = torch.randn(200_000, 3, dtype=DOUBLE)
    length = torch.randn(200_000, 1, dtype=DOUBLE).abs()
    points = noise / noise.norm(dim=1, keepdim=True) * length
    radius = points.norm(dim=1)
    density = 2 * torch.exp(-0.5 * radius.square()) / math.sqrt(2 * math.pi) / (4 * math.pi * radius.square())
    sampled = -density.log()
    assert radial_entropy(3) == pytest.approx(sampled.mean().item(), abs=5 * sampled.std().item() / 200_000**0.5)


def test_radial_divergence_is_minus_the_entropy_and_the_expected_log_density():
    torch.manual_seed(0)
    block = variational(linear(), family="radial", init_std=0.2, prior=priors.Normal(0.7)).blocks[0]
    with torch.no_grad():
        entropy = block.log_std.sum() + sum(radial_entropy(n) for n in block.slots.layout.sizes)
        power = (block.center().square() + block.std().square()) / 0.49
        expected = -entropy + (0.5 * power + math.log(0.7) + 0.5 * math.log(2 * math.pi)).sum()
        each = torch.stack([block.kl() for _ in range(2000)])
    assert abs(each.mean() - expected) < 5 * each.std() / len(each) ** 0.5


def test_kl_each_adds_up():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).to(DOUBLE)
    block = moved(variational(net, init_std=0.1, prior=priors.Normal({"0.weight": 0.3, "1.weight": 0.7}))).blocks[0]
    torch.testing.assert_close(block.kl_each().sum(), block.kl())
    assert len(block.kl_each()) == 2


def test_the_prior_moves_with_the_network():
    net = variational(linear().float(), prior=priors.Normal({"weight": torch.full((3, 4), 0.5)}))
    assert net.to(torch.float64).blocks[0].prior.std.dtype == torch.float64
