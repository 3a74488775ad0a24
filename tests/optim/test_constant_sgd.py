import pytest
import torch

from posterity.optim import constant_sgd as csgd
from posterity.types import PosterityError

A = torch.tensor([[2.0, 0.5, 0.1], [0.5, 1.0, -0.2], [0.1, -0.2, 0.6]], dtype=torch.float64)
C = torch.tensor([[1.5, -0.3, 0.2], [-0.3, 0.8, 0.1], [0.2, 0.1, 2.0]], dtype=torch.float64)
EYE = torch.eye(3, dtype=torch.float64)
N, S = 1000, 10


def walk(steps, chains, lr, momentum=0.0, preconditioner=EYE, seed=0):
    """Constant SGD on ½ wᵀA w with gradient noise of covariance C/S: every iterate of many chains."""
    generator = torch.Generator().manual_seed(seed)
    factor = torch.linalg.cholesky(C / S)
    w = torch.zeros(chains, 3, dtype=torch.float64)
    v = torch.zeros_like(w)
    for _ in range(steps):
        noise = torch.randn(chains, 3, generator=generator, dtype=torch.float64) @ factor.T
        v = momentum * v - lr * (w @ A + noise) @ preconditioner.T
        w = w + v
        yield w


def last(path):
    *_, end = path
    return end


def assert_covariance(samples, expected, bias):
    """Within five standard errors, and what a finite step adds to the continuous-time law."""
    spread = expected.diag()
    error = ((spread[:, None] * spread[None, :] + expected.square()) / len(samples)).sqrt()
    assert ((samples.T.cov() - expected).abs() < 5 * error + bias * spread.max()).all()


def discrete(lr, momentum=0.0):
    """The exact covariance of the discrete chain, by iterating its linear recursion."""
    zero = torch.zeros(3, 3, dtype=torch.float64)
    velocity = torch.cat([-lr * A, momentum * EYE], dim=1)
    transition = torch.cat([torch.cat([EYE, zero], dim=1) + velocity, velocity])
    noise = torch.kron(lr**2 / S * torch.ones(2, 2, dtype=torch.float64), C)
    covariance = noise
    for _ in range(4000):
        covariance = transition @ covariance @ transition.T + noise
    return covariance[:3, :3]


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_the_stationary_law_is_the_ornstein_uhlenbeck_solution(momentum):
    lr = 0.04 * (1 - momentum)
    expected = csgd.stationary_covariance(A, C, lr, S, momentum=momentum)
    residual = A @ expected + expected @ A - lr / (S * (1 - momentum)) * C
    torch.testing.assert_close(residual, torch.zeros_like(residual), atol=1e-14, rtol=0)
    assert_covariance(last(walk(700, 8_000, lr, momentum)), expected, bias=0.06)
    errors = [
        float((discrete(r, momentum) - csgd.stationary_covariance(A, C, r, S, momentum=momentum)).norm()) / r
        for r in (lr, lr / 4)
    ]
    assert errors[1] < 0.3 * errors[0]  # the relative error falls with the step


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_best_rate_is_where_the_kl_is_smallest(momentum):
    best = csgd.best_lr(C, S, N, momentum=momentum)

    def distance(lr):
        return csgd.kl_to_posterior(csgd.stationary_covariance(A, C, lr, S, momentum=momentum), A, N)

    rates = [best * 1.05**k for k in range(-30, 31)]
    assert min(rates, key=distance) == best
    assert distance(best * 1.001) > distance(best) < distance(best * 0.999)


def test_the_best_preconditioner_makes_the_law_the_posteriors():
    posterior = torch.linalg.inv(N * A)
    h = csgd.best_preconditioner(C, 0.05, S, N)
    torch.testing.assert_close(csgd.stationary_covariance(A, C, 0.05, S, preconditioner=h), posterior)
    assert csgd.kl_to_posterior(posterior, A, N) == pytest.approx(0.0, abs=1e-12)


def test_the_distance_to_the_posterior_is_torchs():
    normal = torch.distributions.MultivariateNormal
    zero, law = torch.zeros(len(A), dtype=A.dtype), csgd.stationary_covariance(A, C, 0.02, S)
    exact = torch.distributions.kl_divergence(normal(zero, law), normal(zero, precision_matrix=N * A))
    assert csgd.kl_to_posterior(law, A, N) == pytest.approx(exact.item(), rel=1e-9)


def test_the_diagonal_preconditioner_is_exact_for_diagonal_curvature_and_noise_and_helps_elsewhere():
    straight, noise = A.diag().diag(), C.diag().diag()
    h = csgd.best_preconditioner(noise, 0.05, S, N, diagonal=True)
    got = csgd.stationary_covariance(straight, noise, 0.05, S, preconditioner=h)
    torch.testing.assert_close(got, torch.linalg.inv(N * straight))

    def distance(h):
        return csgd.kl_to_posterior(csgd.stationary_covariance(A, C, 0.05, S, preconditioner=h), A, N)

    scalar = csgd.best_lr(C, S, N) / 0.05 * EYE
    assert distance(csgd.best_preconditioner(C, 0.05, S, N, diagonal=True)) < 0.5 * distance(scalar)


def test_langevin_at_a_finite_step_is_the_posterior_and_the_gradients_noise():
    torch.testing.assert_close(csgd.langevin_covariance(A, C, 1e-12, S, N), torch.linalg.inv(N * A))
    both = csgd.langevin_covariance(A, C, 0.01, S, N, temperature=0.5)
    parts = 0.5 * torch.linalg.inv(N * A) + csgd.stationary_covariance(A, C, 0.01, S)
    torch.testing.assert_close(both, parts)


def test_fisher_scoring_is_exact():
    """Its drift H A and diffusion H (lr C/S + E Eᵀ) Hᵀ leave the posterior as it is."""
    injected = 0.3 * EYE + 0.1
    h = csgd.best_fisher_scoring(C, injected, 0.05, S, N)
    posterior = torch.linalg.inv(N * A)
    drift = h @ A @ posterior
    torch.testing.assert_close(drift + drift.T, h @ (0.05 / S * C + injected) @ h.T)


def test_averages_over_one_pass_are_draws_from_the_posterior_whatever_the_rate():
    """C = A is a model that fits. Windows of N/S iterates of one chain, against (N A)⁻¹."""
    window = csgd.best_window(N, S)
    assert window == N // S
    torch.testing.assert_close(csgd.averaged_covariance(A, A, S, window), torch.linalg.inv(N * A))
    for lr in (0.2, 0.5):
        factor = torch.linalg.cholesky(A / S)
        generator = torch.Generator().manual_seed(1)
        w = torch.zeros(4000, 3, dtype=torch.float64)
        total = torch.zeros_like(w)
        burn_in, long = 100, 20 * window  # windows twenty times one pass: the chain's memory is short beside them
        for step in range(burn_in + long):
            w = w - lr * (w @ A + torch.randn(4000, 3, generator=generator, dtype=torch.float64) @ factor.T)
            total += w if step >= burn_in else 0.0
        assert_covariance(total / long, csgd.averaged_covariance(A, A, S, long), bias=0.02)


def test_variational_em_finds_the_prior_that_maximises_the_evidence():
    """Linear regression: λ = D/E‖w‖² under the exact law, iterated, is the fixed point that MacKay's evidence has."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(200, 8, generator=generator, dtype=torch.float64)
    truth = 0.5 * torch.randn(8, generator=generator, dtype=torch.float64)
    y = x @ truth + torch.randn(200, generator=generator, dtype=torch.float64)
    precision = 1.0
    for _ in range(60):
        covariance = torch.linalg.inv(x.T @ x + precision * torch.eye(8))
        mean = covariance @ x.T @ y
        noise = torch.randn(20_000, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        precision = csgd.best_prior_precision(mean + noise @ torch.linalg.cholesky(covariance).T)

    def evidence(lam):
        marginal = torch.eye(200, dtype=torch.float64) + x @ x.T / lam
        return float(torch.distributions.MultivariateNormal(torch.zeros(200).double(), marginal).log_prob(y))

    grid = [precision * 1.1**k for k in range(-10, 11)]
    assert max(grid, key=evidence) == pytest.approx(precision, rel=0.11)


def test_gradient_noise_is_the_covariance_of_gradients():
    gradients = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    centred = gradients - gradients.mean(0)
    torch.testing.assert_close(csgd.gradient_noise(gradients), centred.T @ centred / 49)
    assert csgd.gradient_noise(gradients[:, :1]).shape == (1, 1)


def test_no_minimum_no_law():
    with pytest.raises(PosterityError, match="positive definite"):
        csgd.stationary_covariance(-A, C, 0.1, S)
    with pytest.raises(PosterityError, match="lr must be positive"):
        csgd.stationary_covariance(A, C, 0.0, S)
