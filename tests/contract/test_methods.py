"""What every method owes: see CONTRIBUTING.md."""

from __future__ import annotations

import copy
import gc

import pytest
import torch

import posterity as pst
from tests.contract.cases import METHOD_CASES, MethodCase, data, network

every_method = pytest.mark.parametrize("case", METHOD_CASES, ids=lambda case: case.name)
TEST_INPUTS = data(n=20)[0]
pytestmark = pytest.mark.filterwarnings("ignore::posterity.types.PosterityWarning")  # such short runs alarm the doctor


def fit(case: MethodCase, **changes) -> pst.Posterior:
    options = {"batch_size": 32, "progress": False, **case.training, **changes}
    return pst.fit(network(), case.method, data(), epochs=4, seed=7, training=pst.Training(**options))


def outputs(posterior: pst.Posterior, draws: int = 3) -> torch.Tensor:
    with torch.no_grad():
        return torch.stack([draw(TEST_INPUTS) for draw in posterior.draws(draws)])


def test_every_method_of_the_shell_has_a_case():
    assert {case.name for case in METHOD_CASES} == set(pst.METHODS)


def test_a_notebook_shows_what_a_type_is_called():
    """Unescaped, ``<class …>`` is a tag to a browser, which shows nothing of it."""
    html = pst.MeanField(which=torch.nn.Linear)._repr_html_()
    assert html == "<code>MeanField(which=&lt;class &#x27;torch.nn.modules.linear.Linear&#x27;&gt;)</code>"


@every_method
def test_the_same_seed_gives_the_same_posterior(case):
    torch.testing.assert_close(outputs(fit(case)), outputs(fit(case)), rtol=0, atol=0)


@every_method
def test_it_learns(case):
    inputs, targets = data()
    before = pst.likelihoods.Categorical().log_prob(network()(inputs), targets).mean()
    posterior = pst.fit(
        network(), case.method, data(), epochs=30, training=pst.Training(batch_size=32, progress=False, **case.training)
    )
    assert posterior.predict(inputs).log_prob(targets).mean() > before + 0.1


@every_method
def test_draws_come_from_the_generator_alone(case):
    posterior = fit(case)
    torch.manual_seed(1)
    first = [d(TEST_INPUTS) for d in posterior.draws(2, torch.Generator().manual_seed(11))]
    torch.manual_seed(2)
    second = [d(TEST_INPUTS) for d in posterior.draws(2, torch.Generator().manual_seed(11))]
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@every_method
def test_a_saved_posterior_loads_with_the_same_draws(case, tmp_path):
    posterior = fit(case)
    pst.save(posterior, tmp_path / "q.safetensors")
    loaded = pst.load(tmp_path / "q.safetensors", network())
    torch.testing.assert_close(outputs(loaded), outputs(posterior), rtol=0, atol=0)
    assert loaded.inputs == posterior.inputs
    assert loaded.likelihood == posterior.likelihood


@every_method
def test_parameters_come_in_the_order_of_the_network(case):
    """So that ``parameters_to_vector(module.parameters())`` and the mean's values put together are of one order."""
    posterior = fit(case)
    if isinstance(posterior, pst.WeightPosterior):
        names = [name for name, _ in network().named_parameters()]
        for params in (posterior.mean(), posterior.variance(), posterior.sample()):
            assert list(params) == names


@every_method
@pytest.mark.parametrize("members", [1, 2])
def test_what_needs_no_gradient_stays_as_it_is(case, members):
    module = network()
    module[0].requires_grad_(False)
    fixed = {f"0.{name}": p.detach() for name, p in module[0].named_parameters()}
    training = pst.Training(batch_size=32, progress=False, **case.training)
    posterior = pst.fit(module, case.method, data(), epochs=2, members=members, training=training)
    for part in posterior.parts if members > 1 else [posterior]:
        assert not torch.equal(part.module.state_dict().get("2.weight", torch.empty(0)), module[2].weight)
        if isinstance(part, pst.WeightPosterior):
            mean, variance, drawn = part.mean(), part.variance(), part.sample()
            torch.testing.assert_close({name: mean[name] for name in fixed}, fixed)
            torch.testing.assert_close({name: drawn[name] for name in fixed}, fixed, rtol=0, atol=0)
            assert all(float(variance[name].max()) < 1e-30 for name in fixed)  # a mean over equal points rounds
        else:
            torch.testing.assert_close({name: part.module.state_dict()[name] for name in fixed}, fixed, rtol=0, atol=0)


@every_method
def test_the_users_module_is_never_changed(case):
    module = network().train()
    weights = copy.deepcopy(module.state_dict())
    training = pst.Training(batch_size=32, progress=False, **case.training)
    posterior = pst.fit(module, case.method, data(), epochs=1, training=training)
    posterior.predict(TEST_INPUTS)
    with pytest.raises(pst.PosterityError):
        posterior.predict(torch.full_like(TEST_INPUTS, float("nan")))
    torch.testing.assert_close(dict(module.state_dict()), dict(weights), rtol=0, atol=0)
    assert module.training


@every_method
def test_global_randomness_is_left_alone(case):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit(case).predict(TEST_INPUTS)
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)


class KilledError(Exception):
    """Stands for a kill between two epochs."""


class KillAfter:
    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def on_epoch(self, run, figures):
        self.left -= 1
        if self.left < 0:
            raise KilledError


@every_method
def test_resumed_equals_uninterrupted(case, tmp_path):
    whole = fit(case)
    file = tmp_path / "run.safetensors"
    with pytest.raises(KilledError):
        fit(case, checkpoint=file, checkpoint_every=2, callbacks=(KillAfter(2),))
    resumed = fit(case, checkpoint=file, checkpoint_every=2, resume=True)
    torch.testing.assert_close(outputs(resumed), outputs(whole), rtol=0, atol=0)


@every_method
def test_float32_and_float64_are_kept(case):
    for dtype in (torch.float32, torch.float64):
        training = pst.Training(batch_size=32, progress=False, **case.training)
        posterior = pst.fit(network(dtype), case.method, data(dtype), epochs=1, training=training)
        assert posterior.predict(TEST_INPUTS.to(dtype)).probs.dtype == dtype


@every_method
def test_probabilities_and_their_decomposition(case):
    p = fit(case).predict(TEST_INPUTS, draws=8)
    torch.testing.assert_close(p.probs.sum(-1), torch.ones(20, dtype=torch.float64))
    torch.testing.assert_close(p.aleatoric + p.epistemic, p.entropy, rtol=0, atol=1e-6)
    assert (p.epistemic > -1e-9).all()


@every_method
def test_micro_batches_equal_one_batch(case):
    if not case.noiseless:
        pytest.skip("each micro-batch draws its own noise")
    torch.testing.assert_close(outputs(fit(case, accumulate=3)), outputs(fit(case)), rtol=1e-9, atol=1e-9)


@every_method
@pytest.mark.parametrize("members", [2])
def test_members_give_a_mixture_of_different_networks(case, members):
    training = pst.Training(batch_size=32, progress=False, **case.training)
    mixture = pst.fit(network(), case.method, data(), epochs=1, members=members, training=training)
    first, second = mixture.parts
    assert not torch.equal(outputs(first), outputs(second))


@every_method
def test_bad_data_is_refused_before_training(case):
    inputs, targets = data()
    training = pst.Training(progress=False, **case.training)
    for bad in (
        (torch.where(inputs > 2, float("nan"), inputs), targets),
        (inputs, targets + 1),
        (inputs, targets - 1),
        (inputs, torch.zeros_like(targets)),
        (inputs[:, :2], targets),
        (inputs, targets[:-1]),
        (inputs[:0], targets[:0]),
        (inputs, targets.bool()),
    ):
        with pytest.raises(pst.PosterityError):
            pst.fit(network(), case.method, bad, likelihood=pst.likelihoods.Categorical(), epochs=1, training=training)


def tensors_alive() -> int:
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@every_method
def test_memory_is_free_as_soon_as_the_posterior_is_let_go(case):
    """A cycle of references would keep a GPU's memory until Python happens to collect garbage."""
    fit(case).predict(TEST_INPUTS, draws=3)  # what is made once and kept
    gc.collect()
    gc.disable()
    try:
        before = tensors_alive()
        posterior = fit(case)
        posterior.predict(TEST_INPUTS, draws=3)
        del posterior
        assert tensors_alive() == before
    finally:
        gc.enable()
