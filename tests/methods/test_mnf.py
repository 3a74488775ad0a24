"""MNF through fit: it learns, its posterior is drawn from and stored, and it has no density."""

from __future__ import annotations

import pytest
import torch
from tests.contract.cases import data, network
from torch import nn

import posterity as pst


def test_the_posterior_has_draws_moments_and_no_density():
    training = pst.Training(batch_size=32, lr=0.02, progress=False)
    q = pst.fit(network(), pst.MNF(hidden=8), data(), epochs=20, training=training)
    assert q.kind == "implicit"
    draws = torch.stack([q.sample(torch.Generator().manual_seed(i))["0.weight"] for i in range(2000)])
    std = q.variance()["0.weight"].sqrt()
    assert ((draws.mean(0) - q.mean()["0.weight"]).abs() < 0.25 * std).all()
    assert (q.variance()["0.bias"] == 0).all()
    with pytest.raises(pst.PosterityError, match="no density"):
        q.log_prob(q.mean())
    prior = pst.priors.from_posterior(q)
    torch.testing.assert_close(prior.at("0.weight").std, std)


def test_weights_of_a_unit_move_together():
    """Inputs share a scale, so that the weights of a column are correlated where their means are large."""
    training = pst.Training(batch_size=32, lr=0.02, progress=False)
    q = pst.fit(network(), pst.MNF(hidden=8), data(), epochs=20, training=training)
    with torch.no_grad():
        for scales in q.sampler.blocks[0].scales:
            scales.log_std.fill_(0.0)
    generator = torch.Generator().manual_seed(0)
    column = torch.stack([q.sample(generator)["0.weight"][:, 0] for _ in range(1500)])
    largest = q.sampler.blocks[0].mean[: 12 * 4].view(12, 4)[:, 0].abs().topk(2).indices
    assert torch.corrcoef(column[:, largest].T)[0, 1].abs() > 0.3


@pytest.mark.parametrize(
    "options", [{"hidden": 0}, {"hidden": 2.5}, {"flow_steps": 1.5}, {"estimator": "flipout"}, {"free_bits": 1.0}]
)
def test_bad_hyper_parameters(options):
    with pytest.raises(pst.PosterityError):
        pst.MNF(**options)


def test_it_trains_under_autocast_and_its_bound_is_the_one_without():
    net = pst.MNF(hidden=8).prepare(network(torch.float32))
    torch.manual_seed(0)
    plain = pst.kl(net)
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(pst.kl(net), plain, rtol=0, atol=0)
    training = pst.Training(batch_size=32, lr=0.02, autocast=True, progress=False)
    q = pst.fit(network(torch.float32), pst.MNF(hidden=8), data(torch.float32), epochs=20, training=training)
    inputs, targets = data(torch.float32)
    assert q.predict(inputs).log_prob(targets).mean() > -0.7


def test_a_learned_prior_scale_is_that_of_the_weights_with_their_scales():
    """s² = E w², with w = z v: where the scales are about 2, not about 1, s is twice as large."""
    layer = nn.Linear(3, 4, bias=False).double()
    learned = pst.MNF(prior=pst.priors.EmpiricalNormal()).prepare(layer)
    with torch.no_grad():
        for name, p in learned.named_parameters():
            if name.endswith("scales.0.mean"):
                p.add_(1.0)
    mean, std = pst.plain_moments(learned)
    scale = (mean["weight"].square() + std["weight"].square()).mean().sqrt().item()
    given = pst.MNF(prior=pst.priors.Normal(scale)).prepare(layer)
    given.load_state_dict(learned.state_dict())
    bounds = []
    for net in (learned, given):
        torch.manual_seed(0)
        bounds.append(pst.kl(net))
    torch.testing.assert_close(*bounds)
