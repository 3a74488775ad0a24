"""Each update rule against a slow scalar version written from the paper, and K-FAC against plain linear algebra."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posterity.optim import IVON, KFAC, VOGN, NoisyKFAC
from posterity.optim.kfac import damped_roots, matrix_normal, natural_gradient
from posterity.types import PosterityError


def normals(count: int, size: int) -> list[list[float]]:
    """The noise that an optimizer with this generator draws, step by step."""
    g = torch.Generator().manual_seed(3)
    return [torch.empty(size, dtype=torch.float64).normal_(generator=g).tolist() for _ in range(count)]


def target_gradient(w: float, i: int) -> float:
    return math.sin(3 * w + i) + 0.5 * w


@pytest.mark.parametrize("hessian", ["reparameterised", "squared"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip_radius": 0.05},
        {"clip_radius": 0.4},
        {"rescale_lr": False},
        {"temperature": 0.3},
        {"prior_precision": {"w": torch.tensor([4.0, 8.0, 2.0, 40.0, 3.0], dtype=torch.float64)}, "temperature": 0.3},
        {"prior_precision": {"w": torch.tensor([34.0, 18.0, 22.0, 40.0, 33.0], dtype=torch.float64)}},
    ],
    ids=["plain", "clipped", "clipped in part", "lr as it is", "cold", "prior by weight", "narrow prior by weight"],
)
def test_ivon_step_by_step(hessian, options):
    size, N, lr, beta1, beta2, h0, prior_mean = 5, 20.0, 0.1, 0.8, 0.9, 0.7, 0.4
    options = {"prior_precision": 4.0, **options}
    own = options["prior_precision"]
    delta = own["w"].tolist() if isinstance(own, dict) else [own] * size
    start = [0.3 * i - 0.5 for i in range(size)]
    p = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = IVON(
        [("w", p)], lr, N, prior_mean=prior_mean, hess_init=h0, beta1=beta1, beta2=beta2, hessian=hessian,
        generator=torch.Generator().manual_seed(3), **options,
    )  # fmt: skip
    tau = options.get("temperature", 1.0)
    radius = options.get("clip_radius", math.inf)
    ds = [tau * precision / N for precision in delta]
    m, g, h = list(start), [0.0] * size, [h0] * size
    draws = normals(8, size)
    for step in range(1, 5):
        for _ in range(2):
            with optimizer.sampled_weights():
                p.grad = torch.tensor([target_gradient(w, i) for i, w in enumerate(p.tolist())], dtype=torch.float64)
        optimizer.step()
        noise = [draws.pop(0), draws.pop(0)]
        for i in range(size):
            d, std = ds[i], math.sqrt(tau / (N * (h[i] + ds[i])))
            gs = [target_gradient(m[i] + std * e[i], i) for e in noise]
            ghat = sum(gs) / 2
            price = sum(gi * e[i] for gi, e in zip(gs, noise, strict=True)) / 2 / std
            hhat = price if hessian == "reparameterised" else N * sum(gi**2 for gi in gs) / 2
            g[i] = beta1 * g[i] + (1 - beta1) * ghat
            old = h[i]
            h[i] = beta2 * old + (1 - beta2) * hhat + 0.5 * (1 - beta2) ** 2 * (old - hhat) ** 2 / (old + d)
            assert h[i] > 0
            move = (g[i] / (1 - beta1**step) + d * (m[i] - prior_mean)) / (h[i] + d)
            rescale = h0 + min(*ds, h0) if options.get("rescale_lr", True) else 1.0
            m[i] -= lr * rescale * max(-radius, min(radius, move))
        torch.testing.assert_close(p.detach(), torch.tensor(m, dtype=torch.float64), rtol=1e-10, atol=1e-12)


def test_param_groups_of_ivon_are_optimizers_of_their_own():
    """With settings of their own, down to the estimate of the Hessian, which a group used to leave to the optimizer."""
    first = {"lr": 0.05, "beta1": 0.8, "hess_init": 2.0, "prior_precision": 3.0, "temperature": 0.5}
    second = {"lr": 0.2, "beta2": 0.8, "clip_radius": 0.3, "prior_mean": 0.1, "hessian": "squared"}

    def weights():
        return [nn.Parameter(torch.linspace(-1, 1, 4, dtype=torch.float64) + i) for i in range(2)]

    def pull(w):
        w.grad = torch.sin(3 * w.detach()) + 0.5 * w.detach()

    generator, (a, b) = torch.Generator().manual_seed(3), weights()
    both = IVON([{"params": [a], **first}, {"params": [b], **second}], 0.1, 20.0, beta2=0.9, generator=generator)
    generator, (c, d) = torch.Generator().manual_seed(3), weights()
    alone = IVON([c], num_data=20.0, generator=generator, **{"beta2": 0.9, **first})
    other = IVON([d], num_data=20.0, generator=generator, **{"beta2": 0.9, **second})
    for _ in range(5):
        with both.sampled_weights():
            pull(a), pull(b)
        with alone.sampled_weights():
            pull(c)
        with other.sampled_weights():
            pull(d)
        for optimizer in (both, alone, other):
            optimizer.step()
    torch.testing.assert_close((a, b), (c, d), rtol=0, atol=0)
    with pytest.raises(PosterityError, match="hessian must be"):
        IVON([{"params": [a], "hessian": "exact"}], 0.1, 20.0)


@pytest.mark.parametrize("delta", [3.0, torch.tensor([3.0, 30.0, 1.0], dtype=torch.float64)], ids=["shared", "own"])
def test_vogn_step_by_step(delta):
    """One linear unit, so that per-example gradients are r x with r = w·x - y."""
    X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.linspace(-1, 1, 6, dtype=torch.float64)
    layer = nn.Linear(3, 1, bias=False).double()
    nn.init.constant_(layer.weight, 0.2)
    N, rho, gamma, tau, lr, beta1, beta2 = 6, 5.0, 0.01, 0.4, 0.05, 0.7, 0.8
    precision = delta if isinstance(delta, float) else {"weight": delta[None]}
    optimizer = VOGN(
        layer, lr, N, prior_precision=precision, damping=gamma, temperature=tau, augmentation_factor=rho, beta1=beta1,
        init_precision=None, beta2=beta2, momentum_correction=True, generator=torch.Generator().manual_seed(3),
    )  # fmt: skip
    mean, momentum, s = torch.full((3,), 0.2, dtype=torch.float64), torch.zeros(3).double(), None
    d = tau * delta / (N * rho)
    draws = normals(10, 3)
    last_lr = None
    for step in range(4):
        for group in optimizer.param_groups:
            group["lr"] = lr * 0.5**step
        for _ in range(2):
            with optimizer.sampled_weights():
                (0.5 * (layer(X).squeeze(1) - y) ** 2).mean().backward()
        optimizer.step()
        drawn = [torch.tensor(draws.pop(0), dtype=torch.float64) for _ in range(2)] if s is not None else [0.0, 0.0]
        std = 0.0 if s is None else (tau / (N * rho * (s + d + gamma))).sqrt()
        each = [(X @ (mean + std * e) - y)[:, None] * X for e in drawn]
        ghat = torch.stack([g.mean(0) for g in each]).mean(0)
        hhat = torch.stack([g.square().mean(0) for g in each]).mean(0)
        now = lr * 0.5**step
        momentum = beta1 * (now / last_lr if last_lr else 1.0) * momentum + ghat + d * mean
        s = hhat if s is None else beta2 * s + (1 - beta2) * hhat
        mean = mean - now * momentum / (s + d + gamma)
        last_lr = now
        torch.testing.assert_close(layer.weight[0].detach(), mean, rtol=1e-10, atol=1e-12)


def spd(size: int, seed: int) -> Tensor:
    root = torch.randn(size, size + 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.T / size


def test_noisy_kfac_draws_have_the_covariance_of_the_kronecker_inverse():
    A, G, damping = spd(4, 0), spd(3, 1), 0.1
    R_A, R_G = damped_roots(A, G, damping)
    pi = math.sqrt(A.diagonal().mean() / G.diagonal().mean())
    inverse_A = torch.linalg.inv(A + pi * math.sqrt(damping) * torch.eye(4).double())
    inverse_G = torch.linalg.inv(G + math.sqrt(damping) / pi * torch.eye(3).double())
    torch.testing.assert_close(R_A @ R_A.T, inverse_A)
    torch.testing.assert_close(R_G @ R_G.T, inverse_G)
    M = torch.arange(12, dtype=torch.float64).view(3, 4)
    torch.testing.assert_close(natural_gradient(M, R_A @ R_A.T, R_G @ R_G.T), inverse_G @ M @ inverse_A)
    g, count = torch.Generator().manual_seed(2), 40_000
    draws = torch.stack([matrix_normal(R_A, R_G, g).flatten() for _ in range(count)])
    expected = torch.kron(inverse_G, inverse_A)
    found = draws.T @ draws / count
    scale = (expected.diagonal()[:, None] * expected.diagonal()).sqrt()
    # A covariance of unit normals has a standard error of at most √(2/count); 5 of them for 78 entries.
    assert ((found - expected).abs() / scale).max() < 5 * math.sqrt(2 / count)


def test_kfac_step_by_linear_algebra():
    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(8, 4, generator=g, dtype=torch.float64), torch.arange(8) % 3
    layer = nn.Linear(4, 3).double()
    N, delta, gamma, lr = 50, 2.0, 0.03, 0.5
    optimizer = KFAC(layer, lr, N, prior_precision=delta, damping=gamma, beta1=0.0)
    W = torch.cat([layer.weight, layer.bias[:, None]], 1).detach().clone()
    logits = layer(X).detach()
    D = logits.softmax(1) - F.one_hot(y, 3)
    inputs = torch.cat([X, torch.ones(8, 1).double()], 1)
    A, G = inputs.T @ inputs / 8, D.T @ D / 8
    with optimizer.sampled_weights():
        F.cross_entropy(layer(X), y).backward()
    optimizer.step()
    d = gamma + delta / N
    pi = math.sqrt(A.diagonal().mean() / G.diagonal().mean())
    left = torch.linalg.inv(G + math.sqrt(d) / pi * torch.eye(3).double())
    right = torch.linalg.inv(A + math.sqrt(d) * pi * torch.eye(5).double())
    expected = W - lr * left @ (D.T @ inputs / 8 + delta / N * W) @ right
    found = torch.cat([layer.weight, layer.bias[:, None]], 1).detach()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_kfac_inverts_its_factors_at_the_first_step_and_every_so_many():
    g = torch.Generator().manual_seed(0)
    layer = nn.Linear(4, 3, bias=False).double()
    optimizer = KFAC(layer, 0.5, 50, prior_precision=2.0, damping=0.03, refresh=3)
    state, fresh = optimizer.state[layer.weight], []
    for _ in range(7):
        with optimizer.sampled_weights():
            F.cross_entropy(layer(torch.randn(8, 4, generator=g, dtype=torch.float64)), torch.arange(8) % 3).backward()
        optimizer.step()
        root, _ = damped_roots(state["input_factor"], state["output_factor"], 0.03 + 2.0 / 50)
        fresh.append(torch.allclose(state["input_inverse"], root @ root.T, rtol=1e-9))
    assert fresh == [True, False, False, True, False, False, True]


def test_noisy_kfac_weights_inside_are_matrix_normal():
    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(30, 3, generator=g, dtype=torch.float64), torch.arange(30) % 2
    layer = nn.Linear(3, 2, bias=False).double()
    N, tau = 200, 0.5
    optimizer = NoisyKFAC(layer, 0.0, N, temperature=tau, damping=0.05)
    with optimizer.sampled_weights():
        F.cross_entropy(layer(X), y).backward()
    optimizer.step()
    mean = layer.weight.detach().clone()
    state = optimizer.state[layer.weight]
    R_A, R_G = damped_roots(state["input_factor"], state["output_factor"], 0.05 + tau / N)
    expected = tau / N * torch.kron(R_G @ R_G.T, R_A @ R_A.T)
    draws = []
    for _ in range(3000):
        with optimizer.sampled_weights():
            draws.append((layer.weight.detach() - mean).flatten())
            F.cross_entropy(layer(X), y).backward()
    found = torch.stack(draws).T @ torch.stack(draws) / len(draws)
    scale = (expected.diagonal()[:, None] * expected.diagonal()).sqrt()
    assert ((found - expected).abs() / scale).max() < 5 * math.sqrt(2 / len(draws))


def test_a_noisy_kfac_posterior_in_double_precision_has_its_variance_to_all_digits():
    X, y = torch.randn(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64), torch.arange(30) % 2
    layer = nn.Linear(3, 2, bias=False).double()
    N, tau = 50, 0.5
    optimizer = NoisyKFAC(layer, 0.0, N, temperature=tau)
    with optimizer.sampled_weights():
        F.cross_entropy(layer(X), y).backward()
    optimizer.step()
    state = optimizer.state[layer.weight]
    expected = tau / N * torch.outer(state["output_inverse"].diagonal(), state["input_inverse"].diagonal())
    torch.testing.assert_close(optimizer.posterior(layer).variance()["weight"], expected, rtol=1e-12, atol=0)


def test_kfac_refuses_a_precision_by_weight_and_a_part_of_a_step():
    with pytest.raises(PosterityError, match="one prior_precision"):
        KFAC(nn.Linear(3, 2), 0.1, 10, prior_precision={"weight": 1.0, "bias": 2.0})
    with pytest.raises(PosterityError, match="refresh must be a whole number"):
        KFAC(nn.Linear(3, 2), 0.1, 10, refresh=1.5)
