"""What IVON warns of; its update and its known answers are in tests/optim."""

import warnings

import pytest
import torch

import posterity as pst
from posterity import data
from posterity.models import mlp
from posterity.types import PosterityWarning

DIGITS = data.load("digits").training()


def fitted(beta2: float) -> pst.Posterior:
    method = pst.IVON(hess_init=0.1, beta2=beta2, prior=pst.priors.Normal(2.0))
    return pst.fit(
        lambda: mlp(64, 10, (64, 64)),
        method,
        DIGITS,
        epochs=10,
        seed=0,
        training=pst.Training(batch_size=64, progress=False),
    )


def test_weights_without_curvature_are_a_symptom():
    with pytest.warns(PosterityWarning, match=r"the Hessian of \d+% of the weights has fallen to nothing") as said:
        posterior = fitted(beta2=0.9)
    stds = torch.cat([v.sqrt().flatten() for v in posterior.variance().values()])
    share = round(100 * float((stds > 2 / 1.01**0.5).double().mean()))  # 2 is the prior's
    assert share > 10 and any(f"of {share}%" in str(w.message) for w in said)


def test_a_hessian_that_follows_slowly_is_none():
    with warnings.catch_warnings():
        warnings.simplefilter("error", PosterityWarning)
        fitted(beta2=0.9999)


def test_under_a_narrow_prior_weights_may_be_the_priors():
    method = pst.IVON(prior=pst.priors.Normal(1e-3), rescale_lr=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PosterityWarning)
        pst.fit(lambda: mlp(64, 10), method, DIGITS, epochs=1, training=pst.Training(progress=False))
