import os
import socket
import sys

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

import posterity as pst
from posterity.methods.chain import Chain
from posterity.types import PosterityError, PosterityWarning

X = torch.randn(40, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
Y = (X @ torch.tensor([1.0, -2.0], dtype=torch.float64) + 0.5)[:, None]
NOISE, PRIOR = 0.5, 0.3
LIKELIHOOD = pst.likelihoods.Gaussian(std=NOISE)


def linear():
    torch.manual_seed(0)
    return nn.Linear(2, 1, dtype=torch.float64)


def closed_form():
    """Precision and mean of the weights (two slopes and the bias) of Bayesian linear regression."""
    design = torch.cat([X, torch.ones(40, 1, dtype=torch.float64)], dim=1)
    precision = design.T @ design / NOISE**2 + torch.eye(3, dtype=torch.float64) / PRIOR**2
    return precision, torch.linalg.solve(precision, design.T @ Y[:, 0] / NOISE**2)


def sampled(method, steps, seed=0, batch=40, **training):
    config = pst.Training(steps=steps, batch_size=batch, progress=False, **training)
    return pst.fit(linear(), method, (X, Y), likelihood=LIKELIHOOD, seed=seed, training=config)


def states(posterior):
    return torch.stack([torch.cat([w.reshape(-1) for w in point.values()]) for point in posterior.points])


def effective(chain):
    """Effective samples of a chain whose autocorrelation decays geometrically."""
    centred = chain - chain.mean(0)
    lag = ((centred[1:] * centred[:-1]).mean(0) / centred.var(0)).clamp(0, 0.999).max()
    return len(chain) * float((1 - lag) / (1 + lag))


def stationary(transition, noise):
    """The covariance C = transition C transitionᵀ + noise of a linear chain, by iteration."""
    covariance = noise
    for _ in range(2000):
        covariance = transition @ covariance @ transition.T + noise
    return covariance


def assert_samples(chain, mean, covariance, enough):
    n, spread = effective(chain), covariance.diag()
    assert n > enough
    error = ((spread[:, None] * spread[None, :] + covariance.square()) / n).sqrt()
    assert ((chain.mean(0) - mean).abs() < 5 * (spread / n).sqrt()).all()
    assert ((chain.T.cov() - covariance).abs() < 5 * error).all()


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_sgld_by_fit_samples_linear_regression(temperature):
    """N, likelihood and prior in the right units: the law of a Langevin step of this size, to Monte Carlo error."""
    precision, mean = closed_form()
    lr, eye = 0.15, torch.eye(3, dtype=torch.float64)
    method = pst.SGLD(lr=lr, burn_in=50, thin=1, temperature=temperature, prior=pst.priors.Normal(PRIOR))
    chain = states(sampled(method, 3000))
    covariance = stationary(eye - lr * precision / 40, 2 * lr * temperature / 40 * eye)
    assert torch.allclose(covariance, temperature * torch.linalg.inv(precision), rtol=0.8)  # a large step, but near
    assert_samples(chain, mean, covariance, enough=600)


def test_sghmc_by_fit_samples_linear_regression():
    precision, mean = closed_form()
    lr, friction, eye, zero = 0.03, 0.5, torch.eye(3, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64)
    method = pst.SGHMC(lr=lr, friction=friction, burn_in=100, thin=3, prior=pst.priors.Normal(PRIOR))
    chain = states(sampled(method, 4000))
    velocity = torch.cat([-lr * precision / 40, (1 - friction) * eye], dim=1)
    transition = torch.cat([torch.cat([eye, zero], dim=1) + velocity, velocity])
    noise = torch.kron(2 * friction * lr / 40 * torch.ones(2, 2, dtype=torch.float64), eye)
    assert_samples(chain, mean, stationary(transition, noise)[:3, :3], enough=150)


@pytest.mark.parametrize("method", [pst.SGLD(lr=0.01), pst.PSGLD(lr=0.01), pst.SGHMC(lr=0.01)])
def test_a_killed_chain_resumes_to_the_bit(method, tmp_path):
    whole = states(sampled(method, 40, batch=8))
    path = tmp_path / "run.ckpt"

    class Kill:
        def on_epoch(self, run, figures):
            if run.step == 25:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sampled(method, 40, batch=8, checkpoint=path, checkpoint_every=6, callbacks=(Kill(),))
    resumed = states(sampled(method, 40, batch=8, checkpoint=path, checkpoint_every=6, resume=True))
    assert torch.equal(whole, resumed)


@pytest.mark.filterwarnings("ignore::posterity.types.PosterityWarning")
@pytest.mark.parametrize(
    ("burn_in", "thin", "kept"), [(10, 5, 6), (0.5, 5, 4), ("epoch", "epoch", 7), (0, 1, 40), (0.5, None, 20)]
)
def test_burn_in_and_thinning_count_steps_and_epochs(burn_in, thin, kept):
    assert sampled(pst.SGLD(lr=0.01, burn_in=burn_in, thin=thin), 40, batch=8).distinct == kept


def test_few_samples_are_a_symptom():
    with pytest.warns(PosterityWarning, match="gave 4 samples only"):
        sampled(pst.SGLD(lr=0.1, burn_in=0.5, thin=5), 40, batch=8)


def test_samples_on_disk_are_the_samples_in_memory(tmp_path):
    memory = sampled(pst.SGLD(lr=0.05, thin=1), 40)
    disk = sampled(pst.SGLD(lr=0.05, thin=1, folder=tmp_path / "chain"), 40)
    assert torch.equal(states(memory), states(disk))
    (file,) = (tmp_path / "chain").iterdir()
    assert file.stat().st_size == 20 * 3 * 8
    torch.testing.assert_close(memory.predict(X, draws=20).mean, disk.predict(X, draws=20).mean)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot take room without writing to it")
def test_the_room_for_samples_on_disk_is_taken_at_the_start(tmp_path):
    """Where it ran out in the middle, the kernel killed the process, without a traceback."""
    Chain(linear(), lambda step: True, 100_000, tmp_path / "chain")
    (file,) = (tmp_path / "chain").iterdir()
    assert file.stat().st_blocks * 512 >= 100_000 * 3 * 8  # a file of holes has none
    with pytest.raises(PosterityError, match="full has no room for a chain of 24,000,000,000,000,000 bytes"):
        sampled(pst.SGLD(thin=1, burn_in=0, folder=tmp_path / "full"), 10**15)
    assert not list((tmp_path / "full").iterdir())


def test_a_folder_for_samples_that_cannot_be_one_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(PosterityError, match="file/chain cannot be written to: Not a directory"):
        sampled(pst.SGLD(lr=0.05, thin=1, folder=tmp_path / "file" / "chain"), 40)


def test_each_sample_gets_batchnorm_statistics_of_its_own():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    training = pst.Training(steps=40, batch_size=20, progress=False)
    posterior = pst.fit(module, pst.SGLD(lr=0.01, thin=2), (X, Y), likelihood=LIKELIHOOD, training=training)
    for params, buffers in posterior.samples(3):
        hidden = nn.functional.linear(X, params["0.weight"], params["0.bias"])
        expected = torch.stack([part.mean(0) for part in hidden.split(20)]).mean(0)
        torch.testing.assert_close(buffers["1.running_mean"], expected)


def test_a_chain_that_still_moves_is_a_symptom():
    with pytest.warns(PosterityWarning, match="the chain has not settled: its training loss fell from"):
        sampled(pst.SGLD(lr=1e-4, burn_in=10, thin=1, temperature=0.0), 50)


def test_the_step_can_be_scheduled():
    pace = pst.SGLD(lr_schedule="linear", temperature=0.5).schedule(_plan())
    assert pace.lr(0) == 1.0
    assert pace.lr(50) == pytest.approx(0.5)
    assert pace.temperature(7) == 0.5


@pytest.mark.filterwarnings("ignore::posterity.types.PosterityWarning")
def test_a_prior_without_ridge_comes_in_through_the_loss():
    prior, module = pst.priors.Laplace(0.1), linear()
    chain = states(sampled(pst.SGLD(lr=0.05, burn_in=0, thin=1, temperature=0.0, prior=prior), 12))
    for expected in chain:
        module.zero_grad()
        loss = -LIKELIHOOD.log_prob(module(X), Y).mean() + sum(p.abs().sum() for p in module.parameters()) / 0.1 / 40
        loss.backward()
        with torch.no_grad():
            for p in module.parameters():
                p.sub_(0.05 * p.grad)
        got = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore:the chain has not settled")
@pytest.mark.parametrize(("method", "most"), [(pst.SGLD, 2.0), (pst.SGHMC, 2 * (2 - 0.1))])
def test_a_prior_too_narrow_for_the_steps_is_refused_before_training(method, most):
    """The loss became NaN after some steps, with the advice to clip gradients, which a prior does not pass through."""
    x, std = torch.eye(2).repeat(25, 1) * torch.tensor([1.0, 0.0]), 1e-3  # the prior alone moves the second weight
    prior = pst.priors.Normal({"weight": torch.tensor([[1.0, std]])}, {"weight": torch.zeros(1, 2)})

    def run(share):
        sampler = method(lr=share * most * 50 * std**2, temperature=0.0, prior=prior, burn_in=0, thin=1)
        loop = pst.Training(steps=400, progress=False)
        network = nn.Linear(2, 1, bias=False)
        return pst.fit(network, sampler, (x, x[:, :1]), likelihood=pst.likelihoods.Gaussian(1.0), training=loop)

    assert float(run(0.95).points[-1]["weight"][0, 1].abs()) < 1e-3
    with pytest.raises(PosterityError, match=r"prior holds weights of weight to a std of 0.001, .* take an lr below"):
        run(1.05)


def test_the_prior_of_a_point_among_others_is_refused_not_learned_to_nan():
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    x[:, 2], loop = 0.0, pst.Training(steps=60, progress=False)  # the data say nothing of the last weight
    snapshots = pst.fit(nn.Linear(3, 2), pst.Snapshot(), (x, (x[:, 0] > 0).long()), training=loop)
    prior = pst.priors.from_posterior(snapshots)
    assert float(prior.at("weight").std.min()) < 1e-2
    with pytest.raises(PosterityError, match="steps of lr=5 diverge"):
        pst.fit(nn.Linear(3, 2), pst.SGLD(prior=prior, lr=5.0), (x, (x[:, 1] > 0).long()), training=loop)


def test_what_cannot_work_is_refused():
    with pytest.raises(PosterityError, match="lr must be positive"):
        pst.SGLD(lr=0.0)
    for temperature in (-1.0, float("nan")):
        with pytest.raises(PosterityError, match="temperature"):
            pst.SGHMC(temperature=temperature)
    with pytest.raises(PosterityError, match="samples would come"):
        sampled(pst.SGLD(burn_in=39, thin=1), 40)
    with pytest.raises(PosterityError, match="thin must be a positive number"):
        sampled(pst.SGLD(thin=0), 40)
    with pytest.raises(PosterityError, match="burn_in=50 falls outside a run of 40 steps"):
        sampled(pst.SGLD(burn_in=50, thin=1), 40)
    with pytest.raises(PosterityError, match="the sampler has lr="):
        sampled(pst.SGLD(lr=0.1), 40, lr=0.2)


def _plan():
    return pst.types.Plan(40, 100, 10, 4, None, 0.1)


def _rank(rank, port, path):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    posterior = sampled(pst.SGHMC(lr=0.01, burn_in=0, thin=1), 30, batch=8, device="cpu")
    torch.save(states(posterior), f"{path}.{rank}")


def test_two_ranks_keep_one_chain(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(_rank, (port, tmp_path / "chain"), nprocs=2)
    first, second = (torch.load(tmp_path / f"chain.{rank}") for rank in range(2))
    alone = states(sampled(pst.SGHMC(lr=0.01, burn_in=0, thin=1), 30, batch=8, device="cpu"))
    assert torch.equal(first, second)
    torch.testing.assert_close(first, alone, rtol=1e-10, atol=1e-12)
