"""Every posterior over weights can be pruned by signal to noise; the others are refused."""

import pytest
import torch

from posterity import masks
from posterity.compression import compress
from posterity.posteriors import Mixture, WeightPosterior
from posterity.types import PosterityError
from tests.contract.cases import data, posteriors

POSTERIORS = posteriors()
INPUTS = data(n=16)[0]


@pytest.mark.parametrize("name", POSTERIORS)
def test_the_better_half_of_every_posterior(name):
    q = POSTERIORS[name]
    if not isinstance(q, WeightPosterior) or isinstance(q, Mixture):
        with pytest.raises(PosterityError, match=r"no distribution over weights|average of 2 members is no network"):
            compress(q, keep=0.5, example=INPUTS)
        return
    small = compress(q, keep=0.5, example=INPUTS)
    mean, variance = q.mean(), q.variance()
    ratio = torch.cat([(mean[n].abs() / variance[n].sqrt()).flatten() for n in ("0.weight", "2.weight")])
    limit = ratio.sort().values[len(ratio) // 2 - 1]
    better = {n: mean[n].abs() / variance[n].sqrt() > limit for n in ("0.weight", "2.weight")}
    q.module.load_state_dict(mean, strict=False)
    expected = masks.apply(q.module, better)(INPUTS)
    torch.testing.assert_close(small(INPUTS), expected)
    assert small.compression.ratio == 2.0
