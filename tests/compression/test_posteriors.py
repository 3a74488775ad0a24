"""Every posterior over weights can be pruned by signal to noise; the others are refused. What is pruned stays so."""

import pytest
import torch

from posterity import masks
from posterity.compression import compress
from posterity.posteriors import DiagonalGaussian, Mixture, WeightPosterior, load, save
from posterity.probability.likelihoods import Categorical
from posterity.types import PosterityError
from tests.compression.test_compress import network, posterior
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


def test_where_nothing_went_that_is_said():
    small = compress(posterior(noisy_std=1e-6))
    assert small.compression.ratio == 1
    assert small.compression.notes[0] == "no weight was removed: give keep=, max_drop= or a lower threshold="


def test_what_the_method_has_decided_stands(tmp_path):
    """At log alpha 3 the posterior has 20 weights, its method left 120 + 36 of log alpha up to 6."""
    q = posterior()
    alive = torch.arange(12)[:, None].expand(12, 20) < 6
    mean = {**q.mean(), "0.weight": q.mean()["0.weight"] * alive}
    std = {name: v.sqrt() for name, v in q.variance().items() if name.endswith("weight")}
    std["0.weight"] = std["0.weight"] * alive
    own = DiagonalGaussian(network(), Categorical(), mean, std, inputs=q.inputs)
    assert sum(layer.kept for layer in compress(own).compression.layers) == 20
    own.pruned = True
    save(own, tmp_path / "q.safetensors")
    for again in (own, load(tmp_path / "q.safetensors", network()), own.to("cpu", torch.float64)):
        assert [layer.kept for layer in compress(again).compression.layers] == [120, 36]
        assert sum(layer.kept for layer in compress(again, threshold=3.0).compression.layers) == 20
        assert sum(layer.kept for layer in compress(again, keep=20 / 276).compression.layers) == 20
