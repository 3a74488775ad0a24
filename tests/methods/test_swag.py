import copy

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import posterity as pst
from posterity.methods.collect import Snapshots
from posterity.optim.config import OptimizerConfig
from posterity.posteriors import DiagonalGaussian, Empirical, LowRankGaussian
from posterity.training.stream import Resident
from posterity.types import Plan, PosterityError, PosterityWarning

DATA_SEED = torch.Generator().manual_seed(5)
X = torch.randn(60, 3, generator=DATA_SEED)
Y = (X.sum(1) > 0).long()
QUICK = pst.Training(batch_size=20, optimizer="sgd", lr=0.1, progress=False)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def plan(steps=100, per_epoch=10, lr=0.05):
    return Plan(60, steps, per_epoch, 20, OptimizerConfig("sgd"), lr)


def collected(rank, snapshots, module=None):
    """A SWAGCollector after a random walk, and the stack of what it saw."""
    module = (module or network()).double()
    collector = pst.SWAGCollector(module, rank=rank)
    generator = torch.Generator().manual_seed(1)
    seen = []
    for _ in range(snapshots):
        with torch.no_grad():
            for p in module.parameters():
                p.add_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
        collector.collect()
        seen.append(torch.cat([p.detach().reshape(-1) for p in module.parameters()]))
    return collector, torch.stack(seen)


@pytest.mark.parametrize(("rank", "snapshots"), [(4, 9), (8, 5)])
def test_draws_have_the_covariance_of_the_paper_across_tensors_and_below_full_rank(rank, snapshots):
    collector, seen = collected(rank, snapshots)
    posterior = collector.posterior(pst.likelihoods.Categorical())
    assert isinstance(posterior, LowRankGaussian)
    columns = torch.stack([seen[n] - seen[: n + 1].mean(0) for n in range(snapshots)])[-rank:]
    stored = min(rank, snapshots)
    variance = seen.var(0, correction=0)
    expected = 0.5 * (variance.diag() + columns.T @ columns / (stored - 1))
    generator, draws = torch.Generator().manual_seed(2), 200_000
    samples = torch.stack([posterior.q.sample(generator) for _ in range(draws)])
    spread = expected.diag()
    error = ((spread[:, None] * spread[None, :] + expected.square()) / draws).sqrt()
    assert ((samples.T.cov() - expected).abs() < 5 * error).all()
    assert ((samples.mean(0) - seen.mean(0)).abs() < 5 * (spread / draws).sqrt()).all()
    across = expected[:12, 12:]  # the first weight matrix against everything after it
    assert (across.abs() > 20 * error[:12, 12:]).any()  # so the check above saw correlations between tensors


def test_rank_zero_is_a_diagonal_gaussian_with_the_whole_variance():
    collector, seen = collected(0, 7)
    posterior = collector.posterior(pst.likelihoods.Categorical())
    assert isinstance(posterior, DiagonalGaussian)
    torch.testing.assert_close(posterior.q.variance(), seen.var(0, correction=0))
    torch.testing.assert_close(posterior.q.mean, seen.mean(0))


def test_a_posterior_stays_when_the_loop_goes_on():
    collector, _ = collected(3, 5)
    posterior = collector.posterior(pst.likelihoods.Categorical())
    before = copy.deepcopy(posterior.q)
    with torch.no_grad():
        for p in collector.module.parameters():
            p.add_(1.0)
    collector.collect()
    assert torch.equal(posterior.q.deviations, before.deviations)
    assert torch.equal(posterior.q.mean, before.mean)


def test_swag_by_fit_is_the_collector_in_ones_own_loop():
    """The same path, watched from outside through a callback."""
    seen = []

    class Watch:
        def on_epoch(self, run, figures):
            seen.append(torch.cat([p.detach().reshape(-1) for p in run.module.parameters()]))

    method = pst.SWAG(rank=3, start=0.5, every="epoch")
    training = pst.Training(batch_size=20, optimizer="sgd", lr=0.1, progress=False, callbacks=(Watch(),))
    posterior = pst.fit(network(), method, (X, Y), epochs=20, training=training)
    path = torch.stack(seen)[10:].double()
    torch.testing.assert_close(posterior.q.mean.double(), path.mean(0), rtol=1e-5, atol=1e-6)
    expected = path.var(0, correction=0) / 2
    torch.testing.assert_close(posterior.q.std.double().square(), expected, rtol=1e-4, atol=1e-10)
    assert posterior.q.deviations.shape[0] == 3
    assert posterior.q.scale == pytest.approx(0.5)


def test_swa_is_the_average():
    seen = []

    class Watch:
        def on_epoch(self, run, figures):
            seen.append(torch.cat([p.detach().reshape(-1) for p in run.module.parameters()]))

    training = pst.Training(batch_size=20, optimizer="sgd", lr=0.1, progress=False, callbacks=(Watch(),))
    posterior = pst.fit(network(), pst.SWA(start=0.25, every="epoch"), (X, Y), epochs=8, training=training)
    assert isinstance(posterior, Empirical)
    flat = torch.cat([w.reshape(-1) for w in posterior.mean().values()])
    torch.testing.assert_close(flat, torch.stack(seen)[2:].mean(0), rtol=1e-5, atol=1e-6)


def test_the_rate_is_constant_then_a_line_then_constant():
    pace = pst.SWAG(rank=2, start=0.5, every="epoch", lr=0.01).schedule(plan())
    rates = [0.05 * pace.lr(step) for step in range(100)]
    assert rates[0] == rates[25] == pytest.approx(0.05)
    assert rates[35] == pytest.approx(0.03)  # halfway between ½ and 0.9 of the start at step 50
    assert [rates[45], rates[50], rates[99]] == pytest.approx([0.01] * 3)
    assert all(pace.temperature(step) == 1.0 for step in (0, 50, 99))


def test_the_cyclical_rate_is_lowest_where_snapshots_are_taken():
    method = pst.SWA(start=0.5, every=10, lr=0.02, end_lr=0.002)
    pace, times = method.schedule(plan()), method.times(plan())
    for step in range(50, 100):
        rate = 0.05 * pace.lr(step)
        if times(step + 1):
            assert rate == pytest.approx(0.002)
        if times(step) or step == 50:
            assert rate == pytest.approx(0.02)


def test_a_short_run_still_fills_its_rank():
    times = pst.SWAG(rank=20).times(plan(steps=100, per_epoch=10))
    assert times.count(100) >= 20
    assert pst.SWAG(rank=20).times(plan(steps=1000, per_epoch=10)).every == 10  # a long one goes by epochs


def test_every_draw_has_the_batchnorm_statistics_of_a_plain_full_pass():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    posterior = pst.fit(module, pst.SWAG(rank=3), (X, Y), epochs=8, training=QUICK)
    seen = torch.cat([batch.inputs for batch in Resident(X, Y, 20, posterior.seed).once()])
    for params, buffers in posterior.samples(4):
        hidden = nn.functional.linear(seen, params["0.weight"], params["0.bias"])
        means = torch.stack([part.mean(0) for part in hidden.split(20)])
        variances = torch.stack([part.var(0) for part in hidden.split(20)])
        torch.testing.assert_close(buffers["1.running_mean"], means.mean(0))
        torch.testing.assert_close(buffers["1.running_var"], variances.mean(0))


def test_swa_refreshes_batchnorm_for_its_average():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    posterior = pst.fit(module, pst.SWA(), (X, Y), epochs=8, training=QUICK)
    ((params, buffers),) = posterior.samples(1)
    hidden = nn.functional.linear(X, params["0.weight"], params["0.bias"])
    expected = torch.stack([part.mean(0) for part in hidden.split(20)]).mean(0)
    torch.testing.assert_close(buffers["1.running_mean"], expected)


def test_other_running_buffers_are_reported():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("constant", torch.ones(()))

        def forward(self, x):
            if self.training:
                self.calls += 1
            return self.linear(x)

    with pytest.warns(PosterityWarning, match="buffer 'calls' changes") as caught:
        pst.fit(Counting(), pst.SWA(), (X, Y), epochs=6, training=QUICK)
    assert not any("constant" in str(w.message) for w in caught)


def test_few_snapshots_are_a_symptom():
    with pytest.warns(PosterityWarning, match="comes from 4 snapshots only"):
        pst.fit(network(), pst.SWAG(rank=2, start=0.5, every="epoch"), (X, Y), epochs=8, training=QUICK)


def test_frozen_parameters_keep_their_value():
    module = network()
    module[0].requires_grad_(False)
    posterior = pst.fit(module, pst.SWAG(rank=3), (X, Y), epochs=8, training=QUICK)
    assert torch.equal(posterior.sample()["0.weight"], module[0].weight)
    assert not torch.equal(posterior.sample()["2.weight"], posterior.mean()["2.weight"])


def test_a_collector_follows_weights_frozen_later_and_refuses_those_unfrozen():
    module = network()
    collector = pst.SWAGCollector(module, rank=3)
    collector.collect()
    module[0].requires_grad_(False)
    with torch.no_grad():
        module[2].weight.add_(1.0)
    collector.collect()
    variance = collector.posterior(pst.likelihoods.Categorical()).variance()
    torch.testing.assert_close(variance["0.weight"], torch.zeros_like(module[0].weight))
    assert (variance["2.weight"] > 0.1).all()
    later = pst.SWAGCollector(module, rank=3)
    module[0].requires_grad_(True)
    with pytest.raises(PosterityError, match=r"0\.weight was frozen"):
        later.collect()
    with pytest.raises(PosterityError, match="another network or rank"):
        later.load_state_dict(collector.state_dict())


@pytest.mark.parametrize("deviations", ["half", "cpu"])
def test_deviations_in_half_precision_or_in_main_memory_give_the_same_gaussian(deviations):
    full = pst.fit(network(), pst.SWAG(rank=4), (X, Y), epochs=8, training=QUICK)
    other = pst.fit(network(), pst.SWAG(rank=4, deviations=deviations), (X, Y), epochs=8, training=QUICK)
    assert torch.equal(full.q.mean, other.q.mean)
    torch.testing.assert_close(other.q.deviations.float(), full.q.deviations, rtol=1e-2, atol=1e-5)
    first, second = full.sample(), other.sample()
    for name in first:
        torch.testing.assert_close(second[name], first[name], rtol=1e-2, atol=1e-3)


def test_a_network_in_bfloat16_gives_a_posterior_in_single_precision():
    collector, _ = collected(3, 5)
    module = network().bfloat16()
    collector = pst.SWAGCollector(module, rank=3)
    for _ in range(3):
        with torch.no_grad():
            module[0].weight.add_(0.5)
        collector.collect()
    posterior = collector.posterior(pst.likelihoods.Categorical())
    assert posterior.q.mean.dtype == torch.float32
    assert posterior.predict(X, draws=2).probs.dtype == torch.float32


def test_saved_and_loaded_it_draws_the_same(tmp_path):
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    posterior = pst.fit(module, pst.SWAG(rank=3), (X, Y), epochs=8, training=QUICK)
    pst.save(posterior, tmp_path / "swag.safetensors")
    again = pst.load(tmp_path / "swag.safetensors", module)
    for one, other in zip(posterior.draws(8), again.draws(8), strict=True):
        assert torch.equal(one(X), other(X))


def test_collectors_resume_in_ones_own_loop():
    whole, seen = collected(4, 9)
    part, _ = collected(4, 5)
    later = pst.SWAGCollector(network().double(), rank=4)
    later.load_state_dict(part.state_dict())
    for vector in seen[5:]:
        nn.utils.vector_to_parameters(vector, later.module.parameters())
        later.collect()
    a, b = (c.posterior(pst.likelihoods.Categorical()).q for c in (whole, later))
    assert torch.equal(a.mean, b.mean)
    assert torch.equal(a.std, b.std)
    assert torch.equal(a.deviations, b.deviations)


@pytest.mark.parametrize(
    ("method", "epochs", "sentence"),
    [
        (pst.SWAG(rank=20, every="epoch"), 10, "rank=20 deviations are to be kept, but only 5 snapshots will come"),
        (pst.SWA(every="epoch", start=0.9), 10, "1 snapshots would come"),
        (pst.SWA(start=500), 10, "start=500 falls outside a run of 30 steps"),
        (pst.SWA(start=1.0), 10, "falls outside"),
    ],
)
def test_what_cannot_work_is_refused_before_training(method, epochs, sentence):
    with pytest.raises(PosterityError, match=sentence):
        pst.fit(network(), method, (X, Y), epochs=epochs, training=QUICK)


def test_bad_hyper_parameters_are_refused():
    for wrong in ({"rank": 1}, {"rank": -1}, {"rank": 2.5}, {"rank": 2, "lr": 0.0}, {"deviations": "disk"}):
        with pytest.raises(PosterityError):
            pst.SWAG(**wrong)
    with pytest.raises(PosterityError, match="at least 2 deviations, got 1"):
        pst.SWAGCollector(network(), rank=1)
    collector, _ = collected(2, 3)
    for wrong in (pst.likelihoods.Categorical, [], None):  # the class, exchanged arguments, nothing
        with pytest.raises(PosterityError, match=r"the likelihood must be one such as .* got"):
            collector.posterior(wrong, pst.likelihoods.Categorical())
    with pytest.raises(PosterityError, match="snapshots were collected"):
        pst.SWAGCollector(network()).posterior(pst.likelihoods.Categorical())
    normed = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    collector = pst.SWAGCollector(normed, rank=2)
    collector.collect()
    collector.collect()
    with pytest.raises(PosterityError, match="give a loader"):
        collector.posterior(pst.likelihoods.Categorical())
    with pytest.raises(PosterityError, match="a Dataset gives single examples: use a DataLoader"):
        collector.posterior(pst.likelihoods.Categorical(), TensorDataset(torch.randn(8, 3), torch.zeros(8)))


def test_the_collector_is_snapshots_of_the_asked_rank():
    collector = pst.SWAG(rank=5).collector(network(), plan())
    assert isinstance(collector, Snapshots)
    assert collector.trajectory.rank == 5
