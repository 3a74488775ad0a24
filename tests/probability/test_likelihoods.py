"""Likelihoods against torch.distributions; their Gauss–Newton matrices against autograd; what they refuse."""

import math

import pytest
import torch

from posterity.probability.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    MultiHead,
    Poisson,
    infer,
    pooled,
)
from posterity.types import PosterityError

D = torch.distributions
G = torch.Generator().manual_seed(0)
F4 = torch.randn(5, 4, generator=G, dtype=torch.float64)
REAL = torch.randn(5, 2, generator=G, dtype=torch.float64)
CLASSES = torch.tensor([0, 3, 1, 2, 2])


def test_log_probs_are_torchs():
    torch.testing.assert_close(Categorical().log_prob(F4, CLASSES), D.Categorical(logits=F4).log_prob(CLASSES))
    yes = torch.tensor([0.0, 1, 1, 0, 1], dtype=torch.float64)
    torch.testing.assert_close(Bernoulli().log_prob(F4[:, :1], yes), D.Bernoulli(logits=F4[:, 0]).log_prob(yes))
    torch.testing.assert_close(Gaussian(0.3).log_prob(F4[:, :2], REAL), D.Normal(F4[:, :2], 0.3).log_prob(REAL).sum(1))
    std = torch.nn.functional.softplus(F4[:, 2:]) + 1e-4
    exact = D.Normal(F4[:, :2], std).log_prob(REAL).sum(1)
    torch.testing.assert_close(HeteroscedasticGaussian().log_prob(F4, REAL), exact)
    counts = torch.tensor([0.0, 3, 1, 7, 2], dtype=torch.float64)
    torch.testing.assert_close(Poisson().log_prob(F4[:, 0], counts), D.Poisson(F4[:, 0].exp()).log_prob(counts))


def test_sequences_are_summed_over_positions():
    logits = torch.randn(3, 6, 4, generator=G, dtype=torch.float64)
    targets = torch.randint(4, (3, 6), generator=G)
    torch.testing.assert_close(
        Categorical().log_prob(logits, targets), D.Categorical(logits=logits).log_prob(targets).sum(1)
    )


@pytest.mark.parametrize(
    ("likelihood", "outputs", "targets"),
    [
        (Categorical(), F4, CLASSES),
        (Categorical(temperature=1.7, frequencies=(3, 1, 2, 5)), F4, CLASSES),
        (MultiHead(temperature=1.7, heads=((0, 3), (1, 2)), head=0), F4[:2], CLASSES[:2]),
        (Bernoulli(), F4[:, :1], torch.tensor([0.0, 1, 1, 0, 1], dtype=torch.float64)),
        (Bernoulli(temperature=1.7), F4[:, :1], torch.tensor([0.0, 1, 1, 0, 1], dtype=torch.float64)),
        (Gaussian(0.3), F4[:, :2], REAL),
        (Poisson(), F4[:, :1], torch.tensor([[0.0], [3], [1], [7], [2]], dtype=torch.float64)),
    ],
    ids=lambda v: type(v).__name__ if not isinstance(v, torch.Tensor) else "",
)
def test_gauss_newton_is_minus_the_hessian(likelihood, outputs, targets):
    for i in range(len(outputs)):

        def loss(f, i=i):
            return -likelihood.log_prob(f[None], targets[i : i + 1]).sum()

        exact = torch.autograd.functional.hessian(loss, outputs[i])
        torch.testing.assert_close(likelihood.hessian(outputs)[i], exact)


def test_heteroscedastic_fisher_is_the_expected_hessian():
    likelihood, generator = HeteroscedasticGaussian(), torch.Generator().manual_seed(1)
    outputs = torch.tensor([[0.3, 0.5]], dtype=torch.float64)
    targets = likelihood.sample(outputs.expand(200_000, 2), generator)
    gradient = torch.func.vmap(torch.func.grad(lambda f, y: likelihood.log_prob(f[None], y[None]).sum()), (None, 0))(
        outputs[0], targets
    )
    outer = gradient[:, :, None] * gradient[:, None, :]
    error = outer.std(0) / len(outer) ** 0.5
    assert ((outer.mean(0) - likelihood.hessian(outputs)[0]).abs() < 5 * error).all()


def test_moments_and_distribution_function_of_noise_that_depends_on_the_input():
    likelihood = HeteroscedasticGaussian()
    normal = D.Normal(F4[:, :2], torch.nn.functional.softplus(F4[:, 2:]) + 1e-4)
    torch.testing.assert_close(likelihood.mean(F4), normal.mean)
    torch.testing.assert_close(likelihood.variance(F4), normal.variance)
    torch.testing.assert_close(likelihood.cdf(F4, REAL), normal.cdf(REAL))


def test_yes_or_no_at_a_temperature():
    likelihood, logits = Bernoulli(temperature=1.7), torch.full((100_000,), 0.9, dtype=torch.float64)
    p = 1 / (1 + math.exp(-0.9 / 1.7))
    torch.testing.assert_close(likelihood.probs(logits[:1]), torch.tensor([[1 - p, p]], dtype=torch.float64))
    drawn = likelihood.sample(logits, torch.Generator().manual_seed(2)).mean()
    assert abs(drawn - p) < 5 * math.sqrt(p * (1 - p) / len(logits))


def test_samples_have_the_stated_moments():
    one = torch.full((100_000, 1), 0.7, dtype=torch.float64)
    two = torch.cat([one, -one], 1)
    for likelihood, outputs in ((Gaussian(0.4), one), (Poisson(), one), (HeteroscedasticGaussian(), two)):
        draws = likelihood.sample(outputs, torch.Generator().manual_seed(2))
        mean, variance = likelihood.mean(outputs)[0], likelihood.variance(outputs)[0]
        assert abs(draws.mean() - mean) < 5 * (variance / len(draws)).sqrt()
        assert abs(draws.var() - variance) < 0.03 * variance


def test_distribution_functions():
    values = torch.linspace(-1, 4, 11, dtype=torch.float64)
    f = torch.tensor(0.5, dtype=torch.float64)
    torch.testing.assert_close(Gaussian(0.3).cdf(f, values), D.Normal(f, 0.3).cdf(values))
    rate = math.exp(0.5)
    exact = [
        sum(math.exp(-rate) * rate**k / math.factorial(k) for k in range(math.floor(v) + 1)) if v >= 0 else 0.0
        for v in values.tolist()
    ]
    torch.testing.assert_close(Poisson().cdf(f, values), torch.tensor(exact, dtype=torch.float64))


def test_inference_and_pooling():
    assert infer(CLASSES) == Categorical()
    for real in (REAL, REAL[:, 0], torch.ones(5, 1), torch.zeros(5, 2), torch.ones(5, 2), torch.eye(5)[CLASSES] / 2):
        assert infer(real) == Gaussian()
    with pytest.raises(PosterityError, match=r"one-hot rows, .* give their numbers, targets.argmax\(1\)"):
        infer(torch.eye(4)[CLASSES])  # a regression on them ended without a word
    assert pooled([Gaussian(3.0), Gaussian(4.0)]).std == pytest.approx(math.sqrt(12.5))


@pytest.mark.parametrize(
    ("likelihood", "outputs", "targets"),
    [
        (Categorical(), F4, CLASSES + 1),
        (Categorical(), F4, CLASSES - 1),
        (Categorical(), F4, CLASSES.double()),
        (Categorical(), F4, CLASSES[:3]),
        (Bernoulli(), F4[:, :1], CLASSES),
        (Gaussian(1.0), F4, REAL),
        (Gaussian(1.0), F4[:, :2], CLASSES[:, None].expand(5, 2)),
        (Gaussian(1.0), F4[:, :2], REAL * float("nan")),
        (HeteroscedasticGaussian(), F4[:, :3], REAL),
        (Poisson(), F4[:, 0], torch.tensor([0.5, 1, 2, 3, 4])),
    ],
)
def test_targets_that_do_not_fit_are_refused(likelihood, outputs, targets):
    with pytest.raises(PosterityError):
        likelihood.check(outputs, targets)


def test_a_noise_not_yet_learned_is_refused():
    with pytest.raises(PosterityError, match="no std yet"):
        Gaussian().log_prob(F4[:, :2], REAL)


@pytest.mark.parametrize("likelihood", [Categorical(), Categorical(temperature=2.0)])
@pytest.mark.parametrize("shape", [(7,), (7, 4)], ids=["classes", "tokens"])
def test_the_fused_loss_is_the_mean_of_the_log_densities(likelihood, shape):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(*shape, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(5, shape, generator=generator)
    plain = -likelihood.log_prob(logits, targets).mean()
    fused = likelihood.loss(logits, targets)
    torch.testing.assert_close(fused, plain)
    torch.testing.assert_close(torch.autograd.grad(fused, logits), torch.autograd.grad(plain, logits))
