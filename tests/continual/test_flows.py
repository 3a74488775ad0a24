"""Flows are bijections with the determinant they state, and find a density that is known."""

import math

import pytest
import torch
from torch.func import jacrev, vmap

from posterity.continual import feature_flow, pixel_flow
from posterity.types import PosterityError


def stirred(flow, dtype):
    """Weights that are far from the identity that a flow begins as."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in flow.parameters():
            p.add_(0.3 / math.sqrt(max(1, p[0].numel())) * torch.randn(p.shape, generator=generator))
    return flow.to(dtype)


FLOWS = {
    "features": lambda: feature_flow(7, couplings=5, hidden=16),
    "pixels": lambda: pixel_flow((1, 4, 4), couplings=3, hidden=8),
    "colours": lambda: pixel_flow((3, 4, 2), couplings=2, hidden=8, levels=1),
}
every_flow = pytest.mark.parametrize("make", FLOWS.values(), ids=FLOWS.keys())


def inputs(flow, count, dtype):
    return torch.randn(count, *flow.shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


@every_flow
def test_a_flow_begins_as_the_identity_up_to_order(make):
    flow = make()
    x = inputs(flow, 3, torch.float32)
    z, log_det = flow(x)
    torch.testing.assert_close(z.sort().values, x.flatten(1).sort().values, rtol=0, atol=0)
    assert not log_det.any()


@every_flow
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_the_inverse_inverts(make, dtype, tolerance):
    flow = stirred(make(), dtype)
    x = inputs(flow, 200, dtype)
    z, _ = flow(x)
    assert (z - x.flatten(1)).abs().max() > 0.5
    torch.testing.assert_close(flow.inverse(z), x, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(flow(flow.inverse(z))[0], z, rtol=10 * tolerance, atol=10 * tolerance)


@every_flow
def test_the_log_determinant_is_that_of_autograd(make):
    flow = stirred(make(), torch.float64)
    x = inputs(flow, 5, torch.float64)
    jacobians = vmap(jacrev(lambda one: flow(one[None])[0][0]))(x).flatten(2)
    torch.testing.assert_close(flow(x)[1], torch.linalg.slogdet(jacobians).logabsdet, rtol=1e-10, atol=1e-10)


def test_a_flow_on_gaussian_data_finds_the_entropy():
    generator = torch.Generator().manual_seed(2)
    factor = torch.tensor([[1.5, 0.0], [-1.0, 0.4]])
    entropy = (1 + math.log(2 * math.pi)) + float(factor.diagonal().log().sum())
    flow = feature_flow(2, couplings=4, hidden=16)
    optimizer = torch.optim.Adam(flow.parameters(), 5e-3)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)

    def nll(count):
        z, log_det = flow(torch.randn(count, 2, generator=generator) @ factor.T + 2.0)
        return 0.5 * (z.square().sum(1) + 2 * math.log(2 * math.pi)) - log_det

    for _ in range(300):
        optimizer.zero_grad()
        nll(256).mean().backward()
        optimizer.step()
        rate.step()
    with torch.no_grad():
        held = nll(40_000)
    # −log p(x) of a Gaussian in the plane has variance 1; the flow itself may be 0.02 nats short of the truth.
    error = math.sqrt(1 / len(held))
    assert -4 * error < held.mean() - entropy < 4 * error + 0.02


def test_sizes_that_no_flow_has_are_refused():
    with pytest.raises(PosterityError, match="two features"):
        feature_flow(1)
    with pytest.raises(PosterityError, match="6×4 pixels cannot be halved 2 times"):
        pixel_flow((1, 6, 4), levels=2)
