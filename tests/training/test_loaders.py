"""A user's own loader: how many examples it holds, how many batches it gives, in which order."""

from itertools import cycle

import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
)

import posterity as pst
from posterity.training.distributed import Ranks
from posterity.training.examples import split_off
from posterity.training.stream import Resident, open_stream

G = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=G, dtype=torch.float64)
LABELS = X.argmax(1)
NUMBERS = X @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + torch.randn(60, 1, generator=G).double()
QUIET = {"progress": False}


def linear():
    return nn.Linear(3, 3).double()


def test_a_loader_over_a_part_of_its_data_set_has_that_many_examples():
    """The usual way to hold out a validation set: N is what is trained on."""
    torch.manual_seed(0)
    start, rows = linear(), list(range(0, 60, 3))
    part = DataLoader(TensorDataset(X, LABELS), batch_size=20, sampler=SubsetRandomSampler(rows))
    method, training = pst.MAP(prior=pst.priors.Normal(0.3)), pst.Training(batch_size=20, lr=0.1, **QUIET)
    sampled = pst.fit(start, method, part, epochs=60, training=training)
    alone = pst.fit(start, method, (X[rows], LABELS[rows]), epochs=60, training=training)
    torch.testing.assert_close(sampled.mean(), alone.mean(), rtol=1e-6, atol=1e-8)


class Optimistic(IterableDataset):
    """Says that it has more examples than it gives."""

    def __len__(self):
        return 60

    def __iter__(self):
        return iter(zip(X[:45], LABELS[:45], strict=True))


def test_a_loader_that_ends_before_its_length_is_refused():
    """The loop waited for the rest of the epoch for ever."""
    with pytest.raises(pst.PosterityError, match="gave 3 batches in an epoch, and 4 were expected"):
        pst.fit(linear(), pst.MAP(), DataLoader(Optimistic(), batch_size=15), epochs=2, training=pst.Training(**QUIET))


class Endless:
    """The same three batches over and over."""

    def __init__(self):
        self.batches = [(X[i : i + 20], LABELS[i : i + 20]) for i in (0, 20, 40)]

    def __iter__(self):
        return cycle(self.batches)


class Bounded(Endless):
    def __len__(self):
        return 3


def test_of_a_loader_without_end_its_length_is_an_epoch():
    """The loop, and what looks at all of the data after it, went on for ever."""
    start, training = linear(), pst.Training(validation=Bounded(), **QUIET)
    endless = pst.fit(start, pst.Laplace(), Bounded(), epochs=4, training=training)
    listed = pst.fit(start, pst.Laplace(), Bounded().batches, epochs=4, training=training)
    torch.testing.assert_close(endless.variance(), listed.variance(), rtol=0, atol=0)
    assert endless.history == listed.history


def test_a_loader_without_end_and_length_is_refused_where_it_can_be_told():
    with pytest.raises(pst.PosterityError, match="num_data=60 was given, but one pass over the loader has more"):
        pst.fit(linear(), pst.MAP(), Endless(), training=pst.Training(num_data=60, steps=5, **QUIET))


def test_a_batch_smaller_than_the_ranks_is_refused():
    with pytest.raises(pst.PosterityError, match="a batch of 1 cannot be shared by 2 ranks"):
        open_stream([(X, LABELS), (X[:1], LABELS[:1])], pst.Training(), 0, Ranks(1, 2), torch.device("cpu"))


def test_a_sampler_that_shards_shuffles_anew_every_epoch_and_once_is_all_of_the_data():
    examples = TensorDataset(X, LABELS)
    loader = DataLoader(examples, 10, sampler=DistributedSampler(examples, num_replicas=2, rank=1))
    stream = open_stream(loader, pst.Training(), 0, Ranks(1, 2), torch.device("cpu"))
    first, second, again = (torch.cat([batch.inputs for batch, _ in stream.epoch(i)]) for i in (0, 1, 0))
    assert len(first) == 30 and torch.equal(first, again) and not torch.equal(first, second)
    whole = torch.cat([batch.inputs for batch in stream.once()])
    torch.testing.assert_close(whole[whole[:, 0].argsort()], X[X[:, 0].argsort()], rtol=0, atol=0)


def ragged(form: str):
    """Sixty examples that come in the same batches every time, the last of them small."""
    if form == "list":
        return [(X[:50], NUMBERS[:50]), (X[50:56], NUMBERS[50:56]), (X[56:], NUMBERS[56:])]
    return DataLoader(TensorDataset(X, NUMBERS), batch_size=28)


@pytest.mark.parametrize("form", ["list", "loader"])
@pytest.mark.parametrize("method", [pst.MAP(), pst.MAP(prior=pst.priors.Normal({"weight": 1.0})), pst.VOGN()], ids=repr)
def test_examples_of_a_small_batch_count_as_others_do(method, form):
    """Each of four examples alone in the last batch counted as a dozen others: that is another ridge solution."""
    exact = torch.linalg.solve(X.T @ X / 0.25 + torch.eye(3), X.T @ NUMBERS / 0.25)
    training = pst.Training(optimizer="sgd", lr=0.001, schedule="linear", **QUIET)
    if isinstance(method, pst.VOGN):
        training = pst.Training(lr=0.02, schedule="linear", **QUIET)
    torch.manual_seed(0)
    start = nn.Linear(3, 1, bias=False).double()
    q = pst.fit(start, method, ragged(form), likelihood=pst.likelihoods.Gaussian(0.5), epochs=600, training=training)
    assert (q.mean()["weight"] - exact.T).abs().max() < 0.01


def test_the_figures_of_an_epoch_are_means_over_its_examples():
    """With a rate too small to learn anything they are those of the network as it was."""
    torch.manual_seed(0)
    net = linear()
    logits = net(X).detach()
    expected = nn.functional.cross_entropy(logits, LABELS), (logits.argmax(1) == LABELS).double().mean()
    loader = DataLoader(TensorDataset(X, LABELS), batch_size=16, shuffle=True)
    for accumulate in (1, 3):
        training = pst.Training(optimizer="sgd", lr=1e-12, accumulate=accumulate, **QUIET)
        for given in ((X, LABELS), loader, [(X[:50], LABELS[:50]), (X[50:], LABELS[50:])]):
            figures = pst.fit(net, pst.MAP(), given, epochs=2, training=training).history
            found = [(row["loss"], row["accuracy"]) for row in figures]
            assert [row["epoch"] for row in figures] == [1, 2]
            torch.testing.assert_close(torch.tensor(found), torch.tensor([expected] * 2).float())


@pytest.mark.parametrize("outputs, targets", [((), ()), ((1,), ()), ((), (1,)), ((1,), (1,)), ((3,), (3,))])
def test_the_accuracy_of_yes_and_no_is_that_of_each_answer(outputs, targets):
    """Of targets [B, 1] each was compared with the answers to all inputs."""
    shape = nn.Flatten(-1) if outputs else nn.Flatten(0)
    net = nn.Sequential(nn.Linear(3, *(outputs or (1,))), shape).double()
    logits = net(X).detach()
    answers = (torch.arange(logits.numel()) % 2).view(60, *targets)
    right = ((logits.reshape(answers.shape) > 0) == answers).double().mean()
    training = pst.Training(optimizer="sgd", lr=1e-12, **QUIET)
    q = pst.fit(net, pst.MAP(), (X, answers), likelihood=pst.likelihoods.Bernoulli(), epochs=1, training=training)
    assert q.history[0]["accuracy"] == pytest.approx(float(right))


class Noisy(Dataset):
    """Inputs with fresh noise whenever they are read, as random transforms have."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return X[index] + torch.randn(3, dtype=torch.float64), NUMBERS[index]


def ridge(rows, noise=1.0):
    """The least squares under input noise of variance v, in expectation: those of a ridge of N·v."""
    x, y = X[rows], NUMBERS[rows]
    return torch.linalg.solve(x.mT @ x + len(x) * noise * torch.eye(3).double(), x.mT @ y).mT


def averaged(examples, **training):
    """Where the path of gradient descent at a constant rate stays, on average."""
    method = pst.SWA(prior=pst.priors.Normal(1e3), lr=0.1, start=0.2, every=1)
    config = pst.Training(batch_size=60, steps=300, **training, **QUIET)
    known = pst.likelihoods.Gaussian(1.0)
    network = nn.Linear(3, 1, bias=False).double()
    return pst.fit(network, method, examples, likelihood=known, training=config).mean()["weight"]


def test_random_transforms_of_a_data_set_are_drawn_anew_in_every_epoch():
    """Kept from the first read they would be a data set with one fixed noise, whose least squares lie elsewhere."""
    torch.testing.assert_close(averaged(Noisy()), ridge(slice(None)), rtol=0, atol=0.03)  # three standard errors
    kept = torch.stack([Noisy()[i][0] for i in range(60)])
    assert (averaged((kept, NUMBERS)) - ridge(slice(None))).abs().max() > 0.06


def test_random_transforms_stay_random_beside_a_validation_fraction():
    rows = torch.randperm(60, generator=torch.Generator().manual_seed(0))[15:]
    train, held = split_off(Noisy(), 0.25, seed=0)
    assert train.indices == rows.tolist() and sorted(train.indices + held.indices) == list(range(60))
    torch.testing.assert_close(averaged(Noisy(), validation=0.25), ridge(rows), rtol=0, atol=0.035)


class Steady(Dataset):
    """The same whenever it is read."""

    def __init__(self, inputs):
        self.inputs = inputs

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], int(LABELS[index])


def test_a_data_set_that_does_not_change_is_kept_and_looked_at_as_a_whole():
    stream = open_stream(Steady(X), pst.Training(), 0, Ranks(), torch.device("cpu"))
    assert isinstance(stream, Resident) and torch.equal(stream.inputs, X) and torch.equal(stream.targets, LABELS)
    holes = X.clone()
    holes[3, 1] = torch.nan  # which differs from itself
    with pytest.raises(pst.PosterityError, match="NaN"):
        open_stream(Steady(holes), pst.Training(), 0, Ranks(), torch.device("cpu"))


def test_balance_needs_a_data_set_that_does_not_change():
    with pytest.raises(pst.PosterityError, match="without random transforms"):
        open_stream(Noisy(), pst.Training(balance=True), 0, Ranks(), torch.device("cpu"))
