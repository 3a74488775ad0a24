"""A user's own loader: how many examples it holds, how many batches it gives, in which order."""

import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import posterity as pst

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
