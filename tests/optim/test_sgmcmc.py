"""Many independent chains at once: a parameter [chains, dims] whose gradient is set by hand.

The ends of n chains are n independent draws, so Monte Carlo errors are known: tolerances are five standard errors.
"""

import copy
import math

import pytest
import torch

from posterity.optim.sgmcmc import PSGLD, SGHMC, SGLD
from posterity.types import PosterityError

N = 50  # examples: the target is exp(−N · loss)
HESSIAN = torch.tensor([[2.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 0.5]], dtype=torch.float64)


def chains(optimizer, gradient, start, steps, seed=0, **options):
    weights = torch.nn.Parameter(start.clone())
    generator = torch.Generator().manual_seed(seed)
    sampler = optimizer([weights], num_data=N, generator=generator, **options)
    for _ in range(steps):
        weights.grad = gradient(weights.detach())
        sampler.step()
    return weights.detach()


def stationary(transition, noise):
    """The covariance C = transition C transitionᵀ + noise of a linear chain."""
    size = len(transition)
    kron = torch.kron(transition, transition)
    flat = torch.linalg.solve(torch.eye(size**2, dtype=kron.dtype) - kron, noise.reshape(-1))
    return flat.reshape(size, size)


def assert_covariance(samples, expected):
    got = samples.T.cov()
    spread = expected.diag()
    error = ((spread[:, None] * spread[None, :] + expected.square()) / len(samples)).sqrt()
    assert ((got - expected).abs() < 5 * error).all()
    assert (samples.mean(0).abs() < 5 * (spread / len(samples)).sqrt()).all()


def expected_sgld(lr, temperature):
    eye = torch.eye(3, dtype=torch.float64)
    return stationary(eye - lr * HESSIAN, 2 * lr * temperature / N * eye)


def expected_sghmc(lr, friction, temperature):
    eye, zero = torch.eye(3, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64)
    velocity = torch.cat([-lr * HESSIAN, (1 - friction) * eye], dim=1)
    transition = torch.cat([torch.cat([eye, zero], dim=1) + velocity, velocity])
    noise = 2 * friction * lr * temperature / N * torch.ones(2, 2, dtype=torch.float64)
    return stationary(transition, torch.kron(noise, eye))[:3, :3]


@pytest.mark.parametrize("temperature", [0.3, 1.0])
@pytest.mark.parametrize("lr", [0.05, 0.6])
def test_sgld_on_a_gaussian_has_the_covariance_that_its_step_implies(lr, temperature):
    start = torch.zeros(20_000, 3, dtype=torch.float64)
    samples = chains(SGLD, lambda w: w @ HESSIAN, start, round(30 / lr), lr=lr, temperature=temperature)
    assert_covariance(samples, expected_sgld(lr, temperature))


@pytest.mark.parametrize("temperature", [0.3, 1.0])
@pytest.mark.parametrize(("lr", "friction"), [(0.01, 0.2), (0.2, 0.5)])
def test_sghmc_on_a_gaussian_has_the_covariance_that_its_step_implies(lr, friction, temperature):
    start = torch.zeros(20_000, 3, dtype=torch.float64)
    steps = round(30 * friction / lr)
    options = {"lr": lr, "friction": friction, "temperature": temperature}
    samples = chains(SGHMC, lambda w: w @ HESSIAN, start, steps, **options)
    assert_covariance(samples, expected_sghmc(lr, friction, temperature))


def test_a_small_step_leaves_the_posterior_itself():
    """Theory, no sampling: the bias falls with the step, to the tempered covariance T/N · H⁻¹."""
    for temperature in (0.3, 1.0):
        target = temperature / N * HESSIAN.inverse()
        for covariance in (expected_sgld, lambda lr, t: expected_sghmc(lr, 0.5, t)):
            bias = [float((covariance(lr, temperature) - target).norm() / target.norm()) for lr in (1e-2, 1e-3)]
            assert bias[0] < 0.02
            assert bias[1] < bias[0] / 5
    one = expected_sgld(0.3, 1.0)
    along = torch.linalg.eigvalsh(HESSIAN)  # SGLD's law shares H's axes: variance 1/(N h) · 1/(1 − lr h/2) on each
    torch.testing.assert_close(
        torch.linalg.eigvalsh(one), (1 / (N * along * (1 - 0.3 * along / 2))).sort().values, atol=1e-12, rtol=1e-9
    )


@pytest.mark.parametrize(
    ("optimizer", "options", "steps"),
    [(SGLD, {"lr": 0.02}, 600), (SGHMC, {"lr": 0.002, "friction": 0.1}, 700)],
)
def test_a_skewed_target(optimizer, options, steps):
    """w = log x with x ~ Gamma(2): mean ψ(2), variance ψ′(2), skewness ψ″(2)/ψ′(2)^1.5; a sign error would flip it."""
    start = torch.zeros(20_000, dtype=torch.float64)
    samples = chains(optimizer, lambda w: w.exp() - 2, start, steps, temperature=N, **options)
    mean, variance = 1 - 0.5772156649, math.pi**2 / 6 - 1
    skewness = (-2 * 1.2020569 + 2) / variance**1.5
    z = (samples - samples.mean()) / samples.std()
    error = 5 / math.sqrt(len(samples))
    bias = 0.02  # what a step of this size may add
    assert abs(samples.mean() - mean) < error * math.sqrt(variance) + bias
    assert abs(samples.var() / variance - 1) < error * 2 + 2.5 * bias
    assert abs(z.pow(3).mean() - skewness) < error * 6 + 2.5 * bias


def test_psgld_is_exact_where_its_preconditioner_is_constant():
    """|w| has a gradient of constant size, so V never moves: the law is Laplace's, variance 2 and kurtosis 6."""
    start = torch.full((10_000,), 1.0, dtype=torch.float64)
    samples = chains(PSGLD, lambda w: w.sign() / N * 4, start, 2500, lr=0.01, temperature=4.0)
    assert abs(samples.mean()) < 5 * math.sqrt(2 / 10_000)
    assert abs(samples.var() / 2 - 1) < 5 * math.sqrt(5 / 10_000) + 0.03
    assert abs(samples.pow(4).mean() / samples.var() ** 2 - 6) < 1.0


def test_psgld_with_a_frozen_preconditioner_is_sgld_with_a_rate_of_its_own_for_each_weight():
    """β → 1 keeps V at the first squared gradient: variance 1/(N h) · 1/(1 − lr G h/2)."""
    h = torch.tensor([4.0, 0.5], dtype=torch.float64)
    start = torch.tensor([0.5, 2.0], dtype=torch.float64).expand(20_000, 2)
    options = {"lr": 0.3, "beta": 1 - 1e-12, "eps": 1e-5}
    samples = chains(PSGLD, lambda w: w * h, start, 400, **options)
    scale = 1 / (1e-5 + start[0] * h)
    expected = 1 / (N * h * (1 - 0.3 * scale * h / 2))
    assert ((samples.var(0) / expected - 1).abs() < 5 * math.sqrt(2 / 20_000)).all()


def test_sghmc_with_full_friction_is_sgld():
    start = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    langevin = chains(SGLD, lambda w: w @ HESSIAN, start, 50, lr=0.1, weight_decay=0.2)
    hamiltonian = chains(SGHMC, lambda w: w @ HESSIAN, start, 50, lr=0.1, friction=1.0, weight_decay=0.2)
    torch.testing.assert_close(hamiltonian, langevin, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("optimizer", "momentum"), [(SGLD, 0.0), (SGHMC, 0.9)])
def test_without_noise_they_are_sgd(optimizer, momentum):
    start = torch.ones(4, 3, dtype=torch.float64)
    mine = chains(optimizer, lambda w: w @ HESSIAN, start, 30, lr=0.1, temperature=0.0, weight_decay=0.05)
    weights = torch.nn.Parameter(start.clone())
    sgd = torch.optim.SGD([weights], lr=0.1, momentum=momentum, weight_decay=0.05)
    for _ in range(30):
        weights.grad = weights.detach() @ HESSIAN
        sgd.step()
    torch.testing.assert_close(mine, weights.detach(), rtol=1e-12, atol=1e-14)


def test_psgld_without_noise_divides_by_the_running_root_mean_square():
    start = torch.ones(4, 3, dtype=torch.float64)
    mine = chains(PSGLD, lambda w: w @ HESSIAN, start, 6, lr=0.1, temperature=0.0, beta=0.7, eps=0.01)
    w, square = start, (start @ HESSIAN).square()
    for _ in range(6):
        gradient = w @ HESSIAN
        square = 0.7 * square + 0.3 * gradient.square()
        w = w - 0.1 * gradient / (0.01 + square.sqrt())
    torch.testing.assert_close(mine, w, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("optimizer", [SGLD, PSGLD, SGHMC])
def test_weight_decay_is_the_gradient_of_a_normal_prior(optimizer):
    start = torch.ones(4, 3, dtype=torch.float64)
    options = {"lr": 0.01, "beta": 1 - 1e-12} if optimizer is PSGLD else {"lr": 0.01}
    decayed = chains(optimizer, lambda w: w @ HESSIAN, start, 1, weight_decay=0.7, **options)
    plain = chains(optimizer, lambda w: w @ HESSIAN, start, 1, **options)
    rate = 0.01 / (1e-5 + (start @ HESSIAN).abs()) if optimizer is PSGLD else 0.01
    torch.testing.assert_close(plain - decayed, rate * 0.7 * start, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("optimizer", [SGLD, PSGLD, SGHMC])
def test_a_resumed_chain_is_the_uninterrupted_one_to_the_bit(optimizer):
    def fresh(start, seed):
        parts = [torch.nn.Parameter(start[:1].clone()), torch.nn.Parameter(start[1:].clone())]
        return parts, optimizer(parts, lr=0.1, num_data=N, generator=torch.Generator().manual_seed(seed))

    def walk(parts, sampler, steps):
        for _ in range(steps):
            for part in parts:
                part.grad = part.detach() @ HESSIAN.float()
            sampler.step()

    start = torch.ones(3, 3)
    whole, sampler = fresh(start, 0)
    walk(whole, sampler, 12)
    first, sampler = fresh(start, 0)
    walk(first, sampler, 5)
    second, resumed = fresh(torch.cat([p.detach() for p in first]), seed=99)
    resumed.load_state_dict(sampler.state_dict())
    walk(second, resumed, 7)
    assert all(torch.equal(a, b) for a, b in zip(whole, second, strict=True))


@pytest.mark.parametrize("optimizer", [SGLD, PSGLD, SGHMC])
def test_weights_in_another_memory_format_take_the_same_steps(optimizer):
    """Channels last, also after a state came back from a file with its values in the plain order."""
    generator = torch.Generator().manual_seed(0)
    start, grad = torch.randn(4, 3, 2, 2, generator=generator), torch.randn(4, 3, 2, 2, generator=generator)

    def walk(fmt):
        weights = torch.nn.Parameter(start.clone(memory_format=fmt))
        sampler = optimizer([weights], lr=0.1, num_data=N, temperature=0.0, weight_decay=0.3)
        for step in range(4):
            weights.grad = grad.clone() * (step + 1)
            sampler.step()
            state = sampler.state_dict()
            for kept in state["state"].values():
                kept.update({name: value.contiguous() for name, value in kept.items()})
            sampler.load_state_dict(state)
        return weights.detach()

    torch.testing.assert_close(walk(torch.channels_last), walk(torch.contiguous_format))


def test_a_weight_with_gaps_is_refused():
    with pytest.raises(PosterityError, match="larger tensor with gaps"):
        SGLD([torch.zeros(4, 4)[:, :2].requires_grad_()], lr=0.1, num_data=10)


def test_the_groups_rate_and_temperature_are_read_at_every_step():
    weights = torch.nn.Parameter(torch.ones(1000))
    sampler = SGLD([weights], lr=0.1, num_data=4, generator=torch.Generator().manual_seed(0))
    weights.grad = torch.zeros(1000)
    sampler.param_groups[0]["temperature"] = 0.0
    sampler.step()
    assert torch.equal(weights.detach(), torch.ones(1000))
    sampler.param_groups[0].update(temperature=2.0, lr=0.5)
    sampler.step()
    assert abs(weights.detach().std() / math.sqrt(2 * 0.5 * 2 / 4) - 1) < 5 / math.sqrt(2 * 1000)


def test_weights_without_a_gradient_stay():
    moved, stays = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    sampler = SGHMC([moved, stays], lr=0.1, num_data=4)
    moved.grad = torch.ones(3)
    sampler.step()
    assert torch.equal(stays.detach(), torch.ones(3))
    assert not torch.equal(moved.detach(), torch.ones(3))


@pytest.mark.parametrize("optimizer", [SGLD, PSGLD, SGHMC])
def test_bad_input_is_refused(optimizer):
    weights = [torch.nn.Parameter(torch.ones(1))]
    with pytest.raises(PosterityError, match="lr must be positive"):
        optimizer(weights, lr=0.0, num_data=10)
    with pytest.raises(PosterityError, match="num_data must be positive"):
        optimizer(weights, lr=0.1, num_data=0)
    for temperature in (-1.0, math.nan):
        with pytest.raises(PosterityError, match="temperature"):
            optimizer(weights, lr=0.1, num_data=10, temperature=temperature)
    with pytest.raises(PosterityError, match="friction"):
        SGHMC(weights, lr=0.1, num_data=10, friction=0.0)


@pytest.mark.parametrize("optimizer", [SGLD, PSGLD, SGHMC])
def test_a_copied_chain_goes_on_as_the_first_would(optimizer):
    weight = torch.nn.Parameter(torch.ones(3))
    chain = optimizer([weight], lr=0.1, num_data=10)

    def step(weight, chain):
        weight.grad = weight.detach().clone()
        chain.step()

    step(weight, chain)
    other, copied = copy.deepcopy((weight, chain))
    for _ in range(2):
        step(weight, chain)
        step(other, copied)
    assert torch.equal(weight, other)


def test_groups_added_later_and_foreign_states_are_looked_at():
    chain = SGLD([torch.nn.Parameter(torch.zeros(3))], lr=0.1, num_data=10)
    with pytest.raises(PosterityError, match="gaps"):
        chain.add_param_group({"params": [torch.nn.Parameter(torch.zeros(4, 4)[:, :2])]})
    with pytest.raises(PosterityError, match="float32 on cpu, "):
        SGLD([torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(3).double())], lr=0.1, num_data=10)
    with pytest.raises(PosterityError, match="no generator"):
        chain.load_state_dict(torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))]).state_dict())
    wide, narrow = (SGHMC([torch.nn.Parameter(torch.zeros(size))], lr=0.1, num_data=10) for size in (3, 1))
    narrow.param_groups[0]["params"][0].grad = torch.ones(1)
    narrow.step()
    with pytest.raises(PosterityError, match=r"the state holds momentum \[1\] of a weight \[3\]"):
        wide.load_state_dict(narrow.state_dict())


@pytest.mark.parametrize("optimizer", [SGLD, PSGLD, SGHMC])
def test_sparse_gradients_give_the_same_chain(optimizer):
    tables = [torch.nn.Embedding(5, 3, sparse=sparse) for sparse in (False, True)]
    tables[1].load_state_dict(tables[0].state_dict())
    for table in tables:
        generator = torch.Generator().manual_seed(0)
        chain = optimizer(table.parameters(), lr=0.1, num_data=10, weight_decay=0.1, generator=generator)
        for _ in range(3):
            chain.zero_grad()
            table(torch.tensor([1, 1, 4])).square().mean().backward()
            chain.step()
    torch.testing.assert_close(tables[1].weight, tables[0].weight)
