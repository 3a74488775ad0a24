import math
import warnings

import pytest
import torch
from torch import nn

import posterity as pst
from posterity.methods.pruning import Pruning
from posterity.types import PosterityError, PosterityWarning


def problem(n=400):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 6, generator=generator)
    return x, (x[:, 0] - x[:, 1] > 0).long()


def network():
    generator = torch.Generator().manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    for p in net.parameters():
        p.data = 0.4 * torch.randn(p.shape, generator=generator)
    return net


class Sparsities:
    def __init__(self):
        self.seen, self.zeros = [], []

    def on_epoch(self, run, figures):
        self.seen.append(figures["sparsity"])
        self.zeros.append({n: p.detach() == 0 for n, p in run.module.named_parameters() if p.dim() > 1})


def fit(method, **options):
    watch = Sparsities()
    training = pst.Training(batch_size=50, lr=0.02, progress=False, callbacks=(watch,), **options)
    return pst.fit(network(), method, problem(), epochs=10, seed=3, training=training), watch


def test_ramps_by_hand():
    assert [Pruning(ramp="one-shot", start=0.5, stop=0.9).share(t) for t in (0, 0.49, 0.5, 1)] == [0, 0, 1, 1]
    cubic = Pruning(ramp="gradual", start=0.2, stop=0.8)
    assert [cubic.share(t) for t in (0.0, 0.2, 0.5, 0.8, 1.0)] == pytest.approx([0, 0, 1 - 0.5**3, 1, 1])
    steps = Pruning(ramp="iterative", rounds=3, start=0.2, stop=0.8)
    expected = [0, 1 / 3, 1 / 3, 2 / 3, 2 / 3, 1, 1]
    assert [steps.share(t) for t in (0.1, 0.2, 0.49, 0.5, 0.79, 0.8, 1.0)] == pytest.approx(expected)
    assert [Pruning(ramp="iterative", rounds=1, start=0.4).share(t) for t in (0.39, 0.4)] == [0, 1]


def test_masks_count_and_cut():
    scores = {"a": torch.tensor([[0.0, 0.1, 0.6, 1.0]]), "b": torch.tensor([[5.0, 6.0, 7.0, 8.0]])}
    half = Pruning(keep=0.5, ramp="one-shot").masks(scores, 1.0)
    assert [m.tolist() for m in half.values()] == [[[False] * 4], [[True] * 4]]
    each = Pruning(keep=0.5, ramp="one-shot", per_layer=True).masks(scores, 1.0)
    assert [int(m.sum()) for m in each.values()] == [2, 2]
    steps = Pruning(keep=1.0, threshold=0.8, ramp="iterative", rounds=2, start=0.5, stop=1.0)
    assert [int(steps.masks(scores, t)["a"].sum()) for t in (0.0, 0.5, 1.0)] == [4, 2, 1]


@pytest.mark.parametrize("ramp", ["one-shot", "gradual", "iterative"])
def test_a_run_follows_its_ramp(ramp):
    method = Pruning(keep=0.25, ramp=ramp)
    posterior, watch = fit(method)
    expected = [0.75 * method.share(epoch / 10) for epoch in range(1, 11)]
    assert watch.seen == pytest.approx(expected, abs=1 / 128 + 1e-9)
    assert all(bool((after | ~before).all()) for a, b in zip(watch.zeros, watch.zeros[1:], strict=False)
               for before, after in zip(a.values(), b.values(), strict=True))  # fmt: skip
    mean = posterior.mean()
    assert sum(int((mean[n] != 0).sum()) for n in ("0.weight", "2.weight")) == 32
    assert bool((mean["0.bias"] != 0).all())


def test_magnitude_keeps_the_inputs_that_matter_and_random_does_not():
    x, y = problem()

    def kept_and_accuracy(**options):
        posterior, _ = fit(Pruning(keep=0.2, **options))
        kept = posterior.mean()["0.weight"] != 0
        return float(kept[:, :2].sum() / kept.sum()), float((posterior.predict(x).label == y).float().mean())

    share, accuracy = kept_and_accuracy()
    assert share > 0.7 and accuracy > 0.93
    chance, worse = kept_and_accuracy(criterion="random")
    assert chance < 0.6 and worse < 0.9


def test_regrown_weights_are_free_until_the_next_pruning():
    # Pruned every 12 steps and looked at every 8: at step 16 the pruning of step 12 is four updates old.
    zeros = {}

    class Look:
        def on_epoch(self, run, figures):
            zeros[run.step] = figures["sparsity"]

    for regrow in (False, True):
        training = pst.Training(batch_size=50, lr=0.02, progress=False, callbacks=(Look(),))
        method = Pruning(keep=0.5, ramp="one-shot", start=0.1, every=12, regrow=regrow)  # 8 steps an epoch
        posterior = pst.fit(network(), method, problem(), epochs=10, training=training)
        assert zeros[16] == pytest.approx(0.0 if regrow else 0.5)
        assert zeros[24] == zeros[80] == pytest.approx(0.5)
        assert float((posterior.mean()["0.weight"] == 0).sum() + (posterior.mean()["2.weight"] == 0).sum()) == 64


def test_a_pruned_network_is_retrained_without_its_zeros():
    x, y = problem()
    net = network()
    with torch.no_grad():
        net[0].weight[:, 2:] = 0
        net[2].weight[:, 8:] = 0
    gone = {name: p == 0 for name, p in net.named_parameters() if p.dim() > 1}
    training = pst.Training(batch_size=50, lr=0.02, progress=False)
    retrained = pst.fit(net, Pruning(keep=1.0, zeros_stay=True), (x, y), epochs=10, training=training)
    mean = retrained.mean()
    assert all(torch.equal(mean[name] == 0, zeros) for name, zeros in gone.items())  # no more, and no less
    assert float((retrained.predict(x).label == y).float().mean()) > 0.95
    halved = pst.fit(net, Pruning(keep=0.25, zeros_stay=True), (x, y), epochs=10, training=training).mean()
    assert sum(int((halved[name] != 0).sum()) for name in gone) == 32  # of 128, and none that was zero
    assert all(not bool((halved[name] != 0)[zeros].any()) for name, zeros in gone.items())


def test_whole_units_make_the_network_smaller():
    posterior, _ = fit(Pruning(keep=0.5, whole_units=True, per_layer=True))
    rows = (posterior.mean()["0.weight"] != 0).sum(1)
    assert sorted(rows.tolist()) == [0] * 8 + [6] * 8
    assert bool((posterior.mean()["2.weight"] != 0).all())  # both classes can still be said
    small = pst.compress(posterior)
    assert small.compression.ratio == 128 / (48 + 32)
    x = problem()[0]
    torch.testing.assert_close(small(x).softmax(-1), posterior.predict(x).probs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keep", [0.3, 0.11])
@pytest.mark.parametrize("per_layer", [True, False])
def test_no_unit_is_left_in_part(keep, per_layer):
    """A fraction of the weights ends in the middle of a unit, which was left with some of its weights."""
    posterior, _ = fit(Pruning(keep=keep, whole_units=True, per_layer=per_layer))
    left = (posterior.mean()["0.weight"] != 0).sum(1)
    assert set(left.tolist()) == {0, 6}
    assert int((left == 6).sum()) == math.ceil(keep * 16)


def test_a_layer_that_is_gone_is_spoken_of():
    """Mean scores differ between layers: of the wider one no unit was left, and the network said the same of all."""
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
    training = pst.Training(batch_size=50, progress=False)
    with pytest.warns(PosterityWarning, match=r"every weight of '2.weight' is gone, .* \(per_layer=True\)"):
        pst.fit(net, Pruning(keep=0.05, whole_units=True, ramp="one-shot"), problem(), epochs=5, training=training)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PosterityWarning)
        pst.fit(net, Pruning(keep=0.05, whole_units=True, per_layer=True), problem(), epochs=5, training=training)


def test_l1_is_a_laplace_prior():
    def below(prior):
        training = pst.Training(batch_size=50, lr=0.02, progress=False)
        weights = pst.fit(network(), pst.MAP(prior=prior), problem(), epochs=20, training=training).mean()["0.weight"]
        return float((weights.abs() < 0.05).float().mean())

    assert below(pst.priors.Laplace(0.1)) > below(pst.priors.Normal(1.0)) + 0.2


def test_early_stopping_still_ends_sparse_and_is_warned_of():
    """Digits fell from 97% to 50% without a word, pruned at once at the end of a run that had hardly begun to prune."""
    with pytest.warns(PosterityWarning, match="before the last pruning: what was left to prune goes now"):
        posterior, _ = fit(Pruning(keep=0.25, start=0.8, stop=0.9), validation=0.2, patience=1)
    mean = posterior.mean()
    assert sum(int((mean[n] != 0).sum()) for n in ("0.weight", "2.weight")) == 32


def test_bad_settings_are_refused():
    for match, options in {
        r"keep must lie in \(0, 1\]": {"keep": 0.0},
        "threshold": {"threshold": float("nan")},
        "unknown criterion": {"criterion": "gut feeling"},
        "unknown ramp": {"ramp": "steep"},
        "start < stop": {"start": 0.5, "stop": 0.5},
        "rounds": {"rounds": 0},
        "whole number": {"rounds": 2.5},
        "choose one": {"regrow": True, "zeros_stay": True},
    }.items():
        with pytest.raises(PosterityError, match=match):
            Pruning(**options)


def test_a_weight_that_is_computed_from_others_is_refused():
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)))
    with pytest.raises(PosterityError, match=r"^0 \(ParametrizedLinear\) computes its weight"):
        pst.fit(net, Pruning(), (torch.zeros(8, 4), torch.arange(8) % 3), epochs=1)


def test_a_network_of_outputs_alone_has_no_units_to_prune():
    with pytest.raises(PosterityError, match="no units before them to prune"):
        pst.fit(nn.Linear(4, 3), Pruning(whole_units=True), (torch.zeros(8, 4), torch.arange(8) % 3), epochs=1)
    with pytest.raises(PosterityError, match=r"keep must lie in \(0, 1\], got 'half'"):
        Pruning(keep="half")


def test_units_of_embeddings_are_no_words_and_those_of_transposed_convolutions_are_filters():
    """Words were lost, and input channels of the convolution, for which another layer would be to blame."""

    class Captions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.filters = nn.Embedding(12, 4), nn.ConvTranspose1d(4, 6, 3)
            self.out = nn.Linear(6, 3)

        def forward(self, tokens):
            return self.out(torch.relu(self.filters(self.words(tokens).transpose(1, 2))).mean(2))

    tokens = torch.randint(12, (32, 5), generator=torch.Generator().manual_seed(0))
    training = pst.Training(batch_size=16, progress=False)
    method = Pruning(keep=0.5, whole_units=True, per_layer=True)
    mean = pst.fit(Captions(), method, (tokens, torch.arange(32) % 3), epochs=4, training=training).mean()
    words, filters = mean["words.weight"] == 0, mean["filters.weight"] == 0
    assert words.all(0).sum() == 2 and not words.all(1).any()
    assert filters.transpose(0, 1).flatten(1).all(1).sum() == 3 and not filters.flatten(1).all(1).any()


def test_early_stopping_after_the_last_pruning_is_fine():
    x, y = problem(100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior, _ = fit(Pruning(keep=0.3, start=0.0, stop=0.1, every=1), validation=(x, 1 - y), patience=1)
    assert len(posterior.history) < 10
