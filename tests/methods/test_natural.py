"""What the natural-gradient methods share: their prior, and what they refuse."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import posterity as pst


@pytest.mark.parametrize("method", [pst.KFAC(lr=0.3), pst.OGN(lr=0.1, damping=0.0)], ids=repr)
def test_a_prior_mean_by_parameter_and_one_std_meet_the_ridge_solution(method):
    """K-FAC refused such a prior for a precision that differed by weight, which it did not."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=g, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 0.5 * torch.randn(40, 1, generator=g).double()
    center, std = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64), 0.2
    precision = x.T @ x / 0.25 + torch.eye(3) / std**2
    expected = torch.linalg.solve(precision, x.T @ y / 0.25 + center.T / std**2).T
    method = dataclasses.replace(method, prior=pst.priors.Normal(std, mean={"weight": center}))
    training = pst.Training(batch_size=40, progress=False)
    net, likelihood = nn.Linear(3, 1, bias=False).double(), pst.likelihoods.Gaussian(0.5)
    q = pst.fit(net, method, (x, y), likelihood=likelihood, epochs=600, training=training)
    torch.testing.assert_close(q.mean()["weight"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", [pst.IVON(lr=0.01), pst.VOGN(lr=0.01)], ids=repr)
def test_a_std_by_input_is_laid_beside_every_weight_of_it(method):
    """As for the other methods; it was refused for its shape."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 3, generator=g), torch.randn(40, 2, generator=g)
    by_input = torch.tensor([0.1, 1.0, 3.0])

    def mean(std):
        own = dataclasses.replace(method, prior=pst.priors.Normal({"weight": std}))
        likelihood, training = pst.likelihoods.Gaussian(0.5), pst.Training(batch_size=20, progress=False)
        torch.manual_seed(0)
        net = nn.Linear(3, 2, bias=False)
        return pst.fit(net, own, (x, y), likelihood=likelihood, epochs=2, training=training).mean()["weight"]

    torch.testing.assert_close(mean(by_input), mean(by_input.expand(2, 3)), rtol=0, atol=0)


@pytest.mark.parametrize("method", [pst.IVON, pst.VOGN, pst.KFAC])
def test_a_temperature_may_be_of_numpys_single_precision(method):
    x, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    net, options = nn.Linear(3, 2), {"epochs": 1, "training": pst.Training(progress=False)}
    first, second = (
        pst.fit(net, method(temperature=half), (x, y), **options).mean() for half in (0.5, np.float32(0.5))
    )
    torch.testing.assert_close(first, second, rtol=0, atol=0)


class Sequences(nn.Module):
    """A transformer's layer, whose positions may come before the examples, as torch's own do by default."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.layer, self.out = nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=batch_first), nn.Linear(4, 3)
        self.batch_first = batch_first

    def forward(self, x):
        return self.out(self.layer(x).mean(1) if self.batch_first else self.layer(x.transpose(0, 1)).mean(0))


SEQUENCES = (torch.randn(16, 8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3)


@pytest.mark.parametrize("method", [pst.VOGN(), pst.OGN(), pst.HWA(of=pst.VOGN(), start=0, every=1)])
def test_sequences_as_long_as_a_batch_are_not_taken_for_examples(method):
    """Squares were taken position by position, up to ten times off, where a batch had as many examples."""
    means = []
    for batch_first in (True, False):
        torch.manual_seed(0)
        training = pst.Training(batch_size=8, progress=False)
        means.append(pst.fit(Sequences(batch_first), method, SEQUENCES, epochs=3, training=training).mean())
    torch.testing.assert_close(*means, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", [pst.KFAC(), pst.NoisyKFAC()])
def test_layers_that_do_not_see_examples_first_have_no_kronecker_factors(method):
    with pytest.raises(pst.PosterityError, match=r"layer.linear2 is not given examples first.*: a diagonal curvature"):
        pst.fit(Sequences(False), method, SEQUENCES, epochs=1, training=pst.Training(batch_size=8))
