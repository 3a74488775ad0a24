"""What the natural-gradient methods share: their prior."""

import dataclasses

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
