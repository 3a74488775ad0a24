"""Parts of a mixture have equal weight, however many draws each of them has."""

import pytest
import torch
from torch import nn

import posterity as pst
from posterity.posteriors import DiagonalGaussian, Empirical, Mixture

LIKELIHOOD = pst.likelihoods.Gaussian(0.5)


def points(*weights: float) -> Empirical:
    return Empirical(nn.Linear(1, 1, bias=False), LIKELIHOOD, [{"weight": torch.tensor([[w]])} for w in weights])


def narrow(mean: float) -> DiagonalGaussian:
    std = {"weight": torch.full((1, 1), 1e-6)}
    return DiagonalGaussian(nn.Linear(1, 1, bias=False), LIKELIHOOD, {"weight": torch.tensor([[mean]])}, std)


@pytest.mark.parametrize(
    ("parts", "draws", "taken"),
    [
        ([points(0.0), narrow(1.0)], 32, 32),
        ([points(0.0), points(1.0, 1.0, 1.0, 1.0)], 8, 8),
        ([points(0.0), points(1.0)], 32, 2),  # nothing is gained by points over again
    ],
)
def test_a_point_weighs_as_much_as_a_gaussian(parts, draws, taken):
    mixture = Mixture(parts)
    prediction = mixture.predict(torch.ones(1, 1), draws)
    assert prediction.draws == taken == len(list(mixture.draws(draws)))
    assert float(prediction.mean) == pytest.approx(0.5, abs=1e-5)
    assert float(prediction.epistemic) == pytest.approx(0.25, abs=1e-5)
    assert float(prediction.mean) == pytest.approx(float(mixture.mean()["weight"]), abs=1e-5)
