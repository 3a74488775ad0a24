"""What every posterior owes."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import posterity as pst
from posterity.posteriors import WeightPosterior
from posterity.posteriors.files import KINDS
from tests.contract.cases import data, network, posteriors

POSTERIORS = posteriors()
INPUTS = data(n=16)[0]
every_posterior = pytest.mark.parametrize("posterior", POSTERIORS.values(), ids=POSTERIORS.keys())
DENSE = {k: q for k, q in POSTERIORS.items() if isinstance(q, WeightPosterior)}
every_weight_posterior = pytest.mark.parametrize("posterior", DENSE.values(), ids=DENSE.keys())


def test_every_kind_has_a_case():
    assert {q.kind for q in POSTERIORS.values()} == set(KINDS)


@every_posterior
def test_draws_repeat(posterior):
    first = [draw(INPUTS) for draw in posterior.draws(4)]
    torch.testing.assert_close(first, [draw(INPUTS) for draw in posterior.draws(4)], rtol=0, atol=0)
    assert not torch.equal(first[0], first[1])


@every_posterior
def test_a_generator_is_used_and_nothing_else(posterior):
    pick = [next(posterior.draws(2, torch.Generator().manual_seed(s)))(INPUTS) for s in (1, 1, 2)]
    torch.testing.assert_close(pick[0], pick[1], rtol=0, atol=0)
    if posterior.kind != "empirical":  # its draws hold no randomness
        assert not torch.equal(pick[0], pick[2])


@every_posterior
def test_stacked_draws_are_the_draws(posterior):
    stacked = posterior.stacked(3)
    if stacked is None:
        assert posterior.kind in ("stochastic", "linearised")
        return
    for i, draw in enumerate(posterior.draws(3)):
        for name, value in draw.params.items():
            torch.testing.assert_close(stacked[0][name][i], value, rtol=0, atol=0)


@every_posterior
def test_batched_and_looped_predictions_agree(posterior):
    looped = posterior.predict(INPUTS, draws=10, compute=pst.Compute(batched=False))
    if posterior.kind in ("stochastic", "linearised"):
        return
    for compute in (pst.Compute(batched=True), pst.Compute(batched=True, chunk=3, block=5)):
        torch.testing.assert_close(posterior.predict(INPUTS, draws=10, compute=compute).probs, looped.probs)


@every_posterior
def test_the_function_predicts_as_the_method_does(posterior):
    function, method = pst.predict(posterior, INPUTS, 4).columns(), posterior.predict(INPUTS, 4).columns()
    torch.testing.assert_close(function, method, rtol=0, atol=0)


@every_posterior
def test_save_load(posterior, tmp_path):
    pst.save(posterior, tmp_path / "q.safetensors")
    for module in (network(), network().float()):  # in another precision, as a fresh network may be
        loaded = pst.load(tmp_path / "q.safetensors", module)
        drawn = [[draw(INPUTS) for draw in q.draws(8)] for q in (loaded, posterior)]
        torch.testing.assert_close(*drawn, rtol=0, atol=0)
        torch.testing.assert_close(loaded.predict(INPUTS, 4).probs, posterior.predict(INPUTS, 4).probs)
        assert type(loaded) is type(posterior)


@every_posterior
def test_a_precision_in_the_place_of_the_device_is_refused(posterior):
    with pytest.raises(pst.PosterityError, match=r"goes by name: to\(dtype=torch.float32\)"):
        posterior.to(torch.float32)


@every_posterior
def test_precision_can_be_changed(posterior):
    single = posterior.to(dtype=torch.float32).predict(INPUTS.float()).probs
    assert single.dtype == torch.float32
    assert posterior.predict(INPUTS).probs.dtype == torch.float64


@every_posterior
def test_the_network_is_as_before_after_an_error_inside_it(posterior):
    before = {k: v.clone() for k, v in posterior.module.state_dict().items()}
    with pytest.raises(RuntimeError):
        next(posterior.draws(1))(INPUTS[:, :2])
    torch.testing.assert_close(dict(posterior.module.state_dict()), before, rtol=0, atol=0)


@every_weight_posterior
def test_moments_of_draws(posterior):
    count = 20_000
    names = list(posterior.mean())
    generator = torch.Generator().manual_seed(1)
    samples = (posterior.sample(generator) for _ in range(count))
    flat = torch.stack([torch.cat([weights[n].flatten() for n in names]) for weights in samples])
    mean = torch.cat([posterior.mean()[n].flatten() for n in names])
    variance = torch.cat([posterior.variance()[n].flatten() for n in names])
    # 99 means and variances: 5 standard errors keep the false-alarm rate under 1e-4.
    error = (variance / count).sqrt()
    assert ((flat.mean(0) - mean).abs() <= 5 * error + 1e-12).all()
    fourth = (flat - flat.mean(0)).pow(4).mean(0)
    spread = ((fourth - variance.square()).clamp_min(0) / count).sqrt()
    assert ((flat.var(0) - variance).abs() <= 5 * spread + 1e-12).all()


@every_weight_posterior
def test_a_posterior_becomes_a_prior(posterior):
    prior = pst.priors.from_posterior(posterior, pst.priors.Normal(3.0))
    for name, variance in posterior.variance().items():
        fixed = variance == 0
        torch.testing.assert_close(prior.at(name).std[fixed], torch.full_like(variance[fixed], 3.0))
        torch.testing.assert_close(prior.at(name).std[~fixed], variance[~fixed].sqrt())


@every_posterior
def test_inputs_of_another_shape_or_kind_are_refused(posterior):
    posterior = posterior.to()
    posterior.inputs = pst.calling.InputSpec.of(INPUTS)
    for bad in (INPUTS[:, :3], INPUTS.long(), INPUTS.half(), torch.full_like(INPUTS, torch.inf), INPUTS[:0]):
        with pytest.raises(pst.PosterityError):
            posterior.predict(bad)


@every_posterior
def test_memory_is_free_as_soon_as_it_is_let_go(posterior):
    posterior.predict(INPUTS, draws=3)  # torch's first forward-mode derivative leaves garbage
    gc.disable()
    try:
        own = posterior.to("cpu")
        own.predict(INPUTS, draws=3)
        module = weakref.ref(own.module)
        del own
        assert module() is None
    finally:
        gc.enable()


class RandomFeatures(nn.Module):
    """Features that every new network draws anew, and that no state_dict holds."""

    def __init__(self):
        super().__init__()
        self.register_buffer("features", torch.randn(2, 6), persistent=False)
        self.layer = nn.Linear(6, 2)

    def forward(self, x):
        return self.layer(torch.tanh(x @ self.features))


@pytest.mark.parametrize("method, members", [(pst.MAP(), 1), (pst.Laplace(), 1), (pst.MAP(), 2)])
def test_a_file_has_the_buffers_that_a_state_dict_leaves_out(method, members, tmp_path):
    x = torch.randn(30, 2)
    training = pst.Training(progress=False)
    q = pst.fit(RandomFeatures(), method, (x, (x[:, 0] > 0).long()), epochs=1, members=members, training=training)
    pst.save(q, tmp_path / "q")
    torch.testing.assert_close(pst.load(tmp_path / "q", RandomFeatures()).predict(x).probs, q.predict(x).probs)
