"""Parts of a mixture have equal weight, however many draws each of them has."""

import pytest
import torch
from torch import nn

import posterity as pst
from posterity.posteriors import DiagonalGaussian, Empirical, Mixture
from posterity.prediction import Compute

LIKELIHOOD = pst.likelihoods.Gaussian(0.5)


class RandomFeatures(nn.Module):
    """A network whose buffer is drawn anew in every instance."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(2, 8))
        self.out = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.sin(x @ self.frequencies))


def points(*weights: float) -> Empirical:
    return Empirical(nn.Linear(1, 1, bias=False), LIKELIHOOD, [{"weight": torch.tensor([[w]])} for w in weights])


def narrow(mean: float) -> DiagonalGaussian:
    std = {"weight": torch.full((1, 1), 1e-6)}
    return DiagonalGaussian(nn.Linear(1, 1, bias=False), LIKELIHOOD, {"weight": torch.tensor([[mean]])}, std)


def test_a_mixture_says_what_it_is_made_of():
    shown = repr(Mixture([points(0.0), points(1.0), narrow(1.0)]))
    each = "(Linear, 1 parameters, Gaussian(std=0.5))"
    assert shown == f"Mixture(2 × Empirical{each}, 1 × DiagonalGaussian{each})"


@pytest.mark.parametrize(
    ("parts", "draws", "taken"),
    [
        ([points(0.0), narrow(1.0)], 32, 32),
        ([points(0.0), points(1.0, 1.0, 1.0, 1.0)], 8, 8),
        ([points(0.0), points(1.0)], 32, 2),  # nothing is gained by points over again
        ([points(0.0), points(1.0, 1.0)], 32, 32),
        ([Mixture([points(0.0), points(0.0)]), points(1.0)], 32, 32),
    ],
)
def test_a_point_weighs_as_much_as_a_gaussian(parts, draws, taken):
    mixture = Mixture(parts)
    prediction = mixture.predict(torch.ones(1, 1), draws)
    assert prediction.draws == taken == len(list(mixture.draws(draws)))
    assert float(prediction.mean) == pytest.approx(0.5, abs=1e-5)
    assert float(prediction.epistemic) == pytest.approx(0.25, abs=1e-5)
    assert float(prediction.mean) == pytest.approx(float(mixture.mean()["weight"]), abs=1e-5)


@pytest.mark.parametrize(("draws", "mean"), [(1, 0.0), (2, (0 + 20) / 2), (3, (0 + 5 + 20) / 3), (5, 36 / 5)])
def test_fewer_draws_than_parts_are_spread_over_the_parts(draws, mean):
    mixture = Mixture([points(value) for value in (0.0, 1.0, 5.0, 10.0, 20.0)])
    prediction = mixture.predict(torch.ones(1, 1), draws)
    assert prediction.draws == draws and float(prediction.mean) == pytest.approx(mean, rel=1e-6)


def test_a_single_sample_is_of_any_part_alike():
    mixture, generator = Mixture([points(0.0), points(1.0), points(2.0)]), torch.Generator().manual_seed(0)
    drawn = torch.stack([mixture.sample(generator)["weight"].squeeze() for _ in range(3000)])
    shares = drawn.long().bincount(minlength=3) / 3000
    assert ((shares - 1 / 3).abs() < 5 * (2 / 9 / 3000) ** 0.5).all()


def normalised() -> nn.Module:
    """A network whose BatchNorm has seen data of its own."""
    network = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    network(3 * torch.randn(64, 2) + torch.randn(2))
    return network


@pytest.mark.parametrize("network", [RandomFeatures, normalised])
@pytest.mark.parametrize("batched", [True, False])
def test_every_part_keeps_its_own_buffers(network, batched):
    torch.manual_seed(0)
    networks = [network().eval() for _ in range(3)]
    parts = [Empirical(n, LIKELIHOOD, [dict(n.named_parameters())]) for n in networks]
    mixture, x = Mixture([Mixture(parts[:2]), *parts[2:]]), torch.randn(4, 2)
    found = mixture.predict(x, 4, keep_samples=True, compute=Compute(batched=batched)).samples
    for n in networks:
        assert (found - n(x)).abs().amax((1, 2)).min() < 1e-6
    assert torch.equal(mixture.module(x), networks[0](x))  # the first part's own, as they were


def test_refreshing_a_mixture_refreshes_its_parts():
    torch.manual_seed(0)
    data = [(torch.randn(32, 2), torch.zeros(32, 1)) for _ in range(2)]
    networks = [normalised() for _ in range(2)]
    means = [{name: p.detach() for name, p in n.named_parameters()} for n in networks]
    stds = [{name: torch.full_like(p, 0.1) for name, p in mean.items()} for mean in means]
    parts = [
        DiagonalGaussian(n, LIKELIHOOD, *moments, seed=i).refresh(data, 2)
        for i, (n, *moments) in enumerate(zip(networks, means, stds, strict=True))
    ]
    x = torch.randn(4, 2)
    found = Mixture(parts).refresh(data, 8).predict(x, 16)
    expected = [part.refresh(data, 8).predict(x, 8).mean for part in parts]
    assert found.draws == 16
    torch.testing.assert_close(found.mean, torch.stack(expected).mean(0))


def test_parts_of_different_networks_are_refused():
    other = Empirical(nn.Linear(2, 1, bias=False), LIKELIHOOD, [{"weight": torch.zeros(1, 2)}])
    with pytest.raises(pst.PosterityError, match="one network"):
        Mixture([points(0.0), other])


def test_moments_and_density_are_those_of_the_mixture():
    means, stds = torch.tensor([0.5, -1.0, 2.0]).double(), torch.tensor([0.3, 0.7, 0.2]).double()
    parts = [
        DiagonalGaussian(
            nn.Linear(1, 1, bias=False).double(), LIKELIHOOD, {"weight": m.view(1, 1)}, {"weight": s.view(1, 1)}
        )
        for m, s in zip(means, stds, strict=True)
    ]
    D = torch.distributions
    exact = D.MixtureSameFamily(D.Categorical(torch.ones(3).double()), D.Normal(means, stds))
    mixture = Mixture(parts)
    torch.testing.assert_close(mixture.mean()["weight"].squeeze(), exact.mean)
    torch.testing.assert_close(mixture.variance()["weight"].squeeze(), exact.variance)
    where = torch.tensor([[0.2]]).double()
    torch.testing.assert_close(mixture.log_prob({"weight": where}), exact.log_prob(where.squeeze()))


def test_a_mixture_gives_as_many_draws_as_its_smallest_bank_allows():
    """Equal weight on parts with 4 and 8 draws leaves 4 of each."""
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), torch.randn(16, 2)
    mean = {name: p.detach() for name, p in module.named_parameters()}
    part = DiagonalGaussian(module, LIKELIHOOD, mean, {name: torch.full_like(p, 0.1) for name, p in mean.items()})
    mixture = Mixture([part.refresh([(x, torch.zeros(16, 1))], draws=n) for n in (4, 8)])
    assert mixture.most_draws == 8
    assert mixture.predict(x, draws="auto", tolerance=1e-9).draws == 8
