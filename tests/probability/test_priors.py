"""Priors against torch.distributions, and their per-parameter hyper-parameters."""

import math

import numpy as np
import pytest
import torch

import posterity as pst
from posterity.flat import Layout
from posterity.probability.priors import Laplace, Normal, ScaleMixture, StudentT
from posterity.types import PosterityError

W = torch.linspace(-3, 3, 41, dtype=torch.float64)
D = torch.distributions

REFERENCES = [
    (Normal(0.7, 0.2), D.Normal(torch.tensor(0.2, dtype=torch.float64), 0.7)),
    (Laplace(0.4), D.Laplace(torch.zeros((), dtype=torch.float64), 0.4)),
    (StudentT(0.3, 4.0), D.StudentT(torch.tensor(4.0, dtype=torch.float64), 0.0, 0.3)),
    (
        ScaleMixture(1.5, 0.1, 0.3),
        D.MixtureSameFamily(
            D.Categorical(torch.tensor([0.3, 0.7], dtype=torch.float64)),
            D.Normal(torch.zeros(2, dtype=torch.float64), torch.tensor([1.5, 0.1], dtype=torch.float64)),
        ),
    ),
]


@pytest.mark.parametrize(("prior", "reference"), REFERENCES, ids=lambda p: type(p).__name__)
def test_density_is_the_textbooks(prior, reference):
    torch.testing.assert_close(prior.log_density(W), reference.log_prob(W), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", [Normal, Laplace, StudentT, ScaleMixture])
def test_a_scale_by_weight_comes_to_where_the_weights_are(kind):
    """As given on the CPU for a network on a GPU (the meta device stands for it), or for one in half precision."""
    prior = kind(torch.tensor([0.5, 2.0], dtype=torch.float64))
    assert prior.log_density(torch.ones(2, device="meta")).device.type == "meta"
    assert prior.log_density(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_log_prob_sums_over_names_and_patterns():
    params = {"a.weight": torch.ones(3, dtype=torch.float64), "a.bias": torch.full((2,), 2.0, dtype=torch.float64)}
    prior = Normal({"*.bias": 5.0, "*": 0.5})
    expected = (
        D.Normal(0.0, 0.5).log_prob(params["a.weight"]).sum() + D.Normal(0.0, 5.0).log_prob(params["a.bias"]).sum()
    )
    torch.testing.assert_close(prior.log_prob(params), expected.double(), rtol=1e-6, atol=1e-6)
    layout = Layout.of(params)
    assert prior.flat(layout).std.tolist() == [0.5, 0.5, 0.5, 5.0, 5.0]


def test_exact_names_win_over_patterns():
    assert Normal({"*": 1.0, "head.weight": 3.0}).at("head.weight").std == 3.0


@pytest.mark.parametrize("std", [0.0, -1.0, math.inf, math.nan])
def test_bad_scales_are_refused(std):
    with pytest.raises(PosterityError, match="positive"):
        Normal(std)


def test_whole_numbers_of_numpys_are_numbers():
    assert Normal(np.int64(2)).precision == 0.25
    assert ScaleMixture(np.int64(2), np.int64(1)).log_density(W).equal(ScaleMixture(2, 1).log_density(W))


def test_a_parameter_the_prior_does_not_know_is_named():
    with pytest.raises(PosterityError, match=r"b\.weight"):
        Normal({"a.*": 1.0}).log_prob({"b.weight": W})


def test_whole_numbers_beside_fractions_stay_what_they_are():
    layout = Layout(("a.weight", "a.bias"), (torch.Size([2]), torch.Size([1])))
    prior = Normal({"*.weight": 1, "*.bias": 0.5}, {"*.weight": 0, "*.bias": 0.25}).flat(layout)
    assert prior.std.tolist() == [1.0, 1.0, 0.5]
    assert prior.mean.tolist() == [0.0, 0.0, 0.25]


def test_a_tempered_prior_is_the_power_of_its_density_over_the_base():
    """base·(self/base)^(1/T), up to a constant; a mean of the base must not be lost."""
    own, base = Normal({"w": torch.tensor(0.4).double()}, {"w": torch.tensor(-0.7).double()}), Normal(1.3, 0.5)
    found = own.tempered(base, 2.5).at("w").log_density(W)
    first, second = base.log_density(W), own.at("w").log_density(W)
    rest = found - (first + (second - first) / 2.5)
    torch.testing.assert_close(rest, rest[:1].expand_as(rest))


@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        (Normal, lambda s: D.Normal(0.0, s)),
        (Laplace, lambda s: D.Laplace(0.0, s)),
        (StudentT, lambda s: D.StudentT(3.0, 0.0, s)),
    ],
)
def test_a_bare_tensor_of_scales_is_beside_every_parameter(kind, reference):
    """As of an input that a prior trusts less: columns of every weight, in flat vectors as parameter by parameter."""
    scales = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    params = {"a": W[:6].view(2, 3), "b": W[6:9]}
    layout, prior = Layout.of(params), kind(scales)
    expected = sum(reference(scales).log_prob(w).sum() for w in params.values())
    torch.testing.assert_close(prior.log_prob(params), expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(prior.flat(layout).log_density(layout.flatten(params)).sum(), expected)
    for method in (pst.MeanField(prior=prior), pst.HWA(of=pst.MeanField(prior=prior)), pst.MAP(prior=prior)):
        assert f"prior={kind.__name__}(" in repr(method) and "<3 numbers" in repr(method)
    with pytest.raises(PosterityError, match="prior of parameter 'b' has shape"):
        prior.flat(Layout.of({"a": params["a"], "b": W[:4]}))
