"""Decompositions, mixtures, streaming and automatic draws, against what can be worked out by hand."""

import math
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import posterity as pst
from posterity.posteriors import DiagonalGaussian, Empirical
from posterity.prediction.accumulate import COMPONENTS, accumulator
from posterity.prediction.passes import Compute, Passes, Way, stack

CATEGORICAL = pst.likelihoods.Categorical()
G = torch.Generator().manual_seed(0)
LOGITS = torch.randn(7, 5, 3, generator=G, dtype=torch.float64) * 2


def predict(outputs, likelihood=CATEGORICAL, keep=False):
    sums = accumulator(likelihood, keep)
    for chunk in outputs.split(3):
        sums.add(chunk)
    return sums.finish()


def test_entropy_and_covariance_decompositions():
    p = predict(LOGITS, keep=True)
    each = LOGITS.softmax(-1)
    mean = each.mean(0)
    torch.testing.assert_close(p.probs, mean)
    torch.testing.assert_close(p.aleatoric, -(each * each.log()).sum(-1).mean(0))
    torch.testing.assert_close(p.aleatoric + p.epistemic, -(mean * mean.log()).sum(-1), rtol=0, atol=1e-12)
    aleatoric, epistemic = p.covariances()
    total = torch.diag_embed(mean) - mean[:, :, None] * mean[:, None, :]
    torch.testing.assert_close(aleatoric + epistemic, total, rtol=0, atol=1e-12)
    torch.testing.assert_close(p.epistemic_variance, epistemic.diagonal(dim1=1, dim2=2), rtol=0, atol=1e-12)
    torch.testing.assert_close(p.aleatoric_variance, aleatoric.diagonal(dim1=1, dim2=2), rtol=0, atol=1e-12)


def test_confidence_and_the_entropy_of_numbers():
    p = predict(LOGITS)
    torch.testing.assert_close(p.confidence, LOGITS.softmax(-1).mean(0).max(-1).values)
    p = predict(LOGITS, pst.likelihoods.Gaussian(0.3))
    total = (0.3**2 + LOGITS.var(0, correction=0)).sqrt()
    torch.testing.assert_close(p.entropy, torch.distributions.Normal(LOGITS.mean(0), total).entropy())


def test_what_the_other_kind_of_prediction_has_is_refused_in_a_sentence():
    with pytest.raises(pst.PosterityError, match="classes have no interval"):
        predict(LOGITS).interval(0.9)
    numbers = predict(LOGITS, pst.likelihoods.Gaussian(0.3))
    for name in ("probs", "label"):
        with pytest.raises(pst.PosterityError, match="a regression has no"):
            getattr(numbers, name)


def test_a_prediction_is_shown_as_a_table_one_row_an_answer():
    p = predict(LOGITS)
    assert p._repr_html_().count("<tr>") == 1 + len(p)
    assert f"<td>0</td><td>{p.label[0]}</td><td>{p.confidence[0]:.4g}</td>" in p._repr_html_()
    table = p.table()
    assert [c.header for c in table.columns] == ["input", "label", "confidence", "entropy", "aleatoric", "epistemic"]
    assert list(table.columns[1].cells) == [str(int(k)) for k in p.label] and table.row_count == len(p)


def test_a_table_of_several_targets_or_words_has_a_row_for_each():
    p = predict(LOGITS, pst.likelihoods.Gaussian(0.3))  # three targets an input
    assert list(p.table().columns[0].cells)[:4] == ["0, 0", "0, 1", "0, 2", "1, 0"]
    assert f"<td>0, 1</td><td>{p.mean[0, 1]:.4g}</td>" in p._repr_html_()
    words = predict(LOGITS.unsqueeze(1).expand(-1, 2, -1, -1))
    assert list(words.table().columns[0].cells)[:3] == ["0, 0", "0, 1", "0, 2"]
    assert words._repr_html_().count("<tr>") == 1 + 10  # a quick look: the first answers


def test_covariances_of_words_are_those_of_each_word():
    words = LOGITS.unsqueeze(1).expand(-1, 2, -1, -1)
    each = predict(LOGITS, keep=True).covariances()
    for found, expected in zip(predict(words, keep=True).covariances(), each, strict=True):
        torch.testing.assert_close(found, expected.expand(2, -1, -1, -1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_draws_in_half_precision_are_averaged_in_single(dtype):
    """The sums of a thousand draws have more digits than one of them."""
    logits = (2 * torch.randn(999, 5, 3, generator=torch.Generator().manual_seed(0))).to(dtype)
    p, expected = predict(logits), predict(logits.double())
    for name in ("probs", "aleatoric", "epistemic", "std"):
        torch.testing.assert_close(getattr(p, name).double(), getattr(expected, name), rtol=1e-5, atol=1e-6)
    p, expected = (predict(t, pst.likelihoods.Gaussian(0.3)) for t in (logits, logits.double()))
    for name in ("mean", "std"):
        torch.testing.assert_close(getattr(p, name).double(), getattr(expected, name), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(p.interval()[1].double(), expected.interval()[1], rtol=1e-5, atol=1e-6)


def test_rounding_makes_no_epistemic_part_negative():
    one = torch.randn(1, 1000, 10, generator=torch.Generator().manual_seed(0))
    p = predict(one.expand(32, 1000, 10), CATEGORICAL)
    assert (p.entropy - p.aleatoric).min() < 0 <= p.epistemic.min()


def test_identical_draws_have_no_epistemic_part():
    p = predict(LOGITS[:1].expand(6, 5, 3))
    assert p.epistemic.abs().max() < 1e-12
    assert p.std.max() == 0


def test_certain_draws_that_disagree_have_no_aleatoric_part():
    certain = 1e3 * nn.functional.one_hot(torch.tensor([0, 1, 2]), 3).double()[:, None, :].expand(3, 5, 3)
    p = predict(certain)
    assert p.aleatoric.max() < 1e-12
    torch.testing.assert_close(p.epistemic, torch.full((5,), math.log(3), dtype=torch.float64))


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_log_prob_of_yes_and_no_in_either_shape(shape):
    logits = LOGITS[..., :1]
    p, y = predict(logits, pst.likelihoods.Bernoulli()), torch.tensor([0, 1, 1, 0, 1])
    yes = logits[..., 0].sigmoid().mean(0)
    torch.testing.assert_close(p.log_prob(y.view(shape)), torch.where(y == 1, yes, 1 - yes).log())


@pytest.mark.parametrize("batch", [1, 5])
def test_one_logit_without_a_dimension_of_its_own(batch):
    """Of a single input, too, whose draws [draws, 1] look like a column of logits."""
    logits = LOGITS[:, :batch, 0]
    p = predict(logits, pst.likelihoods.Bernoulli())
    yes = logits.sigmoid().mean(0)
    torch.testing.assert_close(p.probs, torch.stack([1 - yes, yes], -1))
    assert p.label.shape == p.entropy.shape == p.aleatoric.shape == (batch,)


@pytest.mark.parametrize("logit", [20.0, -20.0, 60.0])
def test_yes_and_no_that_are_hardly_possible_keep_their_digits(logit):
    p = predict(torch.full((1, 1, 1), logit), pst.likelihoods.Bernoulli())
    expected = [-nn.functional.softplus(torch.tensor(sign * logit)) for sign in (1, -1)]
    for label, log_prob in enumerate(expected):
        torch.testing.assert_close(p.log_prob(torch.tensor([label])), log_prob[None])


def test_regression_is_the_mixtures():
    outputs, std = torch.randn(9, 4, 1, generator=G, dtype=torch.float64), 0.3
    p = predict(outputs, pst.likelihoods.Gaussian(std))
    torch.testing.assert_close(p.mean, outputs.mean(0))
    torch.testing.assert_close(p.epistemic, outputs.var(0, correction=0))
    torch.testing.assert_close(p.variance, outputs.var(0, correction=0) + std**2)
    low, high = p.interval(0.9)
    mixture = torch.distributions.Normal(outputs, std)
    torch.testing.assert_close(
        mixture.cdf(low).mean(0), torch.full((4, 1), 0.05, dtype=torch.float64), rtol=0, atol=1e-9
    )
    torch.testing.assert_close(
        mixture.cdf(high).mean(0), torch.full((4, 1), 0.95, dtype=torch.float64), rtol=0, atol=1e-9
    )
    y = torch.randn(4, 1, generator=G, dtype=torch.float64)
    torch.testing.assert_close(p.log_prob(y), mixture.log_prob(y).exp().mean(0).log().squeeze(-1))
    for values in (y, y.squeeze(1)):  # targets come in both shapes
        torch.testing.assert_close(p.cdf(values), mixture.cdf(y).mean(0))


def test_one_gaussian_component_has_the_normal_quantiles():
    p = predict(torch.zeros(1, 2, 1, dtype=torch.float64), pst.likelihoods.Gaussian(2.0))
    low, high = p.interval(0.95)
    torch.testing.assert_close(high, torch.full((2, 1), 2 * 1.959963985, dtype=torch.float64), rtol=1e-8, atol=0)
    torch.testing.assert_close(low, -high)


def test_quantiles_far_out():
    """1 − 1e-9 is 1 in float32; of 256 draws one that strays has the last 256th of the distribution to itself."""
    normal = predict(torch.zeros(1, 1, dtype=torch.float64), pst.likelihoods.Gaussian(2.0))
    assert float(normal.quantile(1 - 1e-9)) == pytest.approx(2 * 5.99780702, rel=1e-6)
    assert predict(torch.zeros(1, 1), pst.likelihoods.Gaussian(2.0)).quantile(1 - 1e-9).isfinite()
    outputs = torch.zeros(256, 1, dtype=torch.float64)
    outputs[7] = 1000.0
    stray = predict(outputs, pst.likelihoods.Gaussian(1.0))
    share = torch.tensor(1 - 256 * (1 - 0.999), dtype=torch.float64)
    assert float(stray.quantile(0.999)) == pytest.approx(1000 + float(torch.special.ndtri(share)), abs=1e-6)


def test_a_long_stream_keeps_a_bounded_number_of_draws_and_exact_moments():
    outputs = 1e4 + torch.randn(2000, 2, 1, generator=G, dtype=torch.float32)
    p = predict(outputs, pst.likelihoods.Gaussian(1.0))
    assert len(p.components) == COMPONENTS
    exact = outputs.double()
    torch.testing.assert_close(p.epistemic.double(), exact.var(0, correction=0), rtol=1e-3, atol=0)
    assert p.draws == 2000


def net_and_posterior(std=0.3):
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    mean = {name: p.detach() for name, p in net.named_parameters()}
    return net, DiagonalGaussian(net, CATEGORICAL, mean, {n: torch.full_like(p, std) for n, p in mean.items()})


X = torch.randn(30, 3, generator=G, dtype=torch.float64)


def test_automatic_draws_stop_at_the_tolerance_and_report_it():
    _, posterior = net_and_posterior()
    loose, tight = (posterior.predict(X, "auto", tolerance=t) for t in (0.05, 0.01))
    assert loose.draws < tight.draws
    assert tight.monte_carlo_error < 0.01
    # The reported error is the real one: compare with a prediction of many more, independent draws.
    many = posterior.predict(X, 5000, generator=torch.Generator().manual_seed(5))
    assert (tight.probs - many.probs).abs().max() < 5 * tight.monte_carlo_error
    few = posterior.predict(X, 5, keep_samples=True)
    assert few.monte_carlo_error == pytest.approx(float(few.samples.std(0).max()) / math.sqrt(5))


def test_draws_may_be_numpys_integers():
    _, posterior = net_and_posterior()
    torch.testing.assert_close(posterior.predict(X, np.int64(4)).probs, posterior.predict(X, 4).probs)
    for wrong in (np.int64(0), np.float64(4.0), 2.5, "many"):
        with pytest.raises(pst.PosterityError, match="draws must be a positive number"):
            posterior.predict(X, wrong)


@pytest.mark.parametrize("wrong", [{"block": 0}, {"chunk": -3}, {"memory": 0}, {"block": 2.5}])
def test_a_computation_of_nothing_is_refused(wrong):
    with pytest.raises(pst.PosterityError, match=f"{next(iter(wrong))} must be"):
        Compute(**wrong)


def test_a_point_needs_one_draw():
    net, _ = net_and_posterior()
    point = Empirical(net, CATEGORICAL, [{n: p.detach() for n, p in net.named_parameters()}])
    p = point.predict(X)
    assert p.draws == 1
    torch.testing.assert_close(p.probs, net(X).softmax(-1).detach())


def test_inputs_may_be_tuples_and_dictionaries():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(3, 2)

        def forward(self, a, b):
            return self.line(a + b)

    net = Two().double()
    point = Empirical(net, CATEGORICAL, [{n: p.detach() for n, p in net.named_parameters()}])
    expected = net(X, 2 * X).softmax(-1).detach()
    torch.testing.assert_close(point.predict((X, 2 * X)).probs, expected)
    torch.testing.assert_close(point.predict({"b": 2 * X, "a": X}).probs, expected)


@pytest.mark.parametrize("draws", [0, -3, 2.5, "many"])
def test_bad_numbers_of_draws_are_refused(draws):
    with pytest.raises(pst.PosterityError, match="draws"):
        net_and_posterior()[1].predict(X, draws)


def test_inputs_that_are_no_tensors_are_refused():
    posterior = net_and_posterior()[1]
    posterior.inputs = pst.calling.InputSpec.of(X)
    with pytest.raises(pst.PosterityError, match="inputs must be tensors, got ndarray"):
        posterior.predict(X.numpy())


def test_recurrent_networks_are_looped():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.lstm(x)[0][:, -1])

    net = Recurrent().double()
    mean = {n: p.detach() for n, p in net.named_parameters()}
    posterior = DiagonalGaussian(net, CATEGORICAL, mean, {n: torch.full_like(p, 0.1) for n, p in mean.items()})
    sequences = torch.randn(5, 6, 3, generator=G, dtype=torch.float64)
    each = torch.stack([draw(sequences).softmax(-1) for draw in posterior.draws(32)])
    torch.testing.assert_close(posterior.predict(sequences).probs, each.mean(0))


class Branches(nn.Linear):
    def forward(self, x):
        out = super().forward(x)
        return out if out.sum() > 0 else -out


class WritesInto(nn.Linear):
    def forward(self, x):
        out = torch.zeros(len(x), 3)
        out[:, :] = super().forward(x)
        return out


class Masks(nn.Linear):
    def forward(self, x):
        out, copied = super().forward(x), torch.zeros(len(x), 3)
        copied[out > 0] = out[out > 0]
        return copied


@pytest.mark.parametrize("network", [Branches, WritesInto, Masks])
def test_what_vmap_cannot_follow_is_looped(network):
    mean = {"weight": torch.randn(3, 2, generator=torch.Generator().manual_seed(5)), "bias": torch.zeros(3)}
    std = {name: torch.full_like(m, 0.5) for name, m in mean.items()}
    q = DiagonalGaussian(network(2, 3), pst.likelihoods.Categorical(), mean, std)
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(6))
    torch.testing.assert_close(q.predict(x).probs, torch.stack([f(x).softmax(-1) for f in q.draws(32)]).mean(0))


def test_what_vmap_would_repeat_draw_by_draw_is_looped_without_a_word_of_torchs():
    """torch's fused transformer layer has no rule for it, and every first prediction warned of that."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(24, 3))
    mean = {name: p.detach() for name, p in net.named_parameters()}
    std = {name: torch.full_like(m, 0.1) for name, m in mean.items()}
    q = DiagonalGaussian(net, pst.likelihoods.Categorical(), mean, std)
    x = torch.randn(6, 3, 8, generator=torch.Generator().manual_seed(6))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        probs = q.predict(x).probs
    assert not said
    torch.testing.assert_close(probs, torch.stack([draw(x).softmax(-1) for draw in q.draws(32)]).mean(0))


@pytest.mark.parametrize("batched", [None, False, True])
def test_long_sentences_after_short_ones_keep_to_the_memory(batched):
    net = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3))
    mean = {name: p.detach() for name, p in net.named_parameters()}
    q = DiagonalGaussian(net, CATEGORICAL, mean, {name: torch.full_like(p, 0.1) for name, p in mean.items()})
    memory = 2**20
    network = Passes(net, Compute(batched=batched, memory=memory))
    for length in (2, 500):
        words = torch.zeros(400, length, dtype=torch.long)
        way = network.way(q, words, 8)
        held = length * (4 + 3) * 4 * (8 if way.batched else 1)  # bytes of one example's activations
        assert way.block * held <= memory < (way.block + 1) * held or way.block == 250


@pytest.mark.parametrize("draws", [8, 9])
def test_layers_before_the_first_random_weight_are_passed_through_once(draws):
    """Once for every chunk of draws, of which the last may be of one."""
    calls = []

    class Trunk(nn.Linear):
        def forward(self, x):
            calls.append(x.shape)
            assert not torch._C._functorch.is_batchedtensor(self.weight)
            return super().forward(x)

    torch.manual_seed(0)
    net = nn.Sequential(Trunk(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    means = {name: p.detach() for name, p in net.named_parameters()}
    stds = {name: torch.full_like(p, 0.3) for name, p in means.items() if name.startswith("2")}
    posterior = DiagonalGaussian(net, pst.likelihoods.Categorical(), means, stds)
    x = torch.randn(6, 4, dtype=torch.float64)
    one_by_one = torch.stack([draw(x) for draw in posterior.draws(draws)]).softmax(-1).mean(0)
    calls.clear()
    found = posterior.predict(x, draws=draws, compute=pst.Compute(batched=True, block=6, chunk=8))
    torch.testing.assert_close(found.probs, one_by_one)
    assert calls == [x.shape] * -(-draws // 8)


def test_draws_that_do_not_differ_at_all_can_be_batched():
    net = nn.Linear(4, 3).double()
    means = {name: p.detach() for name, p in net.named_parameters()}
    weights = stack([(means, {})] * 8)
    outputs = Passes(net, pst.Compute())(weights, torch.ones(2, 4, dtype=torch.float64), Way(True, 2))
    torch.testing.assert_close(outputs, net(torch.ones(2, 4, dtype=torch.float64)).expand(8, 2, 3))


class Dawdling(nn.Linear):
    """A layer that lets other threads in before it looks at its weights."""

    def forward(self, input):
        time.sleep(0.002)
        return super().forward(input)


@pytest.mark.parametrize("how", [{}, {"compute": Compute(batched=False)}, {"compute": Compute(batched=True)}])
def test_predictions_of_several_threads_do_not_meet(how):
    generator = torch.Generator().manual_seed(1)
    net = nn.Sequential(Dawdling(4, 3), nn.Tanh(), Dawdling(3, 3)).double()
    mean = {name: torch.randn(p.shape, generator=generator).double() for name, p in net.named_parameters()}
    posterior = DiagonalGaussian(net, CATEGORICAL, mean, {name: torch.ones_like(m) for name, m in mean.items()})
    inputs = torch.randn(4, 5, 4, generator=generator).double()
    alone = [posterior.predict(x, 16, **how).probs for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda x: posterior.predict(x, 16, **how).probs, inputs))
    for found, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    for name, p in posterior.module.named_parameters():
        assert torch.equal(p, mean[name])


class Counting(pst.likelihoods.Gaussian):
    """Counts how often a quantile asks for the distribution function."""

    asked = 0

    def cdf(self, outputs, values):
        type(self).asked += 1
        return super().cdf(outputs, values)


def test_to_show_a_prediction_or_its_length_searches_no_quantiles():
    outputs = torch.tensor([[[1.0, 2.0], [3.0, 6.0]], [[3.0, 2.0], [5.0, 6.0]]], dtype=torch.float64)
    p = predict(outputs, Counting(std=0.5))
    assert len(p) == 2
    std = math.sqrt(0.25 + 1), 0.5  # of the first column, whose draws are 2 apart, and of the second
    parts = f"mean 3.5, std {sum(std) / 2:.3g}, aleatoric_std 0.5, epistemic_std 0.5"
    assert repr(p) == f"Regression(2 inputs, 2 draws; mean {parts})"
    assert "<table>" in p._repr_html_()
    assert Counting.asked == 0
    p.interval()
    assert Counting.asked > 0


class Timed(Passes):
    """Passes whose time is stated, and counted: by whether the draws are batched."""

    clock, seconds = 0.0, {False: 1.0, True: 0.1}

    def __init__(self, module, compute):
        super().__init__(module, compute)
        self.taken = []

    def __call__(self, chunk, inputs, way):
        type(self).clock += self.seconds[way.batched]
        self.taken.append(way.batched)
        return super().__call__(chunk, inputs, way)


@pytest.mark.parametrize(("loop", "rounds"), [(1.0, 1), (0.15, 3), (0.04, 3)])
def test_a_way_that_is_hopeless_is_timed_once(monkeypatch, loop, rounds):
    """Where a pass takes long, the slowest way would else take most of what a first prediction takes."""
    monkeypatch.setattr("posterity.prediction.passes.time.thread_time", lambda: Timed.clock)
    monkeypatch.setattr(Timed, "seconds", {False: loop, True: 0.1})
    params = {name: p.detach() for name, p in nn.Linear(4, 3).named_parameters()}
    posterior = DiagonalGaussian(nn.Linear(4, 3), CATEGORICAL, params, {n: 0.1 * p.abs() for n, p in params.items()})
    passes = Timed(posterior.module, Compute())
    way = passes.way(posterior, torch.zeros(100, 4), 8)
    assert way.batched == (loop > 0.1)
    assert passes.taken.count(False) == rounds
    assert passes.taken.count(True) == 4  # one of them finds out whether vmap can follow


def test_batches_of_about_one_size_are_timed_once(monkeypatch):
    asked = []
    monkeypatch.setattr(Passes, "_fastest", lambda self, chunk, inputs: asked.append(len(inputs)) or Way(False, 10**6))
    params = {name: p.detach() for name, p in nn.Linear(4, 3).named_parameters()}
    posterior = DiagonalGaussian(nn.Linear(4, 3), CATEGORICAL, params, {n: 0.1 * p.abs() for n, p in params.items()})
    for size in (300, 310, 511, 64, 127, 5000, 900):
        posterior.predict(torch.zeros(size, 4))
    assert asked == [300, 64, 5000]
