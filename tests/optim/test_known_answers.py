"""VOGN, OGN and IVON on problems whose posterior is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from posterity.optim import IVON, OGN, VOGN
from tests.optim.regression import Regression, regression, rows

RESTARTS = 64


def run(optimizer, layer: nn.Linear, problem: Regression, steps: int, warm: int, quantity) -> list[Tensor]:
    """Averages over the steps after ``warm`` of the mean weights and of whatever ``quantity`` gives."""
    totals: list[Tensor] = []
    for step in range(steps):
        with optimizer.sampled_weights():
            problem.loss(layer(problem.inputs)).backward()
        optimizer.step()
        if step >= warm:
            now = [layer.weight.detach().clone(), *quantity(optimizer.state[layer.weight])]
            totals = [t + value / (steps - warm) for t, value in zip(totals or [0.0] * len(now), now, strict=True)]
    return totals


@pytest.mark.parametrize("temperature", [0.1, 1.0, 2.0])
def test_vogn_has_the_tempered_variance_of_its_own_curvature(temperature):
    """variance = τ / (N ĥ + τ δ), with ĥ = E_q[mean of squared gradients] worked out by hand; mean = ridge solution."""
    problem, layer = regression(), rows(RESTARTS)
    with torch.no_grad():  # far from the data, squared gradients are huge and the steps small
        layer.weight.copy_(problem.mean() + 0.2)
    optimizer = VOGN(
        layer,
        lr=0.002,
        num_data=problem.num_data,
        prior_precision=problem.prior_precision,
        damping=0.0,
        temperature=temperature,
        init_precision=5.0,
        beta2=0.98,
    )
    n, delta, X = problem.num_data, problem.prior_precision, problem.inputs

    def variance(s: Tensor) -> Tensor:
        return temperature / (n * s + temperature * delta)

    def by_hand(state: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """s itself, and E_q[g²] = x² E(y - w·x)² / noise⁴ with E(y - w·x)² = (y - m·x)² + Σ x² variance."""
        off = (problem.targets[:, None] - X @ layer.weight.detach().T) ** 2 + X**2 @ variance(state["curvature"]).T
        return state["curvature"].clone(), off.T @ X**2 / n / problem.noise**4

    mean, s, h = (total.mean(0) for total in run(optimizer, layer, problem, 1200, 700, by_hand))
    hessian = (X**2).mean(0) / problem.noise**2
    assert ((h / hessian - 1).abs() > 0.03).any()  # it is not the Hessian
    assert (variance(s) / variance(h) - 1).abs().max() < 0.03
    ridge = problem.mean(temperature)
    assert (mean - ridge).abs().max() < 0.01 * ridge.abs().max()


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_ivon_variance_is_the_inverse_diagonal_precision(temperature):
    problem, layer = regression(), rows(RESTARTS)
    optimizer = IVON(
        layer.parameters(),
        lr=0.03,
        num_data=problem.num_data,
        prior_precision=problem.prior_precision,
        hess_init=3.0,
        beta2=0.995,
        temperature=temperature,
    )
    mean, h = run(optimizer, layer, problem, 2200, 1200, lambda state: [state["hessian"].clone()])
    variance = temperature / (problem.num_data * h + temperature * problem.prior_precision)
    ratio = variance * problem.precision(temperature).diagonal()
    assert abs(ratio.mean() - 1) < 0.03
    torch.testing.assert_close(mean.mean(0), problem.mean(temperature), rtol=0.02, atol=0.02)


def test_ogn_is_newton_on_a_quadratic():
    """Where all residuals are ±1, squared gradients are the Hessian; with one feature an example it is diagonal."""
    features, n = 4, 24
    scales = torch.linspace(0.5, 3, n, dtype=torch.float64)
    inputs = torch.zeros(n, features, dtype=torch.float64)
    inputs[torch.arange(n), torch.arange(n) % features] = scales
    start = torch.tensor([[0.3, -1.0, 2.0, 0.7]], dtype=torch.float64)
    signs = torch.where(torch.arange(n) // features % 3 == 0, 1.0, -1.0).double()
    problem = Regression(inputs, (inputs @ start.T).squeeze(1) - signs, 1.0, 2.0)
    layer = rows(1, features)
    with torch.no_grad():
        layer.weight.copy_(start)
    optimizer = OGN(layer, lr=1.0, num_data=n, prior_precision=2.0, damping=0.0, beta1=0.0, init_precision=None)
    with optimizer.sampled_weights():
        torch.testing.assert_close(layer.weight.detach(), start, rtol=0, atol=0)  # no noise
        problem.loss(layer(problem.inputs)).backward()
    optimizer.step()
    torch.testing.assert_close(layer.weight[0].detach(), problem.mean(), rtol=1e-12, atol=1e-12)


def test_ivon_hessian_stays_positive_under_adversarial_gradients():
    weights = nn.Parameter(torch.zeros(64, dtype=torch.float64))
    optimizer = IVON([weights], lr=0.0, num_data=10, prior_precision=5.0, hess_init=0.1, beta2=0.9)
    g = torch.Generator().manual_seed(0)
    for step in range(10_000):
        with optimizer.sampled_weights():
            # A gradient against the noise: of any size, or just so large that h falls fastest, to (h - δ̃)/2.
            noise = weights.detach()
            fastest = -(optimizer.state[weights]["hessian"] + 0.5) / 0.1 * noise
            anything = -torch.sign(noise) * 10 ** (6 * torch.rand(64, generator=g, dtype=torch.float64) - 3)
            weights.grad = fastest * (noise.abs() > 0.1) if step % 20 else anything
        optimizer.step()
        assert optimizer.state[weights]["hessian"].min() > 0, step
    assert optimizer.state[weights]["hessian"].isfinite().all()
