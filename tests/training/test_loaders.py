"""A user's own loader: how many examples it holds, how many batches it gives, in which order."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SubsetRandomSampler, TensorDataset

import posterity as pst
from posterity.training.distributed import Ranks
from posterity.training.stream import open_stream

G = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=G, dtype=torch.float64)
LABELS = X.argmax(1)
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
