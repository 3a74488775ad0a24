"""Flows: their determinants, the moments they claim, and the bound they give."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn

from posterity.layers.convert import Scheme, convert
from posterity.layers.flows import Flow, FlowBlock, _by_unit
from posterity.layers.noisy import SCALED
from posterity.layers.select import select
from posterity.probability.priors import Normal

DOUBLE = torch.float64


def converted(module: nn.Module, hidden: int = 8, steps: int = 2):
    scheme = Scheme(noisy=partial(FlowBlock, hidden=hidden, steps=steps), layers=SCALED)
    return convert(module, select(module, None), scheme, Normal(1.0), 0.1)


def test_log_determinant_is_that_of_the_jacobian():
    torch.manual_seed(0)
    flow = Flow(5, 7, 3).to(DOUBLE)
    for step in flow.steps:
        nn.init.normal_(step.gate.bias)
    z = torch.randn(4, 5, dtype=DOUBLE)
    moved, log_det = flow(z)
    for row, expected in zip(z, log_det, strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda v: flow(v[None])[0][0], row)
        torch.testing.assert_close(torch.linalg.slogdet(jacobian).logabsdet, expected)
    assert not torch.allclose(moved, z)


def test_steps_take_turns_in_the_half_that_moves():
    """z ⊙ s + (1 − s) ⊙ t for one half, with s and t of the half that stays."""
    torch.manual_seed(0)
    flow, z = Flow(5, 7, 2).to(DOUBLE), torch.randn(4, 5, dtype=DOUBLE)
    for step, stays in zip(flow.steps, ([1, 3], [0, 2, 4]), strict=True):
        h = torch.tanh(z[:, stays] @ step.hidden.weight[:, stays].T + step.hidden.bias)
        s, t = step.gate(h).sigmoid(), step.shift(h)
        expected = (z * s + (1 - s) * t).index_copy(1, torch.tensor(stays), z[:, stays])
        torch.testing.assert_close(step(z)[0], expected)


def test_log_q_is_the_density_of_the_draws():
    """Without steps z is Gaussian, and its density is known; with steps the density must integrate to one."""
    torch.manual_seed(0)
    block = converted(nn.Linear(1, 1).to(DOUBLE), steps=1).blocks[0]
    scales = block.scales[0]
    with torch.no_grad():
        scales.log_std.fill_(-0.5)
        nn.init.normal_(scales.forward_flow.steps[0].gate.bias)
        noise = torch.linspace(-8, 8, 20_001, dtype=DOUBLE)[:, None]
        z, log_q = scales.draw(noise)
        mass = torch.trapezoid(log_q.exp(), z[:, 0])
    torch.testing.assert_close(mass, torch.ones((), dtype=DOUBLE), atol=1e-6, rtol=0)


def test_log_r_is_a_density_of_the_scales_whatever_the_weights():
    torch.manual_seed(0)
    scales = converted(nn.Linear(1, 3, bias=False).to(DOUBLE), steps=1).blocks[0].scales[0]
    grid = torch.linspace(-40, 40, 1001, dtype=DOUBLE)
    with torch.no_grad():
        for parameter in (scales.look, scales.aim, scales.spread):
            parameter.fill_(0.7)
        nn.init.normal_(scales.auxiliary.steps[0].gate.bias)
        for weights in (torch.full((1, 3), 2.0, dtype=DOUBLE), torch.full((1, 3), -0.5, dtype=DOUBLE)):
            log_r = torch.stack([scales.log_auxiliary(z.view(1, 1), weights) for z in grid])
            mass = torch.trapezoid(log_r.exp(), grid)
            torch.testing.assert_close(mass, torch.ones((), dtype=DOUBLE), atol=1e-6, rtol=0)


def test_r_looks_at_the_weights_of_a_unit():
    kernel, matrix = torch.randn(4, 2, 3, 3), torch.randn(3, 5)
    torch.testing.assert_close(_by_unit(kernel, (4, 1, 1, 1)), kernel.flatten(1))
    torch.testing.assert_close(_by_unit(matrix, (1, 5)), matrix.T)


def test_given_its_scales_a_pass_has_the_noise_of_a_draw():
    """With scales that hardly vary: outputs of many examples against outputs of many draws."""
    torch.manual_seed(0)
    net = converted(nn.Linear(2, 1, bias=False).to(DOUBLE))
    block = net.blocks[0]
    with torch.no_grad():
        block.mean.fill_(0.8)
        block.scales[0].log_std.fill_(-12.0)
        x = torch.tensor([[1.0, -2.0]], dtype=DOUBLE)
        rows = net(x.expand(20_000, 2))
    std = 0.1 * math.sqrt(5)  # weights have a std of 0.1
    assert rows.std().item() == pytest.approx(std, rel=5 / math.sqrt(40_000))
    assert rows.mean().item() == pytest.approx((x @ block.center()).item(), abs=5 * std / math.sqrt(20_000))


def test_moments_are_those_of_the_draws():
    torch.manual_seed(0)
    block = converted(nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(6, 2)).to(DOUBLE)).blocks[0]
    with torch.no_grad():
        for scales in block.scales:
            scales.log_std.fill_(-1.0)
        draws = torch.stack([block.draw() for _ in range(2500)])
        center, std = block.center(), block.std()
    # Both sides are sampled: z's moments from 1024 draws, its mean off by up to 4 std/√1024, an eighth of its std.
    assert ((draws.mean(0) - center).abs() < 0.2 * std).all()
    assert ((draws.std(0) / std - 1).abs() < 0.15).all()
    assert (block.center() == center).all()  # always the same answer


def test_the_bound_is_above_the_divergence():
    """One weight, no flow: q(w) = N(mean·E z, std² + mean² Var z), whose KL is known."""
    torch.manual_seed(0)
    block = converted(nn.Linear(1, 1, bias=False).to(DOUBLE), steps=0).blocks[0]
    with torch.no_grad():
        block.mean.fill_(0.8)
        block.log_std.fill_(math.log(0.2))
        block.scales[0].mean.fill_(1.1)
        block.scales[0].log_std.fill_(math.log(0.3))
        estimates = torch.stack([block.kl() for _ in range(3000)])
    q = torch.distributions.Normal(0.8 * 1.1, math.sqrt(0.2**2 + 0.8**2 * 0.3**2))
    true = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0)).item()
    assert estimates.mean().item() - 5 * estimates.std().item() / 3000**0.5 > true


def test_training_tightens_the_bound_and_moves_the_scales():
    torch.manual_seed(0)
    net = converted(nn.Linear(3, 2).to(DOUBLE), hidden=4)
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    with torch.no_grad():
        before = torch.stack([net.kl() for _ in range(50)]).mean()
    for _ in range(150):
        optimizer.zero_grad()
        net.kl().backward()
        optimizer.step()
    with torch.no_grad():
        after = torch.stack([net.kl() for _ in range(50)]).mean()
    assert after < 0.2 * before
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for n, p in net.named_parameters() if "bias" not in n)


def test_a_layer_with_one_input_has_one_scale_for_all_its_weights():
    """Without steps, with means of zero and an r that looks at nothing, the bound is a sum of two known divergences."""
    torch.manual_seed(0)
    net = nn.Linear(1, 3, bias=False).to(DOUBLE)
    nn.init.zeros_(net.weight)
    block = converted(net, steps=0).blocks[0]
    scales = block.scales[0]
    with torch.no_grad():
        for parameter in (scales.look, scales.aim, scales.spread):
            parameter.zero_()
        bound = torch.stack([block.kl() for _ in range(4000)]).mean()
        mean, std = scales.mean, scales.log_std.exp()
    standard = torch.distributions.Normal(0.0, 1.0)
    of_weights = 3 * torch.distributions.kl_divergence(torch.distributions.Normal(0.0, 0.1), standard)
    of_scales = torch.distributions.kl_divergence(torch.distributions.Normal(mean, std), standard).sum()
    assert len(mean) == 1
    torch.testing.assert_close(bound, of_weights + of_scales, atol=0.06, rtol=0)  # five standard errors


def test_the_bound_sums_over_scales_and_over_layers():
    """As above with two layers, of four scales and of three."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False)).to(DOUBLE)
    for layer in net:
        nn.init.zeros_(layer.weight)
    block = converted(net, steps=0).blocks[0]
    standard = torch.distributions.Normal(0.0, 1.0)
    expected = 18 * torch.distributions.kl_divergence(torch.distributions.Normal(0.0, 0.1), standard)
    with torch.no_grad():
        for scales in block.scales:
            for parameter in (scales.look, scales.aim, scales.spread):
                parameter.zero_()
            q = torch.distributions.Normal(scales.mean, scales.log_std.exp())
            expected = expected + torch.distributions.kl_divergence(q, standard).sum()
        bounds = torch.stack([block.kl() for _ in range(500)])
    assert abs(bounds.mean() - expected) < 5 * bounds.std() / len(bounds) ** 0.5


def known_scales(net: nn.Module, spread: float = 0.3) -> None:
    """z ~ N(1.1, spread²), without steps, and weights that hardly vary given their scales."""
    with torch.no_grad():
        net.blocks[0].log_std.fill_(-20.0)
        for scales in net.blocks[0].scales:
            scales.mean.fill_(1.1)
            scales.log_std.fill_(math.log(spread) if spread else -50.0)


LAYERS = {
    "Linear": lambda: (nn.Linear(6, 4), torch.randn(3, 6)),
    "Conv1d": lambda: (nn.Conv1d(6, 4, 3, padding=1, groups=2), torch.randn(3, 6, 7)),
    "Conv2d": lambda: (nn.Conv2d(6, 4, 3, padding="same", padding_mode="circular"), torch.randn(3, 6, 5, 5)),
    "ConvTranspose2d": lambda: (nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2), torch.randn(3, 6, 4, 4)),
}


@pytest.mark.parametrize("bayesian_bias", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_a_scaled_layer_computes_with_the_scaled_weights(name, bayesian_bias):
    """With scales that differ from unit to unit and have no spread: the numbers of the plain layer with z ⊙ mean."""
    torch.manual_seed(0)
    layer, x = (part.to(DOUBLE) for part in LAYERS[name]())
    scheme = Scheme(noisy=partial(FlowBlock, hidden=4, steps=0), layers=SCALED)
    net = convert(layer, select(layer, None, bias=bayesian_bias), scheme, Normal(1.0), 0.1)
    known_scales(net, 0.0)
    with torch.no_grad():
        for scales in net.blocks[0].scales:
            scales.mean.uniform_(0.5, 2.0)
    for inputs in (x, x[0]):  # a batch, and an example by itself
        torch.testing.assert_close(net.train()(inputs), net.plain()(inputs), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", LAYERS)
def test_every_example_has_scales_of_its_own(name):
    """The spread over the equal rows of one pass is that over draws of the weights, scales included."""
    torch.manual_seed(0)
    layer, x = (part.to(DOUBLE) for part in LAYERS[name]())
    net, count = converted(layer, steps=0), 2000
    known_scales(net)
    with torch.no_grad():
        rows = net.train()(x[:1].expand(count, *x.shape[1:])).flatten(1)
        plain = net.plain()
        draws = torch.cat([torch.func.functional_call(plain, net.draw(), (x[:1],)).flatten(1) for _ in range(count)])
    spread = draws.std(0)
    assert (rows.std(0) / spread - 1).abs().max() < 5 / math.sqrt(count)  # of two estimates, each off by 1/√(2 count)
    assert ((rows.mean(0) - draws.mean(0)).abs() < 5 * spread * math.sqrt(2 / count)).all()


def test_tokens_of_a_sentence_share_their_scales():
    torch.manual_seed(0)
    net = converted(nn.Linear(2, 3, bias=False).to(DOUBLE), steps=0)
    known_scales(net)
    with torch.no_grad():
        out = net.train()(torch.randn(2, dtype=DOUBLE).expand(2, 4, 2))
    torch.testing.assert_close(out, out[:, :1].expand_as(out), rtol=0, atol=1e-7)
    assert not torch.allclose(out[0], out[1])


def test_calls_of_one_pass_share_the_scales_of_an_example():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 3)

        def forward(self, x):
            return self.layer(x) - self.layer(x)

    torch.manual_seed(0)
    net = converted(Twice().to(DOUBLE), steps=0)
    known_scales(net)
    x = torch.randn(5, 2, dtype=DOUBLE)
    with torch.no_grad():
        torch.testing.assert_close(net.train()(x), torch.zeros(5, 3, dtype=DOUBLE), rtol=0, atol=1e-7)
