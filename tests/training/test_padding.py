"""The padding row of an embedding stays what it was: in every pass of a fit, and in every draw."""

import pytest
import torch
from torch import nn

import posterity as pst

G = torch.Generator().manual_seed(0)
TOKENS = torch.randint(5, (60, 4), generator=G)
LABELS = (TOKENS == 1).any(1).long()
ROW = torch.tensor([0.5, -1.0, 2.0])


class Words(nn.Module):
    """The mean of a text's words; notes what stands in the padding row in training."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.layer = nn.Embedding(5, 3, padding_idx=0), nn.Linear(3, 2)
        self.seen = []
        with torch.no_grad():
            self.words.weight[0] = ROW

    def forward(self, x):
        if self.training:
            self.seen.append(self.words.weight[0].detach().clone())
        return self.layer(self.words(x).mean(1))


METHODS = [
    pst.MAP(prior=pst.priors.Normal(0.05)),
    pst.Laplace(structure="diagonal"),
    pst.Laplace(structure="kronecker"),
    pst.Laplace(structure="kronecker", linearised=False),
    pst.IVON(),
    pst.VOGN(),
    pst.NoisyKFAC(),
    pst.SGLD(burn_in=4, thin=1),
    pst.SGHMC(burn_in=4, thin=1),
    pst.SWAG(rank=2, start=2, every=1),
]


class Network:
    """A callback that keeps the network that is trained."""

    def on_epoch(self, run, figures):
        self.module = run.module


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_no_noise_where_nothing_is_learned(method, tmp_path):
    watch = Network()
    training = pst.Training(batch_size=10, progress=False, callbacks=(watch,))
    q = pst.fit(Words(), method, (TOKENS, LABELS), epochs=3, training=training)
    assert all(torch.equal(row, ROW) for row in watch.module.seen)
    pst.save(q, tmp_path / "q")
    for posterior in (q, pst.load(tmp_path / "q", Words())):
        for _ in range(3):
            assert torch.equal(posterior.sample(G)["words.weight"][0], ROW)
        spread = posterior.variance()["words.weight"]
        assert not spread[0].any() and bool(spread[1:].any()) == (posterior.distinct != 1)


class Tied(nn.Module):
    """The same weight for words that come in and for those that go out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.out = nn.Embedding(5, 3, padding_idx=0), nn.Linear(3, 5, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x):
        return self.out(self.words(x).mean(1))


def test_a_row_that_another_layer_trains_is_trained():
    q = pst.fit(Tied(), pst.MAP(), (TOKENS, TOKENS[:, 0]), epochs=3, training=pst.Training(lr=0.1, progress=False))
    assert q.mean()["words.weight"][0].abs().min() > 1e-3
