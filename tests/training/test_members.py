"""Restarts: members trained together are those trained alone, and every one is a fit of its own."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import posterity as pst
from posterity.training.restarts import Stacked, reinitialised
from tests.training.problem import LABELS, QUIET, X, Y, mlp


class Scaled(nn.Module):
    """A network with a single number of its own."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 2), nn.Parameter(torch.ones(()))

    def reset_parameters(self):
        nn.init.ones_(self.scale)

    def forward(self, x):
        return self.scale * self.layer(x)


@pytest.mark.parametrize("clip", [None, 0.05, 50.0])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("network", [mlp, lambda: Scaled().double()], ids=["mlp", "with a scalar"])
def test_members_trained_together_equal_members_trained_alone(network, clip, optimizer, monkeypatch):
    training = pst.Training(batch_size=16, clip=clip, optimizer=optimizer, lr=0.01, **QUIET)
    fit = lambda: pst.fit(network(), pst.MAP(), (X, LABELS), epochs=5, members=3, seed=4, training=training)  # noqa: E731
    torch.manual_seed(0)
    together = fit()
    monkeypatch.setattr("posterity.training.restarts._stackable", lambda network, job: False)
    torch.manual_seed(0)
    alone = fit()
    for a, b in zip(together.parts, alone.parts, strict=True):
        torch.testing.assert_close(a.mean(), b.mean(), rtol=1e-8, atol=1e-10)


def test_a_factory_makes_every_member():
    made = []

    def factory():
        made.append(mlp())
        return made[-1]

    mixture = pst.fit(factory, pst.MAP(), (X, LABELS), epochs=1, members=3, training=pst.Training(**QUIET))
    assert len(mixture.parts) == 3
    assert not torch.equal(made[1][0].weight, made[2][0].weight)


@pytest.mark.parametrize("method", [pst.MAP(), pst.MeanField()], ids=repr)
def test_a_factory_may_make_lazy_layers(method):
    factory = lambda: nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.Linear(4, 2)).double()  # noqa: E731
    mixture = pst.fit(factory, method, (X, LABELS), epochs=1, members=2, training=pst.Training(**QUIET))
    first, second = (part.mean()["0.weight"] for part in mixture.parts)
    assert first.shape == (4, 3) and not torch.equal(first, second)


class Dropping(nn.Module):
    """Dropout by a function, which torch cannot draw for stacked networks."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 8).double(), nn.Linear(8, 2).double()

    def forward(self, x):
        return self.last(nn.functional.dropout(self.first(x), 0.5, self.training))


class Asking(Dropping):
    """Code that depends on a number."""

    def forward(self, x):
        hidden = self.first(x)
        return self.last(hidden if hidden.mean() > 0 else hidden.relu())


class Checkpointing(Dropping):
    """A part that is run again in the backward pass."""

    def forward(self, x):
        return self.last(checkpoint(self.first, x, use_reentrant=False))


@pytest.mark.parametrize("network", [Dropping, Asking, Checkpointing])
@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_members_whose_code_cannot_be_stacked_are_those_trained_alone(network, mode, monkeypatch):
    fit = lambda: pst.fit(network().train(mode), pst.MAP(), (X, LABELS), epochs=1, members=2)  # noqa: E731
    first = fit()
    monkeypatch.setattr("posterity.training.restarts._stackable", lambda networks, job: False)
    for a, b in zip(first.parts, fit().parts, strict=True):
        torch.testing.assert_close(a.mean(), b.mean(), rtol=1e-8, atol=1e-10)


def test_a_factory_that_makes_networks_that_differ_is_refused():
    """Where only the activations did, all members predicted with those of the first."""
    kinds = iter([nn.Tanh, nn.Tanh, nn.ReLU])
    factory = lambda: nn.Sequential(nn.Linear(3, 4), next(kinds)(), nn.Linear(4, 2)).double()  # noqa: E731
    with pytest.raises(pst.PosterityError, match="made networks that differ"):
        pst.fit(factory, pst.MAP(), (X, LABELS), epochs=1, members=2, training=pst.Training(**QUIET))


def test_parts_that_cannot_be_reset_are_named():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2).double())
            self.line = nn.Linear(3, 2).double()

        def forward(self, x):
            return self.line(x) * self.scale

    with pytest.raises(pst.PosterityError, match=r"Odd.*no reset_parameters.*pass a function"):
        pst.fit(Odd(), pst.MAP(), (X, LABELS), members=2, training=pst.Training(**QUIET))


def test_reinitialisation_depends_on_the_seed_alone():
    a, b, c = (reinitialised(mlp(), seed, torch.device("cpu"))[0].weight for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_a_stacked_network_is_its_members_side_by_side():
    networks = [mlp() for _ in range(3)]
    inputs = torch.randn(3, 5, 3, dtype=torch.float64)
    outputs = Stacked(networks)(inputs.flatten(0, 1)).unflatten(0, (3, 5))
    torch.testing.assert_close(outputs, torch.stack([n(x) for n, x in zip(networks, inputs, strict=True)]))


def test_members_of_a_laplace_posterior_share_their_noise_in_a_file_too(tmp_path):
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    q = pst.fit(network, pst.Laplace(), (X, Y), epochs=3, members=2, training=pst.Training(batch_size=16, **QUIET))
    assert {inner.likelihood for part in q.parts for inner in (part, *part.parts)} == {q.likelihood}
    pst.save(q, tmp_path / "q")
    again = pst.load(tmp_path / "q", network)
    torch.testing.assert_close(again.predict(X).variance, q.predict(X).variance, rtol=0, atol=0)


def test_members_are_validated_each_on_all_of_the_data():
    held = (X[40:], LABELS[40:])
    training = pst.Training(batch_size=8, lr=0.05, validation=held, **QUIET)
    q = pst.fit(mlp(), pst.MAP(), (X[:40], LABELS[:40]), epochs=3, members=3, training=training)
    own = -q.parts[0].predict(held[0]).log_prob(held[1]).mean().item()
    assert q.history[-1]["validation_loss"] == pytest.approx(own, rel=1e-6)


def test_members_see_their_own_examples_in_micro_batches_too():
    whole, pieces = (
        pst.fit(
            mlp(),
            pst.MAP(),
            (X, LABELS),
            epochs=2,
            members=3,
            training=pst.Training(batch_size=10, accumulate=accumulate, optimizer="sgd", lr=0.1, **QUIET),
        )
        for accumulate in (1, 4)
    )
    for a, b in zip(whole.parts, pieces.parts, strict=True):
        torch.testing.assert_close(a.mean(), b.mean(), rtol=1e-9, atol=1e-12)
