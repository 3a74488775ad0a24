"""SparseVD, ARD and GroupSparse: what they keep, when, and that compress can use it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import posterity as pst
from posterity.layers.sparse import Phase
from posterity.methods.sparse_vd import Phases
from posterity.optim.config import OptimizerConfig
from posterity.types import Plan


def data(n: int = 512) -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes by the first two of twenty inputs; the others are noise."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 20, generator=g)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))


def fitted(method: pst.SparseVD, epochs: int = 60, **training) -> pst.WeightPosterior:
    options = pst.Training(batch_size=64, lr=0.02, progress=False, **training)
    return pst.fit(network, method, data(), epochs=epochs, training=options)


METHODS = {
    "sparse-vd": pst.SparseVD(clip_start=0.5),
    "ard": pst.ARD(clip_start=0.5),
    "group-sparse": pst.GroupSparse(clip_start=0.5),
    "group-sparse, log-uniform": pst.GroupSparse(prior=pst.priors.LogUniform()),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_inputs_that_say_nothing_go_and_the_network_still_knows(method):
    q = fitted(method)
    x, y = data()
    first = q.mean()["0.weight"]
    used = (first != 0).any(0)
    assert used[:2].all()
    assert used[2:].sum() <= 4  # of 18 that carry nothing
    assert (q.predict(x).label == y).float().mean() > 0.95
    gone = first == 0
    assert (q.variance()["0.weight"][gone] == 0).all() and (q.variance()["0.weight"][~gone] > 0).all()
    last = q.history[-1]
    assert last["sparsity 0.weight"] == pytest.approx(gone.float().mean().item())
    total = torch.cat([q.mean()[n].flatten() == 0 for n in ("0.weight", "2.weight")]).float().mean().item()
    assert last["sparsity"] == pytest.approx(total)
    assert total > 0.6


@pytest.mark.parametrize(
    "method",
    [pst.SparseVD(clip_start=0.5), pst.SparseVD(threshold=5.0), pst.GroupSparse()],
    ids=["at log alpha 3", "at 5", "by units, whose weights may be noise"],
)
def test_compress_takes_what_is_gone_out_and_no_more(method):
    q = fitted(method, epochs=40)
    small = pst.compress(q, example=data()[0][:4])
    x = data()[0][:50]
    torch.testing.assert_close(small(x), q.module(x), atol=1e-5, rtol=1e-5)
    left = sum(int((q.mean()[name] != 0).sum()) for name in ("0.weight", "2.weight"))
    assert small.compression.ratio == pytest.approx(352 / left)


def test_schedule_of_rate_and_kl():
    plan = Plan(1000, 200, 10, 100, OptimizerConfig())
    method = pst.SparseVD(finetune=0.2, decay_start=0.5, kl_schedule=pst.methods.tempering.LinearKL(0.1, 0.1))
    pace = method.schedule(plan)
    assert [pace.lr(s) for s in (0, 79, 80, 120, 159)] == pytest.approx([1, 1, 1, 0.5, 0.0125])
    assert [pace.lr(s) for s in (160, 180, 199)] == pytest.approx([0.3, 0.15, 0.0075])
    assert [pace.temperature(s) for s in (0, 20, 30, 40, 159, 160)] == pytest.approx([0, 0, 0.5, 1, 1, 0])


def test_phases_begin_after_their_steps():
    plan = Plan(1000, 200, 10, 100, OptimizerConfig())
    collector = pst.SparseVD(clip_start=0.3, finetune=0.1).collector(nn.Linear(1, 1), plan)
    assert isinstance(collector, Phases)
    assert collector.starts == {180: Phase.FROZEN, 60: Phase.CLIPPED}
    at_once = pst.SparseVD(clip_start=0.0, finetune=0.0).collector(nn.Linear(1, 1), plan)
    assert at_once.starts == {1: Phase.CLIPPED}  # looked at after each step, so that 0 would be never
    together = pst.SparseVD(clip_start=0.8999, finetune=0.1).collector(nn.Linear(1, 1), plan)
    assert together.starts == {180: Phase.FROZEN}
    assert pst.SparseVD(finetune=0.0).collector(nn.Linear(1, 1), plan).starts == {}


def test_random_labels_leave_nothing_and_the_doctor_says_so():
    x, _ = data(256)
    y = torch.randint(2, (256,), generator=torch.Generator().manual_seed(1))
    with pytest.warns(pst.PosterityWarning) as said:
        q = pst.fit(
            network,
            pst.SparseVD(clip_start=0.3, kl_schedule="constant"),
            (x, y),
            epochs=80,
            training=pst.Training(batch_size=64, lr=0.03, progress=False),
        )
    assert any("every weight is gone" in str(w.message) for w in said)
    assert all((q.mean()[name] == 0).all() for name in ("0.weight", "2.weight"))


def test_recurrent_and_embedding_weights_can_go():
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.rnn, self.out = nn.Embedding(7, 6), nn.GRU(6, 5, batch_first=True), nn.Linear(5, 2)

        def forward(self, tokens):
            return self.out(self.rnn(self.words(tokens))[0][:, -1])

    tokens = torch.randint(7, (64, 4), generator=torch.Generator().manual_seed(0))
    q = pst.fit(
        Reader,
        pst.SparseVD(),
        (tokens, (tokens[:, -1] > 3).long()),
        epochs=3,
        training=pst.Training(progress=False, batch_size=16),
    )
    assert {name for name, v in q.variance().items() if v.any()} == {
        "words.weight",
        "rnn.weight_ih_l0",
        "rnn.weight_hh_l0",
        "out.weight",
    }


@pytest.mark.parametrize(
    "options",
    [{"clip_start": 0.95}, {"finetune": 1.0}, {"estimator": "flipout"}, {"family": "full"}, {"init_std": 0.0}],
)
def test_bad_hyper_parameters(options):
    with pytest.raises(pst.PosterityError):
        pst.SparseVD(**options)


def test_the_mean_log_alpha_is_of_all_weights():
    """Drawn ones (an embedding's) and those that enter by activations lie in different blocks."""
    seen = []

    class Look:
        def on_epoch(self, run, figures):
            seen.append((figures["log_alpha"], [block.log_alpha() for block in run.module.blocks]))

    words = torch.randint(0, 5, (30, 4), generator=torch.Generator().manual_seed(0))
    net = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 2))
    training = pst.Training(progress=False, callbacks=(Look(),))
    pst.fit(net, pst.SparseVD(), (words, words[:, 0] % 2), epochs=1, training=training)
    mean, each = seen[0]
    assert len(each) == 2
    assert mean == pytest.approx(float(torch.cat(each).mean()))


def test_early_stopping_waits_until_weights_have_gone():
    x, y = data(64)
    posterior = fitted(pst.SparseVD(), validation=(x, 1 - y), patience=1)
    assert 54 + 1 <= len(posterior.history) <= 60  # fine-tuning begins after 54 epochs
    assert posterior.history[-1]["sparsity"] > 0.5


@pytest.mark.parametrize("method", [pst.SparseVD, pst.ARD, pst.GroupSparse])
def test_a_threshold_that_is_no_number_is_refused(method):
    """No log alpha lies below NaN, and every weight went."""
    with pytest.raises(pst.PosterityError, match="threshold must be a number, got nan"):
        method(threshold=float("nan"))
