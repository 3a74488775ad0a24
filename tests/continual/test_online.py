"""A stream with a file in between: the same as without, and refusals that leave the file as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import posterity as pst
from posterity import continual
from posterity.continual.online import SEED_STRIDE
from tests.contract.cases import data, network

METHOD = pst.VOGN(prior=pst.priors.Normal(0.5))
FAST = pst.Training(batch_size=16, steps=6, progress=False)


def batches(count: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y = data()
    return list(zip(x.chunk(count), y.chunk(count), strict=True))


def test_a_stream_that_stops_goes_on_from_its_file(tmp_path):
    whole = continual.online(network(), METHOD, batches(), training=FAST)
    file = tmp_path / "posterior.safetensors"
    for batch in batches():  # a process a day
        continual.online(network(), METHOD, [batch], path=file, training=FAST)
    found = pst.load(file, network())
    for name, mean in whole.mean().items():
        assert torch.equal(found.mean()[name], mean)
        assert torch.equal(found.variance()[name], whole.variance()[name])


def test_certainty_grows_with_the_stream():
    first = continual.online(network(), METHOD, batches()[:1], training=FAST)
    last = continual.online(network(), METHOD, batches()[1:], posterior=first, training=FAST)
    assert all(bool((last.variance()[name] < v).all()) for name, v in first.variance().items())


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_a_batch_is_a_fit_with_the_tempered_posterior_as_its_prior(temperature):
    first, second, _ = batches()
    before = continual.online(network(), METHOD, [first], training=FAST)
    found = continual.online(network(), METHOD, [second], posterior=before, temperature=temperature, training=FAST)
    net, own = continual.carry_on(network(), METHOD, before, temperature)
    # What the batch has added to the precision of the first prior, which is 4, counts one part in the temperature.
    precision = 4 + (1 / before.variance()["0.weight"] - 4) / temperature
    torch.testing.assert_close(own.prior.at("0.weight").precision, precision)
    expected = pst.fit(net, own, second, seed=before.seed + SEED_STRIDE, training=FAST)
    torch.testing.assert_close(found.mean(), expected.mean(), rtol=0, atol=0)
    torch.testing.assert_close(found.variance(), expected.variance(), rtol=0, atol=0)


def test_a_batch_of_one_example_is_a_batch():
    x, y = data()
    few = list(zip(x[:3].split(1), y[:3].split(1), strict=True))
    one, three = (continual.online(network(), METHOD, some, training=FAST).variance() for some in (few[:1], few))
    for name, variance in one.items():  # each example takes some of what the prior leaves open
        assert bool((variance <= METHOD.prior.std**2).all()) and bool((three[name] < variance).all())


def test_what_is_wrong_is_said_and_the_file_kept(tmp_path):
    file = tmp_path / "posterior.safetensors"
    good = batches()[0]
    nothing = (good[0][:0], good[1][:0])
    with pytest.raises(pst.PosterityError, match="empty"):
        continual.online(network(), METHOD, [good, nothing], path=file, training=FAST)
    kept = file.read_bytes()
    with pytest.raises(pst.PosterityError, match="but the network has 3 outputs"):
        continual.online(network(), METHOD, [(good[0], good[1] + 2)], path=file, training=FAST)
    with pytest.raises(pst.PosterityError, match="another network"):
        continual.online(nn.Linear(4, 3).double(), METHOD, [good], path=file, training=FAST)
    assert file.read_bytes() == kept
    file.write_bytes(kept[:-3] + b"bad")
    with pytest.raises(pst.PosterityError, match="damaged"):
        continual.online(network(), METHOD, [good], path=file, training=FAST)
    with pytest.raises(pst.PosterityError, match="the stream has no batch"):
        continual.online(network(), METHOD, [])
