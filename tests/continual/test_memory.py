"""Examples that are kept: which, how many, and what they are good for."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

import posterity as pst
from posterity import continual, data
from posterity.continual import Carry, FineTuning, Joint, Memory, Permuted, Replay, Task
from posterity.continual.memory import k_centres
from posterity.continual.recipes import recipe
from posterity.continual.strategy import Past
from posterity.continual.tasks import on_validation
from tests.continual.streams import FAST, blobs, network, tasks


def test_k_centres_take_no_example_twice():
    points = torch.tensor([[0.0], [0.0], [0.0], [0.0], [5.0]])
    for seed in range(5):
        chosen = k_centres(points, 4, torch.Generator().manual_seed(seed)).tolist()
        assert len(set(chosen)) == 4 and 4 in chosen


def test_k_centres_of_tokens_and_tasks_of_numpy_arrays():
    x, y = torch.tensor([[0, 1], [0, 2], [0, 9]]), torch.tensor([0, 1, 0])
    assert sorted(k_centres(x, 2, torch.Generator().manual_seed(0)).tolist())[-1] == 2
    task = Task("arrays", (x.double().numpy(), y.numpy()), (x.double().numpy(), y.numpy()))
    learned = continual.learn(nn.Linear(2, 2).double(), FineTuning(), [task], epochs=1, training=FAST)
    assert learned.rows[0]["accuracy"][0] is not None


def test_k_centres_take_the_farthest_in_turn():
    points = torch.tensor([0.0, 1.0, 10.0, 4.0, 10.5])[:, None]
    generator = torch.Generator()
    for seed in range(20):
        first, *rest = k_centres(points, 3, generator.manual_seed(seed)).tolist()
        distance = (points - points[first]).abs().flatten()
        assert rest[0] == int(distance.argmax())
        assert rest[1] == int(torch.minimum(distance, (points - points[rest[0]]).abs().flatten()).argmax())


def test_a_memory_is_cut_from_a_task_without_loss():
    x, y = blobs((0, 1))
    for choose in ("random", "k-centre"):
        (kept, _), (others, _) = Memory(7, choose).cut((x, y), seed=3)
        assert len(kept) == 7 and len(others) == len(x) - 7
        together = torch.cat([kept, others])
        assert torch.equal(together[together[:, 0].argsort()], x[x[:, 0].argsort()])


def test_rehearsed_examples_have_their_share():
    train, old = blobs((0, 1), n=120), blobs((2, 3), n=10)
    _, targets = Replay(rehearse=0.25).lessons(train, [old])
    assert float((targets >= 2).double().mean()) == 0.25
    assert len(Joint().lessons(train, [old])[1]) == 130
    assert Carry(method=pst.VOGN(), memory=Memory(5)).lessons(train, [old])[1] is train[1]


def test_permuted_tasks_are_orders_of_the_same_pixels():
    x, y = torch.arange(24.0).view(2, 3, 2, 2), torch.tensor([0, 1])
    stream = Permuted((x, y), (x, y), tasks=3, seed=1)
    assert torch.equal(stream[0].train[0], x) and not torch.equal(stream[1].train[0], x)
    assert torch.equal(stream[1].train[0].flatten(1).sort().values, x.flatten(1))
    assert torch.equal(stream[2].train[0], stream[2].test[0]) and len(stream[:2]) == 2
    pixels = torch.arange(784.0).expand(1, 784), y[:1]
    orders = [Permuted(pixels, pixels, seed=seed)[number].train[0] for seed in (1, 2) for number in (1, 2)]
    assert len({tuple(order[0].tolist()) for order in orders}) == 4
    assert torch.equal(Permuted(pixels, pixels, seed=2)[2].train[0], orders[-1])


def test_a_split_stream_has_pairs_of_classes_with_a_head_each():
    made, whole = continual.benchmark("split-digits", tasks=4), data.load("digits")
    assert [(task.name, task.head) for task in made.tasks] == [
        ("0/1", (0, 1)), ("2/3", (2, 3)), ("4/5", (4, 5)), ("6/7", (6, 7))
    ]  # fmt: skip
    for task in made.tasks:
        for (x, y), (inputs, labels) in ((task.train, whole.training()), (task.test, whole.test)):
            rows = (labels == task.head[0]) | (labels == task.head[1])
            assert torch.equal(x, inputs[rows]) and torch.equal(y, labels[rows])
    permuted = continual.benchmark("permuted-digits", tasks=2).tasks
    assert [task.head for task in permuted] == [None, None]


def test_a_recipe_is_of_a_method_that_can_be_carried_on_unless_another_is_given():
    """Laplace's own default, Kronecker factors, cannot."""
    made = recipe("laplace", memory=Memory(7), temperature=2.0).strategy
    assert made.method.carrying(made.base).structure == "diagonal"
    assert made.memory == Memory(7) and made.temperature == 2.0
    own = pst.VOGN(prior=pst.priors.Normal(0.7))
    assert recipe("vogn", own).strategy.method == own != recipe("vogn").strategy.method
    assert recipe("replay", rehearse=0.1).strategy == Replay(rehearse=0.1)


def test_what_settings_are_chosen_on_is_not_learned_from():
    whole = data.load("digits")
    apart = on_validation(whole, 200)
    (x, y), (held, labels) = apart.training(), apart.test
    assert len(y) == len(whole.training()[1]) - 200 and apart.validation is None
    assert torch.equal(torch.cat([y, labels]), whole.training()[1])
    raw = torch.cat([apart.standardiser.invert(part) for part in (x, held)])
    torch.testing.assert_close(raw, whole.standardiser.invert(whole.training()[0]), atol=1e-5, rtol=0)


def test_memory_of_everything_forgets_nothing():
    """On one head fine-tuning forgets the first classes altogether, all data at once does not."""
    training = replace(FAST, lr=0.02)
    forgot = continual.learn(network(), FineTuning(), tasks(heads=False), epochs=20, training=training)
    joint = continual.learn(network(), Joint(), tasks(heads=False), epochs=20, training=training)
    assert joint.matrix()[-1][0] > 0.9 > forgot.matrix()[-1][0] + 0.2


def test_what_is_held_are_the_probabilities_of_the_likelihood():
    """Strength · Σ n KL(p̂‖p_w), p = softmax(f/temperature); two of six examples are kept, so each stands for three."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 3, generator=g, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    earlier, now = (nn.Linear(3, 3).double() for _ in range(2))
    likelihood = pst.likelihoods.Categorical(temperature=4.0)
    posterior = pst.posteriors.Empirical(earlier, likelihood, [dict(earlier.named_parameters())])
    past = Past(prior=None, posterior=posterior, memory=[(x[:2], y[:2])], sizes=[6], heads=[None])
    functional = continual.Functional(method=pst.MAP(prior=pst.priors.Normal(1e6)), strength=2.5)
    held = functional.method_for(past, likelihood)
    before, after = (likelihood.probs(net(x[:2])) for net in (earlier, now))
    cross_entropy = -2.5 * 3 * (before * after.log()).sum()
    lost = held.penalty(now, 1.0) - pst.MAP(prior=pst.priors.Normal(1e6)).penalty(now, 1.0)
    torch.testing.assert_close(lost, cross_entropy)
