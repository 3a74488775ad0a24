"""Streams of tasks: heads, strategies, resuming to the same bits, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import posterity as pst
from posterity import continual
from posterity.continual import EWC, Carry, FineTuning, Functional, Joint, Memory, Replay, Task, TaskError
from posterity.continual.heads import Ending, ending, unused_rows
from posterity.continual.strategy import Past
from posterity.posteriors import Empirical
from posterity.training.fit import fit_next
from tests.continual.streams import FAST, blobs, network, tasks


def test_what_is_held_of_words_is_the_sum_over_them():
    """As many sentences as words: weights of the one were taken for those of the other."""
    x, y, layer = torch.randn(5, 5, 4), torch.zeros(5, 5).long(), nn.Linear(4, 3).requires_grad_(False)
    q = Empirical(layer, pst.likelihoods.Categorical(), [dict(layer.named_parameters())])
    past = Past(pst.priors.Normal(), q, memory=[(x[:2], y[:2]), (x[2:], y[2:])], sizes=[20, 60], heads=[None, None])
    held = Functional().method_for(past, q.likelihood)
    entropy = torch.special.entr(layer(x).softmax(-1)).sum((1, 2))
    expected = 10 * entropy[:2].sum() + 20 * entropy[2:].sum()
    prior = pst.MAP().penalty(layer, 1.0)
    assert float(held.penalty(layer, 1.0) - prior) == pytest.approx(float(expected), rel=1e-5)


def test_what_is_held_of_a_task_is_its_own_head():
    x, y, layer = torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 3]), nn.Linear(3, 4).requires_grad_(False)
    likelihood = pst.likelihoods.MultiHead(heads=((0, 1), (2, 3)))
    q = Empirical(layer, likelihood, [dict(layer.named_parameters())])
    memory = [(x[:2], y[:2]), (x[2:], y[2:])]
    held = Functional().method_for(
        Past(pst.priors.Normal(), q, memory=memory, sizes=[20, 60], heads=list(likelihood.heads)), likelihood
    )
    first, second = layer(x[:2])[:, :2].softmax(-1), layer(x[2:])[:, 2:].softmax(-1)
    expected = 10 * torch.special.entr(first).sum() + 20 * torch.special.entr(second).sum()
    prior = pst.MAP().penalty(layer, 1.0)
    assert float(held.penalty(layer, 1.0) - prior) == pytest.approx(float(expected), rel=1e-5)


def test_a_head_is_a_softmax_over_its_own_logits():
    outputs, targets = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 1, 2])
    several = pst.likelihoods.MultiHead(heads=((0, 1), (2, 3)))
    own = torch.where(targets < 2, outputs[:, :2].logsumexp(1), outputs[:, 2:].logsumexp(1))
    torch.testing.assert_close(several.log_prob(outputs, targets), outputs.gather(1, targets[:, None])[:, 0] - own)
    torch.testing.assert_close(several.loss(outputs, targets), -several.log_prob(outputs, targets).mean())
    second = replace(several, head=1)
    expected = torch.cat([torch.zeros(6, 2), outputs[:, 2:].softmax(1)], 1)
    torch.testing.assert_close(second.probs(outputs), expected)
    assert float(second.hessian(outputs)[:, :2].abs().max()) == 0
    with pytest.raises(pst.PosterityError, match="class 0 belongs to no head"):
        second.check(outputs, targets)


def test_a_head_that_no_task_has_used_keeps_base_prior_and_first_weights():
    seen = {}

    class Spy(Carry):
        def method_for(self, past, likelihood):
            seen[len(past.heads)] = (past.prior, past.stds)
            return super().method_for(past, likelihood)

    base = pst.priors.Normal(0.5)
    continual.learn(network(), Spy(method=pst.VOGN(prior=base)), tasks(), epochs=3, training=FAST)
    prior, stds = seen[1]
    used, unused = prior.at("2.weight").std[:2], prior.at("2.weight").std[2:]
    assert bool((unused == 0.5).all()) and bool((prior.at("2.weight").mean[2:] == 0).all())
    assert (
        bool((used < 0.5).all()) and bool((stds["2.weight"][2:] == 0).all()) and bool((stds["2.weight"][:2] > 0).all())
    )
    marks = unused_rows(network(), "2", [(0, 1)])
    assert marks["2.bias"].tolist() == [False, False, True, True]
    assert unused_rows(network(), None, [None]) == {} == unused_rows(network(), "2", [(0, 1), (2, 3)])


def test_a_task_is_fitted_from_the_last_mean_and_a_new_head_from_its_first_weights(monkeypatch):
    """A strong prior pulls the head that no task has used yet; the next task must not begin with what is left of it."""
    starts, strategies = [], []

    class Spy(FineTuning):
        def method_for(self, past, likelihood):
            strategies.append((list(past.sizes), past.posterior))
            return super().method_for(past, likelihood)

    def watched(module, *rest, **options):
        starts.append({name: p.detach().clone() for name, p in module.named_parameters()})
        return fit_next(module, *rest, **options)

    monkeypatch.setattr("posterity.continual.stream.fit_next", watched)
    strategy = Spy(method=pst.MAP(prior=pst.priors.Normal(0.01)))
    continual.learn(network(), strategy, tasks(), epochs=5, training=replace(FAST, lr=0.05))
    first, second = starts
    (_, _), (sizes, before) = strategies
    assert sizes == [60]
    mean = before.mean()
    assert float((mean["2.weight"][2:] - first["2.weight"][2:]).abs().max()) > 0.01
    torch.testing.assert_close(second["2.weight"][2:], first["2.weight"][2:], rtol=0, atol=0)
    torch.testing.assert_close(second["2.weight"][:2], mean["2.weight"][:2], rtol=0, atol=0)
    torch.testing.assert_close(second["0.weight"], mean["0.weight"], rtol=0, atol=0)


class Unordered(nn.Module):
    """Its output layer was made first."""

    def __init__(self, last: nn.Module, hidden: int = 3) -> None:
        super().__init__()
        self.last, self.hidden = last, nn.Linear(4, hidden)

    def forward(self, x):
        return self.last(torch.tanh(self.hidden(x)).unsqueeze(-1)).flatten(1)


def test_heads_are_rows_of_the_layer_that_gives_the_outputs_wherever_it_was_registered():
    flat = Unordered(nn.Sequential(nn.Flatten(), nn.Linear(5, 4)), hidden=5).double()
    assert ending(flat, blobs((0, 1))[0]) == Ending(4, "last.1")
    priors = []

    class Spy(Carry):
        def method_for(self, past, likelihood):
            priors.append(past.prior)
            return super().method_for(past, likelihood)

    continual.learn(flat, Spy(method=pst.VOGN(prior=pst.priors.Normal(0.5))), tasks(), epochs=3, training=FAST)
    assert bool((priors[1].at("last.1.weight").std[2:] == 0.5).all())
    assert bool((priors[1].at("hidden.weight").std < 0.5).all())  # no task has a row in it
    assert set(unused_rows(nn.Linear(4, 4), "", [(0, 1)])) == {"weight", "bias"}


def test_a_network_need_not_end_in_a_linear_layer_unless_every_task_has_a_head():
    """Three hidden units, and four outputs of a convolution: the classes are not those of its one Linear layer."""
    network = Unordered(nn.Conv1d(3, 4, 1)).double()
    learned = continual.learn(network, FineTuning(), tasks(False), epochs=1, training=FAST)
    assert learned.tasks == ["(0, 1)", "(2, 3)"]
    with pytest.raises(pst.PosterityError, match="needs a network that ends in a Linear layer"):
        continual.learn(network, FineTuning(), tasks(), epochs=1, training=FAST)
    with pytest.raises(pst.PosterityError, match=r"cannot take inputs of shape \(60, 3\)"):
        short = [Task("short", (x[:, :3], y)) for x, y in [blobs((0, 1))]]
        continual.learn(network, FineTuning(), [*tasks(False), *short], epochs=1, training=FAST)
    with pytest.raises(pst.PosterityError, match="by one network, got function"):
        continual.learn(lambda: network, FineTuning(), tasks(), epochs=1, training=FAST)


@pytest.mark.parametrize(
    "strategy", [pst.VOGN(prior=pst.priors.Normal(0.5)), FineTuning(), Functional(), EWC()], ids=repr
)
def test_a_class_may_come_alone(strategy):
    alone = [Task("0 and 1", blobs((0, 1))), Task("2", blobs((2,)), blobs((2,), 1))]
    learned = continual.learn(network(), strategy, alone, epochs=40, training=replace(FAST, lr=0.03))
    assert learned.matrix()[-1][1] > 0.9


STRATEGIES = {
    "vogn": pst.VOGN(prior=pst.priors.Normal(0.5), damping=0.0),
    "vogn, coreset": Carry(method=pst.VOGN(prior=pst.priors.Normal(0.5)), memory=Memory(6, "k-centre")),
    "mean-field, rehearsing": Carry(method=pst.MeanField(), memory=Memory(6), rehearse=0.2),
    "hwa": pst.HWA(of=pst.MeanField(), start=0),
    "swag": pst.SWAG(rank=2, start=0, every=1),
    "laplace": pst.Laplace(structure="full"),
    "fine-tuning": FineTuning(),
    "joint": Joint(),
    "ewc": EWC(strength=2.0),
    "replay": Replay(memory=Memory(6)),
    "functional": Functional(memory=Memory(6)),
}
EACH = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=list(STRATEGIES))


class KilledError(Exception):
    pass


class Killer:
    """Stops the process in the middle of the second task."""

    def __init__(self, after: int) -> None:
        self.left = after

    def on_epoch(self, run, figures):
        self.left -= 1
        if self.left == 0:
            raise KilledError


@EACH
@pytest.mark.parametrize("heads", [True, False], ids=["heads", "one head"])
def test_killed_in_a_task_and_resumed_is_the_same_bits(strategy, heads, tmp_path):
    options = {"epochs": 5, "draws": 4}
    whole = continual.learn(network(), strategy, tasks(heads), training=FAST, **options)
    killer = replace(FAST, callbacks=(Killer(13 if getattr(strategy, "refines", False) else 8),))
    with pytest.raises(KilledError):
        continual.learn(network(), strategy, tasks(heads), training=killer, folder=tmp_path, **options)
    left = {path.name for path in tmp_path.iterdir()}
    assert "task-01.safetensors" in left and any(name.startswith("checkpoint-") for name in left)
    again = continual.learn(network(), strategy, tasks(heads), training=FAST, folder=tmp_path, resume=True, **options)
    assert again.rows == whole.rows and again.start == whole.start
    for one, other in ((again.posterior, whole.posterior), (again.predictive, whole.predictive)):
        assert all(torch.equal(one.mean()[name], mean) for name, mean in other.mean().items())
        assert all(torch.equal(one.variance()[name], v) for name, v in other.variance().items())
    assert not any(path.name.startswith("checkpoint-") for path in tmp_path.iterdir())
    assert json.loads((tmp_path / "results.json").read_text())["tasks"] == whole.tasks


def test_without_forgetting_two_heads_are_both_known():
    known = continual.learn(network(), STRATEGIES["vogn"], tasks(), epochs=40, training=replace(FAST, lr=0.05))
    assert min(known.matrix()[-1]) > 0.9
    assert known.figures().keys() >= {"accuracy", "nll", "ece", "forgetting", "backward_transfer", "forward_transfer"}


def test_ewc_adds_fisher_information_times_its_strength():
    strategy, base = EWC(strength=5.0), pst.priors.Normal(1.0)
    net = network()
    mean = {name: p.detach() for name, p in net.named_parameters()}
    std = {name: torch.full_like(p, 0.5) for name, p in mean.items()}  # precision 4 = 1 + Fisher 3
    posterior = pst.posteriors.DiagonalGaussian(net, pst.likelihoods.Categorical(), mean, std)
    prior = strategy.prior_after(posterior, base)
    torch.testing.assert_close(prior.at("0.weight").precision, torch.full_like(mean["0.weight"], 1 + 5 * 3))
    for name, weights in mean.items():  # a weight that no data hold was to become five times as large
        torch.testing.assert_close(prior.at(name).mean, weights)


def test_a_stream_that_is_not_a_list_is_learned_as_it_comes():
    learned = continual.learn(network(), FineTuning(), (task for task in tasks(False)), epochs=2, training=FAST)
    assert [len(row["accuracy"]) for row in learned.rows] == [1, 2] and "forward_transfer" not in learned.figures()


def test_what_is_wrong_with_a_task_is_said_and_what_was_learned_is_kept(tmp_path):
    good = tasks(False)[0]
    empty = Task("nothing", (torch.zeros(0, 4).double(), torch.zeros(0, dtype=torch.int64)))
    strange = Task("strange", (blobs((0, 1))[0], blobs((0, 1))[1] + 3))
    for bad, words in ((empty, "nothing has 0 training inputs"), (strange, "no output for class 4")):
        with pytest.raises(pst.PosterityError, match=words):
            continual.learn(network(), FineTuning(), [good, bad], epochs=1, training=FAST)
        with pytest.raises(TaskError, match=f"task 2.*{words}") as caught:
            stream = iter([good, bad])
            continual.learn(network(), FineTuning(), stream, epochs=1, training=FAST, folder=tmp_path / bad.name)
        assert caught.value.so_far.tasks == [good.name] and caught.value.so_far.posterior is not None
        assert (tmp_path / bad.name / "task-01.safetensors").exists()


def test_numbers_are_learned_with_noise_that_is_learned_too(tmp_path):
    """Two halves of a line with noise of std 0.3: that is the error, and what the posterior takes the noise for."""
    x = torch.linspace(-2, 2, 400).double()[:, None]
    y = 2 * x - 1 + 0.3 * torch.randn(400, 1, generator=torch.Generator().manual_seed(0)).double()
    order = torch.randperm(400, generator=torch.Generator().manual_seed(1))
    halves = [Task(name, (x[rows], y[rows]), (x, y)) for name, rows in zip("ab", order.chunk(2), strict=True)]
    run = {"epochs": 60, "training": replace(FAST, lr=0.05), "folder": tmp_path}
    learned = continual.learn(nn.Linear(1, 1).double(), pst.Laplace(structure="full"), halves, **run)
    rmse = float((y - 2 * x + 1).square().mean().sqrt())
    assert learned.figures()["rmse"] == pytest.approx(rmse, rel=0.03) and learned.start == {}
    assert learned.figures()["nll"] == pytest.approx(math.log(rmse) + 0.5 * math.log(2 * math.pi * math.e), abs=0.03)
    again = continual.learn(nn.Linear(1, 1).double(), pst.Laplace(structure="full"), halves, resume=True, **run)
    assert again.rows == learned.rows


def test_yes_and_no_from_one_logit():
    x, y = blobs((0, 1))
    two = [Task("first", (x, y), (x, y)), Task("second", (-x, y), (-x, y))]
    likelihood = pst.likelihoods.Bernoulli()
    module = nn.Linear(4, 1).double()
    learned = continual.learn(
        module, FineTuning(), two, likelihood=likelihood, epochs=60, training=replace(FAST, lr=0.1)
    )
    assert learned.matrix()[0][0] > 0.9 and learned.matrix()[1][1] > 0.9
    # A softmax over one logit is 1 whatever the network says: nothing would be held.
    with pytest.raises(pst.PosterityError, match="holds the logits of classes"):
        continual.learn(module, Functional(), two, likelihood=likelihood, epochs=1, training=FAST)


def test_streams_that_cannot_be_learned_are_a_sentence():
    first, second = tasks()
    for wrong, words in (
        ([first, replace(second, head=(2, 4))], "no output for class 4, only for 0, 1, 2, 3"),
        ([first, replace(second, head=None)], "either every task has a head of its own, or none has"),
        ([first, second.train], "made of Tasks, got tuple"),
    ):
        for stream in (wrong, iter(wrong)):
            with pytest.raises(pst.PosterityError, match=words):
                continual.learn(network(), FineTuning(), stream, epochs=1, training=FAST)
    with pytest.raises(pst.PosterityError, match="size must be a whole number"):
        Memory(1.5)
    with pytest.raises(pst.PosterityError, match="the method must be one such as"):
        continual.learn(network(), "vogn", [first])
    assert continual.learn(network(), FineTuning(), []).figures() == {"seconds": 0}


def test_a_folder_is_not_written_over_and_belongs_to_one_run(tmp_path):
    run = {"epochs": 1, "training": FAST, "folder": tmp_path}
    continual.learn(network(), FineTuning(), tasks(False)[:1], **run)
    with pytest.raises(pst.PosterityError, match="already holds learned tasks"):
        continual.learn(network(), FineTuning(), tasks(False), **run)
    with pytest.raises(pst.PosterityError, match="belongs to another run: its epochs"):
        continual.learn(network(), FineTuning(), tasks(False), resume=True, **{**run, "epochs": 2})
    file = tmp_path / "task-01.safetensors"
    file.write_bytes(file.read_bytes()[:-5] + b"wrong")
    with pytest.raises(TaskError, match="damaged"):
        continual.learn(network(), FineTuning(), tasks(False), resume=True, **run)


def test_strategies_refuse_what_cannot_be():
    with pytest.raises(pst.PosterityError, match="starts from a Normal prior"):
        Carry(method=pst.MeanField(prior=pst.priors.Laplace(1.0)))
    with pytest.raises(pst.PosterityError, match="needs a memory"):
        Carry(rehearse=0.5)
    with pytest.raises(pst.PosterityError, match="chosen by one of random, k-centre"):
        Memory(5, "best")
    with pytest.raises(pst.PosterityError, match="there is no stream 'mnits'"):
        continual.benchmark("mnits")
    with pytest.raises(pst.PosterityError, match="no variances"):
        continual.learn(network(), pst.MAP(), tasks(), epochs=1, training=FAST)


def refused(cls, word):
    strategy = EWC if cls is pst.KFAC else Carry
    with pytest.raises(pst.PosterityError, match=f"{cls.__name__} cannot learn each task .* {word}"):
        strategy(method=cls())


@pytest.mark.parametrize("cls", [pst.MAP, pst.SWA, pst.methods.Pruning, pst.OGN], ids=lambda cls: cls.__name__)
def test_a_method_that_ends_in_a_point_is_refused_before_its_first_task(cls):
    """It was trained on the first task, and refused then."""
    refused(cls, "no variances")
    FineTuning(method=cls())


def test_so_is_one_whose_posterior_its_own_next_task_could_not_take():
    """The spread of networks without noise was so narrow a prior that the next task ended in NaN."""
    refused(pst.Dropout, "no distribution")
    refused(pst.Snapshot, "networks without noise")
    refused(pst.FastGeometric, "networks without noise")
    refused(pst.KFAC, "one precision")
    refused(pst.NoisyKFAC, "one precision")
    Carry(method=pst.SWAG()), Carry(method=pst.Cyclical())
