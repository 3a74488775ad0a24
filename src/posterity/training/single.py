"""One network, one run, one posterior: what ``fit`` does once, and restarts do for every member."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from posterity.calling import InputSpec
from posterity.networks import copied, is_spread
from posterity.padding import padding_rows
from posterity.posteriors import Posterior, WeightPosterior, with_bank
from posterity.posteriors.padding import hold_padding
from posterity.probability.likelihoods import Likelihood
from posterity.random import RandomStreams
from posterity.run import Run
from posterity.training.checks import check_data, check_statistics
from posterity.training.config import Callback
from posterity.training.doctor import check_diversity
from posterity.training.loop import Job, train
from posterity.training.progress import Progress, TensorBoard
from posterity.training.stream import Resident, Stream
from posterity.types import Batch, PosterityError

__all__ = ["finish", "fit_one", "probed", "shown"]


def fit_one(module: nn.Module, job: Job) -> Posterior:
    """One network, one run, one posterior."""
    run = start(module, job)
    with shown(job, type(job.method).__name__) as callbacks:
        train(run, job, callbacks)
    return finish(run, job)


@contextmanager
def shown(job: Job, title: str) -> Iterator[tuple[Callback, ...]]:
    """Callbacks of a run: progress and TensorBoard, on the one rank that writes, and the user's own."""
    if not job.ranks.writes:
        yield job.training.callbacks
        return
    board = (TensorBoard(str(job.training.tensorboard)),) if job.training.tensorboard else ()
    with Progress(job.training, job.plan.steps / job.plan.steps_per_epoch, title) as progress:
        yield (progress, *board, *job.training.callbacks)


def start(module: nn.Module, job: Job) -> Run:
    """A run at its first step."""
    network = job.method.prepare(module).to(job.device)
    job.ranks.broadcast_([*network.parameters(), *network.buffers()])
    streams = RandomStreams.from_seed(job.seed, job.ranks.rank // job.training.ranks_per_draw, job.device)
    optimizer = job.method.optimizer(network, job.plan, streams)
    collector, padding = job.method.collector(network, job.plan), padding_rows(network)
    run = Run(network, optimizer, collector, job.plan, streams, padding=padding)
    noise = job.likelihood.trainable()
    if noise is not None:
        run.noise = noise.to(job.device)
        run.noise_optimizer = torch.optim.Adam(run.noise.parameters(), lr=0.02)
    return run


def finish(run: Run, job: Job) -> Posterior:
    """Read the posterior off a finished run, with buffers that fit its draws."""
    likelihood = run.noise.frozen() if run.noise is not None else job.likelihood  # type: ignore[operator]
    posterior = job.method.posterior(run, likelihood, job.stream.once())
    hold_padding(posterior, run.padding)
    first = next(iter(job.stream.once()))
    posterior.inputs, posterior.seed = InputSpec.of(first.inputs), job.seed
    posterior.ways = {}  # a method that has predicted with it did so with another seed's draws
    posterior.history = run.history
    if isinstance(posterior, WeightPosterior):
        posterior = with_bank(posterior, job.stream.once())
    check_diversity(posterior, first.inputs)
    return posterior


@torch.no_grad()
def probed(module: nn.Module, batch: Batch, likelihood: Likelihood, stream: Stream, device: torch.device) -> nn.Module:
    """A copy of the network on its device (lazy layers filled in), seen to accept the data."""
    if isinstance(module, torch.jit.ScriptModule):
        raise PosterityError("the network is a compiled script, whose weights cannot be exchanged: give the original")
    if is_spread(module):
        kind = type(module).__name__
        raise PosterityError(f"{kind} wraps a network over devices, which fit does by itself: give its .module")
    network = copied(module).to(device)
    if not any(p.requires_grad for p in network.parameters()):
        raise PosterityError(
            "the network has no parameter to train: none needs a gradient, as in a posterior's own network; give a "
            "copy after requires_grad_(True)"
        )
    check_statistics(network)
    targets = stream.targets if isinstance(stream, Resident) else batch.targets
    check_data(network, batch, likelihood, targets)
    return network
