"""Posterior as prior where the answer is known: conjugate regression in two parts, no memory, and frozen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import posterity as pst
from posterity import continual
from posterity.continual import Task
from posterity.continual.strategy import Past
from posterity.optim.config import OptimizerConfig
from tests.contract.cases import data, network

NOISE, STD = 0.5, 1.5


def part(seed: int, orthogonal: bool = False, n: int = 24, d: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    x = torch.linalg.qr(x)[0] * (2.0 + torch.arange(d)) if orthogonal else x + 0.5 * x.roll(1, 1)
    w = torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
    return x, x @ w + NOISE * torch.randn(n, 1, generator=g, dtype=torch.float64)


def exact(*parts: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and precision given all the parts at once: the textbook's."""
    x, y = (torch.cat(column) for column in zip(*parts, strict=True))
    precision = x.T @ x / NOISE**2 + torch.eye(x.shape[1], dtype=x.dtype) / STD**2
    return torch.linalg.solve(precision, x.T @ y / NOISE**2).squeeze(1), precision


def linear() -> nn.Linear:
    layer = nn.Linear(3, 1, bias=False).double()
    nn.init.zeros_(layer.weight)
    return layer


LIKELIHOOD = pst.likelihoods.Gaussian(NOISE)
DESCENT = pst.Training(
    optimizer=OptimizerConfig("sgd", momentum=0.5), lr=0.05, schedule="constant", steps=300, progress=False
)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_full_laplace_of_two_tasks_is_the_batch_posterior_in_any_order(order):
    tasks = [Task(f"part {i}", part(i), part(i)) for i in order]
    method = pst.Laplace(prior=pst.priors.Normal(STD), structure="full")
    learned = continual.learn(linear(), method, tasks, likelihood=LIKELIHOOD, training=DESCENT)
    mean, precision = exact(part(0), part(1))
    torch.testing.assert_close(learned.posterior.mean()["weight"][0], mean, rtol=1e-9, atol=1e-9)
    carried = pst.priors.from_posterior(learned.posterior)
    torch.testing.assert_close(carried.precision, precision)


@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_ewc_counts_what_each_task_adds_by_its_strength(structure):
    """Λₜ = Λₜ₋₁ + λ N Fₜ about the weights that minimise the loss of task t and the penalty of those before."""
    strategy = continual.EWC(
        method=pst.Laplace(prior=pst.priors.Normal(STD), structure=structure, linearised=False), strength=2.5
    )
    tasks = [Task(f"part {i}", part(i)) for i in range(3)]
    careful = replace(DESCENT, lr=0.02, steps=600)  # the penalty is steeper than the loss
    learned = continual.learn(linear(), strategy, tasks, likelihood=LIKELIHOOD, training=careful)
    mean, penalty = torch.zeros(3, 1).double(), torch.eye(3).double() / STD**2
    for x, y in (part(i) for i in range(3)):
        fisher = x.T @ x / NOISE**2
        mean = torch.linalg.solve(penalty + fisher, penalty @ mean + x.T @ y / NOISE**2)
        before, added = penalty, fisher if structure == "full" else fisher.diag().diag()
        penalty = before + 2.5 * added
    torch.testing.assert_close(learned.posterior.mean()["weight"].T, mean, rtol=1e-6, atol=1e-6)
    variance = torch.linalg.inv(before + added).diag()[None]
    torch.testing.assert_close(learned.posterior.variance()["weight"], variance)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_diagonal_laplace_adds_precisions(order):
    method = pst.Laplace(prior=pst.priors.Normal(STD), structure="diagonal")
    tasks = [Task(f"part {i}", part(i, orthogonal=True)) for i in order]
    learned = continual.learn(linear(), method, tasks, likelihood=LIKELIHOOD, training=DESCENT)
    mean, precision = exact(*(part(i, orthogonal=True) for i in order))
    torch.testing.assert_close(learned.posterior.mean()["weight"][0], mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(learned.posterior.variance()["weight"][0], 1 / precision.diagonal())


def negative_elbo(module: nn.Module, mean: Tensor, covariance: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """With the expected log-likelihood in closed form."""
    expected = ((y[:, 0] - x @ mean).square() + torch.einsum("ni,ij,nj->n", x, covariance, x)).sum()
    return expected / (2 * NOISE**2) + pst.kl(module)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_full_family_is_at_its_optimum_in_the_batch_posterior(order):
    """All derivatives of the second task's ELBO vanish there, with the first task's posterior as its prior."""
    first, second = (part(i) for i in order)
    before, precision = exact(first)
    tril = torch.linalg.cholesky(torch.linalg.inv(precision))
    earlier = pst.posteriors.FullGaussian(linear(), LIKELIHOOD, {"weight": before[None]}, tril)
    prior = pst.priors.from_posterior(earlier, pst.priors.Normal(STD))
    module = pst.variational(linear(), family="full", prior=prior)
    mean, precision = exact(first, second)
    block, tril = module.blocks[0], torch.linalg.cholesky(torch.linalg.inv(precision))
    with torch.no_grad():
        block.mean.copy_(mean)
        block.log_diagonal.copy_(tril.diagonal().log())
        block.below.copy_(tril.tril(-1))
    scale = block.family().scale_tril
    negative_elbo(module, block.mean, scale @ scale.T, *second).backward()
    for p in module.parameters():
        torch.testing.assert_close(p.grad, torch.zeros_like(p), atol=1e-9, rtol=0)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_diagonal_family_is_at_the_batch_mean_field_optimum(order):
    """Variances are one over the batch's precisions; with orthogonal columns the means are the batch's too."""
    first, second = (part(i, orthogonal=True) for i in order)
    before, precision = exact(first)
    std = precision.diagonal().rsqrt()
    earlier = pst.posteriors.DiagonalGaussian(linear(), LIKELIHOOD, {"weight": before[None]}, {"weight": std[None]})
    module = pst.variational(linear(), prior=earlier.as_prior())
    mean, precision = exact(first, second)
    block = module.blocks[0]
    with torch.no_grad():
        block.mean.copy_(mean)
        block.log_std.copy_(-0.5 * precision.diagonal().log())
    negative_elbo(module, block.mean, (2 * block.log_std).exp().diag(), *second).backward()
    for p in module.parameters():
        torch.testing.assert_close(p.grad, torch.zeros_like(p), atol=1e-9, rtol=0)


METHODS = {
    "mean-field": pst.MeanField(init_std=0.05),
    "hwa": pst.HWA(of=pst.MeanField(init_std=0.05), start=0, every=4),
    "vogn": pst.VOGN(damping=0.0),
    "ivon": pst.IVON(hess_init=0.1),
    "laplace": pst.Laplace(structure="diagonal", linearised=False),
    "laplace, full": pst.Laplace(structure="full", linearised=False),
    "swag": pst.SWAG(rank=0, start=0.5, every=1),
}
EACH = pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
SHORT = pst.Training(batch_size=48, steps=20, progress=False)


def earlier(std: float = 0.3) -> pst.WeightPosterior:
    net = network()
    mean = {name: p.detach() + 0.2 for name, p in net.named_parameters()}
    stds = {name: torch.full_like(p, std) for name, p in mean.items()}
    return pst.posteriors.DiagonalGaussian(net, pst.likelihoods.Categorical(), mean, stds)


@EACH
def test_infinite_temperature_is_no_memory(method):
    """The fit is the one with the base prior, whatever came before."""
    prior = pst.priors.from_posterior(earlier(), method.prior, temperature=torch.inf)
    carried = pst.fit(network(), method.carrying(prior), data(), training=SHORT)
    without = pst.fit(network(), method.carrying(method.prior), data(), training=SHORT)
    for name, mean in without.mean().items():
        torch.testing.assert_close(carried.mean()[name], mean, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(carried.variance()[name], without.variance()[name], rtol=1e-6, atol=1e-10)


@EACH
def test_a_prior_of_hardly_any_width_is_frozen(method):
    posterior = earlier(std=1e-4)
    net, own = continual.carry_on(network(), method, posterior)
    fitted = pst.fit(net, own, data(), training=SHORT)
    moved = max(float((fitted.mean()[name] - mean).abs().max()) for name, mean in posterior.mean().items())
    assert moved < 0.02
    assert max(float(v.max()) for v in fitted.variance().values()) < 1e-6


@EACH
def test_the_carried_mean_pulls(method):
    """From far away, and with a narrow prior, the weights come nearer to the carried mean, not to zero."""
    _, own = continual.carry_on(network(), method, earlier(std=0.02))
    lr = 1.0 if isinstance(method, pst.IVON) else 0.02
    training = pst.Training(batch_size=48, steps=60, lr=lr, progress=False)
    fitted = pst.fit(network(), own, data(), training=training)
    distance = torch.cat([(fitted.mean()[name] - mean).flatten() for name, mean in earlier().mean().items()])
    assert float(distance.abs().mean()) < 0.1  # it began at 0.2


@pytest.mark.parametrize("name", ["mean-field", "hwa"])
def test_the_next_task_starts_from_the_stds_of_the_last(name):
    """And from the method's own where the last says nothing of a weight."""
    method, posterior = METHODS[name], earlier(std=0.03)
    _, alone = continual.carry_on(network(), method, posterior)
    stds = {key: variance.sqrt() for key, variance in posterior.variance().items()}
    stds["2.weight"][1:] = 0
    past = Past(posterior.as_prior(), posterior, stds)
    in_stream = continual.Carry(method=method).method_for(past, posterior.likelihood)
    for own, afresh in ((alone, 0.03), (in_stream, 0.05)):
        _, found = pst.plain_moments(own.prepare(network()))
        for key, std in found.items():
            expected = torch.full_like(std, 0.03)
            if key == "2.weight":
                expected[1:] = afresh
            torch.testing.assert_close(std, expected)


def test_deterministic_parameters_take_the_base_prior():
    """The biases of a posterior without bias variances, and the layers before a last-layer Laplace."""
    method = pst.Laplace(prior=pst.priors.Normal(0.7), structure="last-layer")
    posterior = pst.fit(network(), method.carrying(method.prior), data(), training=SHORT)
    prior = pst.priors.from_posterior(posterior, method.prior)
    assert prior.at("0.weight").std == 0.7
    assert float(prior.at("2.weight").std.max()) < 0.7
    weights_only = pst.fit(network(), pst.MeanField(), data(), training=SHORT).as_prior(pst.priors.Normal(0.7))
    assert bool((weights_only.at("0.bias").std == 0.7).all()) and bool((weights_only.at("0.bias").mean == 0).all())


def test_continual_learning_makes_biases_bayesian():
    fitted = pst.fit(network(), pst.MeanField().carrying(pst.priors.Normal(1.0)), data(), training=SHORT)
    assert all(bool((v > 0).all()) for v in fitted.variance().values())


def test_refusals_are_one_sentence():
    with pytest.raises(pst.PosterityError, match="Kronecker factors cannot hold"):
        pst.Laplace().carrying(pst.priors.Normal(1.0))
    with pytest.raises(pst.PosterityError, match="before they are scaled"):
        continual.carry_on(network(), pst.GroupSparse(), earlier())
    point = pst.fit(network(), pst.MAP(), data(), training=SHORT)
    with pytest.raises(pst.PosterityError, match="no variances"):
        pst.priors.from_posterior(point)
    dropped = pst.fit(network(), pst.Dropout(rate=0.1, insert=("2",)), data(), training=SHORT)
    with pytest.raises(pst.PosterityError, match="Stochastic is no distribution over weights"):
        pst.priors.from_posterior(dropped)
    full = pst.fit(network(), pst.Laplace(structure="full"), data(), training=SHORT)
    diagonal = pst.Laplace(structure="diagonal", prior=pst.priors.from_posterior(full), tune_prior=False)
    with pytest.raises(pst.PosterityError, match="cannot hold a correlated prior"):
        pst.fit(network(), diagonal, data(), training=SHORT)
    with pytest.raises(pst.PosterityError, match="belongs to another network: parameter"):
        continual.carry_on(nn.Linear(4, 3).double(), pst.VOGN(), earlier())


def test_a_covariance_without_an_inverse_is_no_prior():
    """As Adam leaves one of a whole last layer: what is below the diagonal has moved further than the diagonal is."""
    layer, n = nn.Linear(300, 1, bias=False), 300
    below = 0.03 * torch.randn(n, n, generator=torch.Generator().manual_seed(0)).tril(-1)
    mean = {"weight": layer.weight.detach()}
    for scale, sound in ((0.02, False), (1.0, True)):
        q = pst.posteriors.FullGaussian(layer, LIKELIHOOD, mean, below + scale * torch.eye(n))
        if sound:
            assert pst.priors.from_posterior(q).log_prob(q.mean()).isfinite()
        else:
            with pytest.raises(pst.PosterityError, match="300 weights has no inverse"):
                pst.priors.from_posterior(q)
