"""Embeddings with sparse gradients train as others do."""

import pytest
import torch
from torch import nn

import posterity as pst
from tests.training.problem import QUIET


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
