"""Whatever takes labelled data refuses in one sentence what the network cannot be judged by."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import posterity as pst
from posterity.evaluation import diversity
from posterity.evaluation.connection import connect
from posterity.evaluation.landscape import judge
from posterity.posteriors import DiagonalGaussian

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(40) % 2
NAN = X.clone()
NAN[7, 1] = math.nan


def posterior(likelihood, outputs: int) -> DiagonalGaussian:
    net = nn.Linear(3, outputs)
    mean = {name: p.detach() for name, p in net.named_parameters()}
    return DiagonalGaussian(net, likelihood, mean, {name: torch.full_like(p, 0.1) for name, p in mean.items()})


def seen(q: DiagonalGaussian, data) -> torch.Tensor:
    return judge(q.module, q.likelihood, [q.mean()], data)


CALLERS = {
    "evaluate": pst.evaluate,
    "conformal": pst.conformal,
    "covered": lambda q, data: pst.conformal(q, (X, LABELS)).covered(data),
    "temper": pst.temper,
    "diversity": diversity,
    "landscape": seen,
    "connect": lambda q, data: connect(q, q, data, steps=1),
    "compress": lambda q, data: pst.compress(q, keep=0.5, validation=data, example=X),
}
BAD = {
    "too high": ((X, LABELS + 5), "class targets run from 5 to 6, but there are 2"),
    "too low": ((X, LABELS - 1), "class targets run from -1 to 0, but there are 2"),
    "of another shape": ((X, torch.zeros(40, 3).long()), r"40 predictions need 40 targets, got .* \(40, 3\)"),
    "NaN": ((NAN, LABELS), "the inputs hold NaN"),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("call", CALLERS.values(), ids=CALLERS.keys())
def test_labels_that_are_none_of_the_classes_are_refused(call, outputs, data):
    likelihood = pst.likelihoods.Bernoulli() if outputs == 1 else pst.likelihoods.Categorical()
    bad, match = data
    with pytest.raises(pst.PosterityError, match=match):
        call(posterior(likelihood, outputs), bad)


NUMBERS = ("evaluate", "conformal", "landscape", "connect")
BAD_NUMBERS = {
    "NaN": ((X, torch.full((40, 1), math.nan)), "the targets hold NaN"),
    "of another shape": ((X, X), r"targets of shape \(40, 3\) do not fit predictions of shape \(40, 1\)"),
    "NaN inputs": ((NAN, X[:, :1]), "the inputs hold NaN"),
}


@pytest.mark.parametrize("data", BAD_NUMBERS.values(), ids=BAD_NUMBERS.keys())
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_do_not_fit_are_refused(name, data):
    with pytest.raises(pst.PosterityError, match=data[1]):
        CALLERS[name](posterior(pst.likelihoods.Gaussian(0.5), 1), data[0])


def test_the_coverage_of_intervals_needs_real_targets():
    wrapped = pst.conformal(posterior(pst.likelihoods.Gaussian(0.5), 1), (X, X[:, :1]))
    with pytest.raises(pst.PosterityError, match="the targets hold NaN"):
        wrapped.covered((X, torch.full((40, 1), math.nan)))


def test_an_example_to_compress_with_must_be_of_numbers():
    with pytest.raises(pst.PosterityError, match="the inputs hold NaN"):
        pst.compress(posterior(pst.likelihoods.Categorical(), 2), keep=0.5, example=NAN)
