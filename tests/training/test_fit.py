"""The loop: the ridge solution, loaders, members, schedules, stopping, and what it refuses."""

import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import posterity as pst
from posterity.optim import schedules
from posterity.training.restarts import Stacked, reinitialised
from posterity.types import Plan

G = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=G, dtype=torch.float64)
Y = X @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 0.5 * torch.randn(
    60, 1, generator=G, dtype=torch.float64
)
LABELS = (Y.squeeze(1) > 0).long()
QUIET = {"progress": False}


def linear(outputs=1):
    return nn.Linear(3, outputs, bias=False).double()


class Endless(IterableDataset):
    """Examples, nobody knows how many."""

    def __iter__(self):
        return iter(zip(X, LABELS, strict=True))


class Scaled(nn.Module):
    """A network with a single number of its own."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 2), nn.Parameter(torch.ones(()))

    def reset_parameters(self):
        nn.init.ones_(self.scale)

    def forward(self, x):
        return self.scale * self.layer(x)


def carried(width: int) -> pst.priors.Normal:
    """A prior that belongs to a network of this width."""
    net = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2))
    ones = {name: torch.ones_like(p) for name, p in net.named_parameters()}
    return pst.priors.Normal(ones, ones)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(pst.PosterityError, match="sees no GPU"):
        pst.fit(mlp(), pst.MAP(), (X, LABELS), epochs=1, training=pst.Training(**QUIET, device="cuda"))
    with pytest.raises(pst.PosterityError, match="sees no GPU"):
        pst.load("anything", mlp(), device="cuda")


def mlp():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()


@pytest.mark.parametrize("prior_std", [0.3, 1.0])
@pytest.mark.parametrize("prior", ["ridge", "per-parameter"])
def test_map_is_the_ridge_solution(prior_std, prior):
    noise = 0.5
    exact = torch.linalg.solve(X.T @ X / noise**2 + torch.eye(3) / prior_std**2, X.T @ Y / noise**2)
    believed = pst.priors.Normal(prior_std if prior == "ridge" else {"weight": prior_std})
    training = pst.Training(batch_size=60, lr=0.05, steps=3000, **QUIET)
    q = pst.fit(
        linear(), pst.MAP(prior=believed), (X, Y), likelihood=pst.likelihoods.Gaussian(noise), training=training
    )
    torch.testing.assert_close(q.mean()["weight"], exact.T, rtol=1e-4, atol=1e-4)


def test_noise_is_learned_to_its_maximum_likelihood():
    q = pst.fit(
        linear(),
        pst.MAP(prior=pst.priors.Normal(100.0)),
        (X, Y),
        training=pst.Training(batch_size=60, lr=0.05, steps=1500, **QUIET),
    )
    residual = Y - X @ torch.linalg.lstsq(X, Y).solution
    assert q.likelihood.std == pytest.approx(float(residual.square().mean().sqrt()), rel=1e-3)


def test_minibatches_find_the_same_point():
    training = pst.Training(batch_size=7, lr=0.02, steps=4000, **QUIET)
    q = pst.fit(linear(), pst.MAP(), (X, Y), likelihood=pst.likelihoods.Gaussian(0.5), training=training)
    exact = torch.linalg.solve(X.T @ X * 4 + torch.eye(3), X.T @ Y * 4)
    torch.testing.assert_close(q.mean()["weight"], exact.T, rtol=0, atol=5e-3)


def test_loader_dataset_and_tensors_agree_on_full_batches():
    means = []
    for data in (
        (X, Y),
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=60),
        [(X, Y)],
        [{"input": X, "labels": Y}],
    ):
        torch.manual_seed(0)
        net = linear()
        training = pst.Training(batch_size=60, steps=20, **QUIET)
        means.append(
            pst.fit(net, pst.MAP(), data, likelihood=pst.likelihoods.Gaussian(0.5), training=training).mean()["weight"]
        )
    for mean in means[1:]:
        torch.testing.assert_close(mean, means[0])


def test_example_weights_count_as_copies():
    weights = torch.tensor([2.0] + [1.0] * 59, dtype=torch.float64)
    torch.manual_seed(0)
    net = linear()
    noise = pst.likelihoods.Gaussian(0.5)
    weighted = pst.fit(
        net, pst.MAP(), [(X, Y, weights)], likelihood=noise, training=pst.Training(steps=2000, lr=0.05, **QUIET)
    )
    w = weights[:, None]
    exact = torch.linalg.solve((X * w).T @ X * 4 + torch.eye(3), (X * w).T @ Y * 4)
    torch.testing.assert_close(weighted.mean()["weight"], exact.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("clip", [None, 0.05])
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


@pytest.mark.parametrize("network", [Dropping, Asking])
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


@pytest.mark.parametrize(
    ("held", "match"),
    [
        ((X, LABELS + 5), "validation data: class targets run from 5 to 6"),
        ([(X, LABELS.double())], "validation data: Categorical needs integer"),
        ((X[:, :2], LABELS), "validation data: the network cannot take inputs"),
    ],
)
def test_validation_data_that_do_not_fit_are_refused_before_the_first_step(held, match):
    with pytest.raises(pst.PosterityError, match=match):
        pst.fit(mlp(), pst.MAP(), (X, LABELS), epochs=1, training=pst.Training(validation=held, **QUIET))


@pytest.mark.parametrize("count", [2, 3])
def test_a_validation_fraction_of_a_list_of_batches_is_refused(count):
    training = pst.Training(validation=0.25, **QUIET)
    with pytest.raises(pst.PosterityError, match="a validation fraction needs tensors"):
        pst.fit(mlp(), pst.MAP(), [(X, LABELS)] * count, epochs=1, training=training)


def test_weights_of_validation_examples_count_as_copies():
    weights = torch.tensor([3.0, 0.0] * 10, dtype=torch.float64)
    held = [(X[40:], LABELS[40:], weights)]
    q = pst.fit(mlp(), pst.MAP(), (X[:40], LABELS[:40]), epochs=2, training=pst.Training(validation=held, **QUIET))
    own = -(q.predict(X[40:]).log_prob(LABELS[40:]) * weights).mean().item()
    assert q.history[-1]["validation_loss"] == pytest.approx(own, rel=1e-6)


def test_early_stopping_keeps_the_best():
    torch.manual_seed(0)
    held = (X[40:], LABELS[40:])
    training = pst.Training(batch_size=8, lr=0.3, schedule="constant", validation=held, patience=3, **QUIET)
    q = pst.fit(mlp(), pst.MAP(prior=pst.priors.Normal(50.0)), (X[:40], LABELS[:40]), epochs=200, training=training)
    losses = [row["validation_loss"] for row in q.history]
    assert len(losses) < 200 and min(losses) == losses[-4]
    assert -q.predict(held[0]).log_prob(held[1]).mean().item() == pytest.approx(min(losses), rel=1e-6)


def test_early_stopping_keeps_the_spread_and_the_noise_of_the_best():
    generator = torch.Generator().manual_seed(0)
    targets = X[:, :1] + 0.3 * torch.randn(len(X), 1, dtype=torch.float64, generator=generator)
    seen = []

    class Look:
        def on_epoch(self, run, figures):
            seen.append((run.optimizer.moments(run.module)[1]["0.weight"].clone(), run.noise.frozen().std))

    held = (X[40:], targets[40:])
    training = pst.Training(batch_size=8, lr=1.0, validation=held, patience=3, callbacks=(Look(),), **QUIET)
    method, data = pst.IVON(beta2=0.9), (X[:40], targets[:40])
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    q = pst.fit(network, method, data, epochs=200, training=training)
    losses = [row["validation_loss"] for row in q.history]
    assert len(losses) < 200 and min(losses) == losses[-4]
    variance, noise = seen[-4]
    torch.testing.assert_close(q.variance()["0.weight"], variance)
    assert q.likelihood.std == noise


def test_a_validation_fraction_is_held_out():
    q = pst.fit(mlp(), pst.MAP(), (X, LABELS), epochs=2, training=pst.Training(validation=0.25, **QUIET))
    assert "validation_loss" in q.history[-1]


def test_lazy_layers_are_filled_in_without_touching_the_users():
    lazy = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    pst.fit(lazy, pst.MAP(), (X.float(), LABELS), epochs=1, training=pst.Training(**QUIET))
    assert isinstance(lazy[0].weight, nn.parameter.UninitializedParameter)


def test_bfloat16_autocast_trains():
    q = pst.fit(
        mlp().float(), pst.MAP(), (X.float(), LABELS), epochs=30, training=pst.Training(autocast=True, lr=0.1, **QUIET)
    )
    assert (q.predict(X.float()).label == LABELS).float().mean() > 0.85
    assert q.mean()["0.weight"].dtype == torch.float32


@pytest.mark.parametrize("method", [pst.SWA(), pst.SWAG(rank=2), pst.HWA(), pst.Laplace()], ids=repr)
def test_half_precision_is_refused_before_training_where_the_posterior_has_another(method):
    steps = []

    class Count:
        def on_epoch(self, run, figures):
            steps.append(run.step)

    with pytest.raises(pst.PosterityError, match=r"single or double precision, got torch\.bfloat16"):
        pst.fit(mlp().bfloat16(), method, (X.bfloat16(), LABELS), training=pst.Training(callbacks=(Count(),), **QUIET))
    assert not steps


def test_the_likelihood_is_said_when_it_is_inferred(caplog):
    with caplog.at_level(logging.INFO, "posterity"):
        pst.fit(mlp(), pst.MAP(), (X, LABELS), epochs=1, training=pst.Training(**QUIET))
    assert "Categorical" in caplog.text


def test_a_loss_that_is_no_number_stops_the_fit_and_keeps_the_checkpoint(tmp_path):
    file = tmp_path / "run.safetensors"
    training = pst.Training(
        batch_size=60, lr=1e4, optimizer="sgd", schedule="constant", checkpoint=file, checkpoint_every=1, **QUIET
    )
    with pytest.raises(pst.PosterityError, match=r"at step \d+.*checkpoint is"):
        pst.fit(linear(), pst.MAP(), (X, Y), likelihood=pst.likelihoods.Gaussian(0.5), epochs=500, training=training)
    from posterity.files import read_state

    weights = read_state(file, "checkpoint")["run"]["module"]["weight"]
    assert weights.isfinite().all()


def test_bad_labels_late_in_a_loader_are_found():
    loader = [(X[:30], LABELS[:30]), (X[30:], LABELS[30:] + 5)]
    with pytest.raises(pst.PosterityError, match="class targets run"):
        pst.fit(
            mlp(), pst.MAP(), loader, likelihood=pst.likelihoods.Categorical(), epochs=1, training=pst.Training(**QUIET)
        )


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_data": 61}, "num_data=61"),
        ({"schedule": "cosin"}, "unknown schedule"),
        ({"optimizer": "adamw"}, "unknown optimizer"),
        ({"optimizer": torch.optim.Adam}, "unknown optimizer"),
        ({"callbacks": (print,)}, r"objects with on_epoch\(run, figures\), got"),
        ({"patience": 3}, "validation"),
        ({"batch_size": 4.0}, "batch_size must be a whole number, got 4.0"),
        ({"accumulate": 2.0}, "accumulate must be a whole number"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"resume": True}, "checkpoint"),
        ({"batch_size": 0}, "batch_size"),
        ({"validation": 1.5}, "validation fraction"),
        ({"lr": -1.0}, "lr"),
        ({"device": "gpu"}, "names no device"),
    ],
)
def test_bad_settings_are_refused(changes, match):
    with pytest.raises(pst.PosterityError, match=match):
        pst.fit(mlp(), pst.MAP(), (X, LABELS), epochs=1, training=pst.Training(**QUIET, **changes))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"epochs": 0}, "epochs"),
        ({"epochs": 1.5}, "epochs must be a whole number, got 1.5"),
        ({"data": Endless()}, "a data set without a length"),
        ({"epochs": "ten"}, "epochs must be a whole number, got 'ten'"),
        ({"seed": "a"}, "seed must be a whole number, got 'a'"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"likelihood": "Categorical"}, r"such as likelihoods.Categorical\(\), got 'Categorical'"),
        ({"likelihood": pst.likelihoods.Categorical}, "such as likelihoods.Categorical"),
        ({"training": {"lr": 0.1}}, "training must be a posterity.Training, got {'lr': 0.1}"),
        ({"members": 0}, "members"),
        ({"members": 1.5}, "members must be a whole number"),
        ({"method": pst.MAP(prior=0.1)}, r"such as priors.Normal\(1.0\), got 0.1"),
        ({"method": pst.HWA(of=pst.MeanField(prior=0.1))}, "such as priors.Normal"),
        ({"method": "map"}, "method"),
        ({"data": []}, "no batches"),
        ({"data": [X]}, "a batch must be"),
        ({"data": iter([(X, LABELS)])}, "read only once"),
        ({"data": (X, LABELS, torch.ones(len(X)))}, "weights come with the batches"),
        ({"data": [(X, LABELS, -torch.ones(len(X)))]}, "weights of examples must not be negative, got -1.0"),
        ({"data": [(X, LABELS, X)]}, "needs one weight"),
        *(
            ({"data": [(X, LABELS, torch.ones(len(X)))], "method": method}, "squares the gradient of every example")
            for method in (pst.VOGN(), pst.NoisyKFAC(), pst.HWA(of=pst.VOGN()))
        ),
        ({"module": lambda: torch.jit.trace(mlp(), X)}, "script"),
        ({"module": lambda: mlp().requires_grad_(False)}, "no parameter to train"),
        ({"module": lambda: 3}, "must make an nn.Module, got int"),
        ({"module": nn.Linear}, "or make one when called"),
        ({"method": pst.MAP(prior=carried(4))}, r"'0.weight' has shape \(4, 3\), but the network's is \(8, 3\)"),
        ({"method": pst.MeanField(prior=carried(4))}, r"'0.weight' has shape \(4, 3\)"),
        ({"method": pst.MAP(prior=pst.priors.Normal({"a": 1.0}))}, "says nothing about parameter '0.weight'"),
        ({"module": lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3)))}, "layer '0' has .* old weight"),
        ({"module": lambda: nn.utils.spectral_norm(nn.Linear(4, 3))}, "the network has .* old weight"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*weight_norm:FutureWarning")
def test_bad_arguments_are_refused(arguments, match):
    given = {"module": mlp(), "method": pst.MAP(), "data": (X, LABELS), "epochs": 1} | arguments
    given = {"training": pst.Training(**QUIET)} | given
    with pytest.raises(pst.PosterityError, match=match):
        pst.fit(given.pop("module"), given.pop("method"), given.pop("data"), **given)


def test_counts_and_seeds_may_be_numpys_integers(tmp_path):
    one, kept = np.int64(1), {"checkpoint": tmp_path / "run"}
    training = pst.Training(batch_size=np.int64(16), accumulate=np.int64(2), **kept, **QUIET)
    posterior = pst.fit(mlp(), pst.MAP(), (X, LABELS), epochs=one, seed=one, members=2 * one, training=training)
    pst.save(posterior, tmp_path / "q")
    assert pst.load(tmp_path / "q", mlp()).seed == posterior.seed


@pytest.mark.parametrize("form", [lambda pair: pair, lambda pair: DataLoader(TensorDataset(*pair), 16), lambda p: [p]])
def test_a_single_example_left_over_is_refused_where_the_network_cannot_train_on_one(form):
    def fit(network: nn.Module, count: int) -> pst.Posterior:
        data = form((X[:count], LABELS[:count]))
        return pst.fit(network, pst.MAP(), data, epochs=1, training=pst.Training(**QUIET, batch_size=16))

    alone = 1 if isinstance(form((X, LABELS)), list) else 33
    normed = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double()
    with pytest.raises(pst.PosterityError, match="a batch of a single example"):
        fit(normed, alone)
    fit(normed, alone + 1)
    fit(mlp(), alone)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_classes_are_integers_of_any_size(dtype):
    network = mlp()
    one, other = (
        pst.fit(network, pst.MAP(), (X, labels), epochs=1, training=pst.Training(**QUIET)).mean()
        for labels in (LABELS, LABELS.to(dtype))
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


class Shifting(nn.Module):
    """Shifts the inputs that it was given, for good."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2).double()

    def forward(self, x):
        return self.layer(x.sub_(0.5))


def test_a_network_that_writes_into_its_inputs_is_refused():
    """Every further draw saw inputs shifted once more, and so did the user."""
    before = X.clone()
    with pytest.raises(pst.PosterityError, match="writes into its inputs"):
        pst.fit(Shifting(), pst.MAP(), (X, LABELS), epochs=1, training=pst.Training(**QUIET))
    assert torch.equal(X, before)


def test_a_schedule_of_no_cycles_is_refused():
    for cycles, sentence in ((0, "cycles must be positive"), (2.5, "cycles must be a whole number")):
        with pytest.raises(pst.PosterityError, match=sentence):
            schedules.CyclicalCosine(cycles)


def test_schedules_hit_their_endpoints():
    plan = Plan(100, 100, 10, 10, None)
    at = lambda s, step: schedules.schedule(s).factor(step, plan)  # noqa: E731
    assert at("constant", 57) == 1
    assert at("linear", 0) == 1 and at("linear", 50) == pytest.approx(0.5)
    assert at("cosine", 0) == 1 and at("cosine", 50) == pytest.approx(0.5) and at("cosine", 99) < 1e-3
    assert at("one-cycle", 0) == pytest.approx(1 / 25) and at("one-cycle", 30) == 1 and at("one-cycle", 99) < 1e-2
    assert (
        at("multi-step", 49) == 1
        and at("multi-step", 50) == pytest.approx(0.1)
        and at("multi-step", 75) == pytest.approx(0.01)
    )
    cycle = schedules.CyclicalCosine(4)
    assert [round(cycle.factor(s, plan), 3) for s in (0, 25, 50, 75)] == [1, 1, 1, 1]
    assert all(cycle.factor(s, plan) < 0.01 for s in (24, 49, 74, 99))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.compile's own
def test_compiled_training_is_the_same_training():
    torch.manual_seed(0)
    net = mlp()
    plain, compiled = (
        pst.fit(net, pst.MAP(), (X, LABELS), epochs=3, training=pst.Training(batch_size=20, compile=c, **QUIET))
        for c in (False, True)
    )
    torch.testing.assert_close(compiled.mean(), plain.mean(), rtol=1e-6, atol=1e-8)


def test_augmentation_sees_every_batch_and_its_own_stream():
    seen = []

    def augment(inputs, generator):
        seen.append(float(torch.rand((), generator=generator)))
        return inputs

    pst.fit(mlp(), pst.MAP(), (X, LABELS), epochs=2, training=pst.Training(batch_size=20, augment=augment, **QUIET))
    assert len(seen) == len(set(seen)) == 6


def test_tensorboard_is_asked_for_by_name():
    with pytest.raises(pst.PosterityError, match="pip install tensorboard"):
        pst.fit(mlp(), pst.MAP(), (X, LABELS), epochs=1, training=pst.Training(tensorboard="board", **QUIET))


class Words(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.words, self.last = nn.Embedding(10, 4, sparse=sparse), nn.Linear(4, 2)
        generator = torch.Generator().manual_seed(0)
        for p in self.parameters():
            nn.init.normal_(p, generator=generator)

    def forward(self, tokens):
        return self.last(self.words(tokens).mean(1))


@pytest.mark.parametrize("method", [pst.MAP(), pst.VOGN(), pst.MeanField(), pst.NoisyKFAC()], ids=repr)
@pytest.mark.parametrize("options", [{}, {"optimizer": "sgd", "accumulate": 2, "clip": 1.0}], ids=["plain", "clipped"])
def test_embeddings_with_sparse_gradients_train_as_others_do(method, options):
    tokens = torch.randint(10, (60, 5), generator=torch.Generator().manual_seed(1))
    options = {"batch_size": 16, **QUIET, **options}
    if not isinstance(method, pst.MAP | pst.MeanField):
        options.pop("clip", None)

    def fit(sparse):
        return pst.fit(Words(sparse), method, (tokens, tokens[:, 0] % 2), epochs=2, training=pst.Training(**options))

    torch.testing.assert_close(fit(True).mean(), fit(False).mean(), rtol=0, atol=0)


def test_a_factory_may_make_embeddings_with_sparse_gradients():
    tokens = torch.randint(10, (60, 5), generator=torch.Generator().manual_seed(1))
    data, training = (tokens, tokens[:, 0] % 2), pst.Training(**QUIET)
    sparse, dense = (
        pst.fit(lambda s=s: Words(s), pst.MAP(), data, epochs=1, members=2, training=training) for s in (True, False)
    )
    torch.testing.assert_close(sparse.mean(), dense.mean(), rtol=0, atol=0)
