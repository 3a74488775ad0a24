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
    pst.MeanField(prior=pst.priors.Normal(0.05)),
    pst.MeanField(prior=pst.priors.Laplace(0.05)),
    pst.MeanField(prior=pst.priors.EmpiricalNormal("unit")),
    pst.MeanField(prior=pst.priors.Normal(0.05), family="low-rank"),
    pst.MeanField(prior=pst.priors.Normal(0.05), family="radial"),
    pst.HWA(of=pst.MeanField(prior=pst.priors.Normal(0.05)), start=2, every=2),
    pst.SparseVD(init_std=0.3, clip_start=0.3),
    pst.ARD(init_std=0.3),
    pst.GroupSparse(prior=pst.priors.Normal(0.05)),
    pst.MNF(prior=pst.priors.Normal(0.05)),
]


class Network:
    """A callback that keeps the network that is trained."""

    def on_epoch(self, run, figures):
        self.module = next(part for part in run.module.modules() if isinstance(part, Words))


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


@pytest.mark.parametrize("method", [pst.MAP(), pst.MeanField()], ids=repr)
def test_a_row_that_another_layer_trains_is_trained(method):
    q = pst.fit(Tied(), method, (TOKENS, TOKENS[:, 0]), epochs=3, training=pst.Training(lr=0.1, progress=False))
    assert q.mean()["words.weight"][0].abs().min() > 1e-3
    assert (q.variance()["words.weight"] > 0).all() or q.distinct == 1


@pytest.mark.parametrize("zero", [True, False])
def test_a_learned_scale_is_that_of_the_trained_rows(zero):
    """s² is the mean of mean² + std² over the rows that are random, whatever stands in the padding row."""
    words = nn.Embedding(3, 2, padding_idx=0).double()
    with torch.no_grad():
        words.weight[0] = 0.0 if zero else 7.0
    net = pst.variational(words, prior=pst.priors.EmpiricalNormal(), init_std=0.3)
    optimizer = torch.optim.Adam(net.parameters(), 0.05)
    for _ in range(400):  # the rows are held where they are, and the padding row has only its prior
        optimizer.zero_grad()
        pst.kl(net).backward()
        for p in net.parameters():
            p.grad[2:] = 0
        optimizer.step()
    rows = words.weight[1:].square() + 0.3**2
    expected = (0.5 * (rows.mean() / 0.3**2).log()).double() * 4
    torch.testing.assert_close(pst.kl(net), expected, rtol=1e-3, atol=0)
