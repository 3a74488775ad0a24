"""The class-conditional flow is Bayes' rule; HCL finds tasks, keeps them, resumes, and refuses what it cannot use."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as pst
from posterity.continual import (
    HCL,
    ClassConditionalFlow,
    FunctionalRegularisation,
    GenerativeReplay,
    Typicality,
    feature_flow,
    learn_hcl,
)
from posterity.continual.flows import Coupling, Flow
from posterity.continual.hcl_memory import Memory

SIZE = 16
QUIET = pst.Training(batch_size=32, lr=3e-3, progress=False)


def model(dtype=torch.float64):
    """Two tasks: classes 0 and 1, then 1 and 4; the flow is the identity."""
    known = ClassConditionalFlow(feature_flow(SIZE, couplings=2, hidden=8)).to(dtype)
    generator = torch.Generator().manual_seed(0)
    known.meet(0, torch.tensor([0, 1, 0]), 1.0, generator)
    known.meet(1, torch.tensor([1, 4]), 1.0, generator)
    return known


def normal(x, mean):
    return torch.distributions.Normal(mean, torch.ones_like(mean)).log_prob(x).sum(-1)


def test_logits_are_log_joint_densities():
    known = model()
    x = torch.randn(5, SIZE, dtype=torch.float64)
    at = {
        pair: normal(x, mean)
        for pair, mean in zip(zip(known.tasks.tolist(), known.labels.tolist(), strict=True), known.means, strict=True)
    }
    assert set(at) == {(0, 0), (0, 1), (1, 1), (1, 4)}
    quarter = math.log(1 / 4)
    logits = known(x)
    torch.testing.assert_close(logits[:, 0], at[0, 0] + quarter)
    torch.testing.assert_close(logits[:, 1], torch.logaddexp(at[0, 1], at[1, 1]) + quarter)
    torch.testing.assert_close(logits[:, 4], at[1, 4] + quarter)
    assert logits[:, [2, 3]].isneginf().all()
    z, log_det = known.flow(x)
    of_task = torch.stack([torch.logaddexp(at[0, 0], at[0, 1]), torch.logaddexp(at[1, 1], at[1, 4])]) - math.log(2)
    torch.testing.assert_close(known.statistics(z, log_det)[:, 0], of_task.mean(1))
    own = known.components(1, torch.tensor([4, 1, 4, 0, 1]))
    assert own[3] == -1 and known.labels[own[:3]].tolist() == [4, 1, 4] and known.tasks[own[:3]].tolist() == [1, 1, 1]
    torch.testing.assert_close(known.log_prob(z, log_det, own)[0], at[1, 4][0])


def test_samples_come_from_their_component():
    known = model()
    x, z = known.sample(torch.full((4000,), 3), torch.Generator().manual_seed(0))
    torch.testing.assert_close(known.flow(x)[0], z)
    assert ((z.mean(0) - known.means[3]).abs() < 4 / math.sqrt(4000)).all()


def test_means_of_new_classes_have_the_std_that_was_asked_for():
    known = ClassConditionalFlow(feature_flow(SIZE))
    known.meet(0, torch.arange(400), 3.0, torch.Generator().manual_seed(0))
    known.meet(1, torch.arange(400), 0.5, torch.Generator().manual_seed(1))
    for means, std in zip(known.means.split(400), (3.0, 0.5), strict=True):
        assert float(means.std()) == pytest.approx(std, rel=4 / math.sqrt(2 * 400 * SIZE))


@pytest.mark.parametrize("clip", [1e-3, 1e-2])
def test_a_clipped_step_is_as_long_as_was_asked_for(clip):
    flow, pair = feature_flow(SIZE, couplings=2, hidden=8), (5 + torch.randn(64, SIZE), torch.arange(64) % 2)
    training = pst.Training(batch_size=64, optimizer="sgd", lr=0.1, clip=clip, progress=False)
    found = learn_hcl(flow, [pair], HCL(detection=None), training=training).mean()
    steps = [found[f"flow.{name}"] - p.detach() for name, p in flow.named_parameters()]
    assert float(torch.cat([s.flatten() for s in steps]).norm()) == pytest.approx(0.1 * clip, rel=1e-3)


def test_penalties_by_hand():
    """With the identity as f: GR is the cross-entropy of z', FR is zero, and grows as the square of a shift."""
    known = model()
    components = torch.tensor([0, 3, 2])
    x, z = known.sample(components, torch.Generator().manual_seed(1))
    expected = -torch.stack([normal(z[i], known.means[k]) for i, k in enumerate(components)]).mean()
    torch.testing.assert_close(GenerativeReplay(2.0).penalty(known, x, z, components), 2 * expected)
    assert FunctionalRegularisation().penalty(known, x, z, components) == 0
    with torch.no_grad():
        known.flow.steps[-1].shift += 0.5
    moved = FunctionalRegularisation(3.0).penalty(known, x, z, components)
    torch.testing.assert_close(moved, torch.tensor(3 * SIZE * 0.25, dtype=torch.float64))


def test_which_tasks_have_met_a_class():
    known = model()
    assert known.met(torch.tensor([0, 1, 1])).tolist() == [True, False]
    assert known.met(torch.tensor([1])).tolist() == [True, True]
    assert known.met(torch.tensor([4, 0])).tolist() == [False, False]
    assert ClassConditionalFlow(feature_flow(SIZE)).met(torch.tensor([0])).tolist() == []


def test_replay_is_of_all_other_tasks():
    known = model()
    memory = Memory(known, Typicality())
    memory.keep(known, 1)
    x, z, components = memory.replay(1000, torch.Generator().manual_seed(0))
    assert components.unique().tolist() == [0, 1]  # those of task 0
    assert abs((components == 0).double().mean() - 0.5) < 4 * 0.5 / math.sqrt(1000)
    torch.testing.assert_close(known.flow(x)[0], z)
    memory.keep(known, 2)
    assert memory.others.tolist() == [0, 1, 2, 3]


def tasks(count, n=640):
    """Two clusters a task, each task in a place of its own."""
    generator = torch.Generator().manual_seed(3)
    centers = 2 * torch.randn(2 * count, SIZE, generator=generator)
    y = [2 * t + torch.randint(2, (n,), generator=generator) for t in range(count)]
    return [(centers[labels] + 0.5 * torch.randn(n, SIZE, generator=generator), labels) for labels in y]


def learned(stream, config, **options):
    flow = feature_flow(SIZE, couplings=4, hidden=64)
    return learn_hcl(flow, stream, config, training=QUIET, **({"epochs": 4} | options))


def accuracy(posterior, stream):
    return [float((posterior.predict(x, draws=1).label == y).double().mean()) for x, y in stream]


def turns(history):
    found = [(row["step"], row["task"]) for row in history if row["task"] >= 0]
    return [(step, task) for (_, before), (step, task) in itertools.pairwise(found) if task != before]


@pytest.fixture(scope="module")
def stream():
    return tasks(3)


@pytest.mark.parametrize("against", [FunctionalRegularisation(5.0), GenerativeReplay(1.0)])
def test_tasks_are_found_and_kept_without_being_told(stream, against):
    q = learned(stream, HCL(against=against, noise=0.1, mean_std=2.0))
    assert turns(q.history) == [(81, 1), (161, 2)]  # 80 batches a task; the first of a new one is set aside
    assert min(accuracy(q, stream)) > 0.95


def test_without_replay_the_first_task_is_forgotten(stream):
    kept = learned(stream, HCL(against=FunctionalRegularisation(5.0), detection=None, noise=0.1, mean_std=2.0))
    lost = learned(stream, HCL(against=FunctionalRegularisation(1e-9), detection=None, noise=0.1, mean_std=2.0))
    assert accuracy(kept, stream)[0] > accuracy(lost, stream)[0] + 0.2
    assert accuracy(lost, stream)[2] > 0.95


def test_a_task_that_returns_is_recognised(stream):
    q = learned([stream[0], stream[1], stream[0]], HCL(against=FunctionalRegularisation(5.0), noise=0.1, mean_std=2.0))
    assert turns(q.history) == [(81, 1), (161, 0)]
    assert q.module.num_tasks == 2


def test_interrupted_and_resumed_it_ends_in_the_same_bits(stream, tmp_path):
    class KilledError(RuntimeError):
        pass

    class Kill:
        def __init__(self, at):
            self.at = at

        def on_epoch(self, run, figures):
            self.at -= 1
            if self.at < 0:
                raise KilledError

    short = [(x[:320], y[:320]) for x, y in stream]
    config = HCL(detection=Typicality(warm_up=8, window=10), noise=0.1)
    flow = feature_flow(SIZE, couplings=2, hidden=8)
    whole = learn_hcl(flow, short, config, epochs=2, training=QUIET)
    file = tmp_path / "run.safetensors"
    for kill in (2, 3):  # after each, the epoch that was under way is done again
        training = pst.Training(
            batch_size=32, lr=3e-3, progress=False, checkpoint=file, resume=True, callbacks=(Kill(kill),)
        )
        with pytest.raises(KilledError):
            learn_hcl(flow, short, config, epochs=2, training=training)
    training = pst.Training(batch_size=32, lr=3e-3, progress=False, checkpoint=file, resume=True)
    resumed = learn_hcl(flow, short, config, epochs=2, training=training)
    torch.testing.assert_close(resumed.mean(), whole.mean(), rtol=0, atol=0)
    torch.testing.assert_close(resumed.module.means, whole.module.means, rtol=0, atol=0)
    assert resumed.history == whole.history
    with pytest.raises(pst.PosterityError, match="another run"):
        learn_hcl(flow, short, HCL(), epochs=2, training=training)


def test_the_posterior_is_one_network_that_can_be_saved(stream, tmp_path):
    flow = feature_flow(SIZE, couplings=2, hidden=8)
    before = {name: p.clone() for name, p in flow.named_parameters()}
    loaders = [DataLoader(TensorDataset(x[:128], y[:128]), batch_size=32) for x, y in stream[:2]]
    q = learn_hcl(flow, loaders, HCL(detection=None), training=pst.Training(progress=False, clip=10.0))
    torch.testing.assert_close(dict(flow.named_parameters()), before, rtol=0, atol=0)
    x = stream[0][0][:50]
    prediction = q.predict(x)
    assert prediction.draws == 1 and prediction.probs.shape == (50, 4)
    torch.testing.assert_close(prediction.probs.log(), q.module(x).log_softmax(1))
    pst.save(q, tmp_path / "q.safetensors")
    loaded = pst.load(tmp_path / "q.safetensors", ClassConditionalFlow(feature_flow(SIZE, couplings=2, hidden=8)))
    torch.testing.assert_close(loaded.predict(x).probs, prediction.probs, rtol=0, atol=0)


def test_a_flow_in_double_precision_is_learned_in_it(stream):
    double = [(x[:128].double(), y[:128]) for x, y in stream]
    flow = feature_flow(SIZE, couplings=2, hidden=8).double()
    q = learn_hcl(flow, double, HCL(detection=None, noise=0.1), training=QUIET)
    assert q.module.means.dtype == q.module(double[0][0]).dtype == torch.float64


def test_what_cannot_be_learned_is_refused(stream):
    x, y = stream[0]
    flow = feature_flow(SIZE, couplings=2, hidden=8)
    bad = {
        "needs a flow, such as": lambda: learn_hcl(torch.nn.Linear(SIZE, SIZE), [(x, y)]),
        "no tasks": lambda: learn_hcl(flow, []),
        "empty": lambda: learn_hcl(flow, [(x, y), (x[:0], y[:0])]),
        "takes 16 numbers": lambda: learn_hcl(flow, [(x, y), (x[:, :4], y)]),
        "integer classes": lambda: learn_hcl(flow, [(x, y.double())]),
        "numbers from 0": lambda: learn_hcl(flow, [(x, y - 5)]),
        "means nothing": lambda: learn_hcl(flow, [(x, y)], training=pst.Training(schedule="cosine")),
        "epochs": lambda: learn_hcl(flow, [(x, y)], epochs=0),
        "NaN": lambda: learn_hcl(flow, [(x * torch.nan, y)]),
        "loss became nan": lambda: learn_hcl(flow, [[(x * torch.nan, y)]]),
        "got inputs of torch.uint8": lambda: learn_hcl(flow, [(x.byte(), y)]),
        "got inputs of torch.float64": lambda: learn_hcl(flow, [(x.double(), y)]),
        "takes no weights": lambda: learn_hcl(flow, [[(x, y, torch.ones(len(y)))]]),
        "noise": lambda: HCL(noise=-1.0),
        "weight": lambda: GenerativeReplay(0.0),
    }
    for sentence, call in bad.items():
        with pytest.raises(pst.PosterityError, match=sentence):
            call()


@pytest.mark.slow
def test_split_digits_with_nobody_saying_where_a_task_ends():
    digits = pst.data.load("digits")
    x, y = digits.train
    split = [(x[y // 2 == task], y[y // 2 == task]) for task in range(5)]
    training = pst.Training(batch_size=64, progress=False)
    q = learn_hcl(feature_flow(64), split, HCL(), epochs=20, training=training)
    assert [task for _, task in turns(q.history)] == [1, 2, 3, 4]
    assert accuracy(q, [digits.test])[0] > 0.9  # 0.95 in the run that this bound was set after


def test_a_flow_that_remembers_a_pass_is_copied_at_the_start_and_when_the_task_changes():
    class Remembers(nn.Linear):
        def forward(self, x):
            self.seen = super().forward(x)
            return self.seen

    mask = torch.arange(SIZE) % 2.0
    flow = Flow((SIZE,), [Coupling(mask, Remembers(SIZE, 2 * SIZE))])
    flow(torch.randn(3, SIZE))
    tasks = [(torch.randn(64, SIZE), torch.arange(64) % 2 + 2 * task) for task in range(2)]
    posterior = learn_hcl(flow, tasks, HCL(detection=None), training=QUIET)
    assert [row["task"] for row in posterior.history] == [0, 0, 1, 1]
