"""``fit``: any network, any method, any data → a posterior."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from numbers import Real
from typing import Any

import torch
from torch import nn

from posterity.calling import InputSpec
from posterity.data.dataset import DataSet
from posterity.data.pieces import to_train_on
from posterity.devices import device_order
from posterity.methods.base import Method
from posterity.networks import copied, is_spread
from posterity.padding import padding_rows
from posterity.posteriors import Posterior, WeightPosterior, with_bank
from posterity.posteriors.padding import hold_padding
from posterity.probability import likelihoods
from posterity.probability.likelihoods import Likelihood
from posterity.random import RandomStreams, global_seed
from posterity.run import Run
from posterity.training.checks import (
    check_arguments,
    check_data,
    check_held,
    check_ranks,
    check_single,
    check_statistics,
    refuse_one_class,
)
from posterity.training.config import Callback, Training
from posterity.training.distributed import Ranks, local_device, session
from posterity.training.doctor import check_diversity
from posterity.training.examples import split_off
from posterity.training.loop import Job, train
from posterity.training.progress import Progress, TensorBoard
from posterity.training.stream import Resident, Stream, open_stream
from posterity.types import Batch, Plan, PosterityError

__all__ = ["fit", "fit_next", "fit_one"]

_log = logging.getLogger("posterity")


def fit(
    module: nn.Module | Callable[[], nn.Module],
    method: Method,
    data: Any,
    *,
    likelihood: Likelihood | None = None,
    epochs: int | None = None,
    members: int = 1,
    seed: int = 0,
    training: Training | None = None,
) -> Posterior:
    """Fit a posterior over networks.

    Args:
        module: An ordinary network, which is not changed, or a function that makes one. A single fit starts from its
            weights; several members each start afresh. BatchNorm layers in eval mode, in a network that is in training
            mode, are frozen: they use their statistics and keep them.
        method: How to get the posterior, such as ``MAP()`` or ``SWAG(rank=20)``.
        data: A DataLoader or list of batches, a Dataset, a tuple of tensors (inputs, targets), or a ``DataSet`` (its
            training part).
        likelihood: How targets arise from outputs; None takes Categorical for integer targets and Gaussian with learned
            noise for real ones.
        epochs: Passes over the data; 10 if neither this nor ``training.steps`` is given.
        members: Independent restarts; more than one gives a Mixture.
        seed: All randomness of the fit.
        training: Everything else about the loop.
    """
    training = training or Training()
    check_arguments(method, likelihood, epochs, members, seed, training)
    with _prepared(module, method, data, likelihood, epochs, seed, training) as (job, probe):
        refuse_one_class(job, data.classes if isinstance(data, DataSet) else None)
        if members == 1:
            return fit_one(probe, job)
        from posterity.training.restarts import fit_members  # it needs fit_one

        return fit_members(module, probe, job, members)


def fit_next(
    module: nn.Module,
    method: Method,
    data: Any,
    *,
    likelihood: Likelihood | None,
    epochs: int | None,
    seed: int,
    training: Training,
) -> Posterior:
    """``fit`` of one network to the next of a stream of tasks, in which a class may come alone."""
    check_arguments(method, likelihood, epochs, 1, seed, training)
    with _prepared(module, method, data, likelihood, epochs, seed, training) as (job, probe):
        return fit_one(probe, job)


@contextmanager
def _prepared(
    module: nn.Module | Callable[[], nn.Module],
    method: Method,
    data: Any,
    likelihood: Likelihood | None,
    epochs: int | None,
    seed: int,
    training: Training,
) -> Iterator[tuple[Job, nn.Module]]:
    """The job and the network on its device, while the ranks are open and torch's global generator is forked."""
    seed = int(seed)  # numpy's integers would not go into a file
    device = local_device(training.pick_device())
    with session(device) as ranks, global_seed(seed + ranks.rank, device):
        yield _job(_made(module), method, to_train_on(data), likelihood, epochs, seed, training, ranks, device)


def _made(module: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    """The network itself, or what the function makes."""
    if isinstance(module, nn.Module):
        return module
    try:
        network = module()
    except TypeError as error:
        raise PosterityError(f"the network must be an nn.Module, or make one when called: {error}") from error
    if not isinstance(network, nn.Module):
        raise PosterityError(f"the function must make an nn.Module, got {type(network).__name__}")
    return network


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


def _job(
    module: nn.Module,
    method: Method,
    data: Any,
    likelihood: Likelihood | None,
    epochs: int | None,
    seed: int,
    training: Training,
    ranks: Ranks,
    device: torch.device,
) -> tuple[Job, nn.Module]:
    """Everything that can be known, and refused, before the first step; and the network on its device."""
    held = None
    if isinstance(training.validation, Real):
        data, held = split_off(data, float(training.validation), seed)
    elif training.validation is not None:
        held = training.validation
    stream = open_stream(data, training, seed, ranks, device)
    plain = replace(training, num_data=None, balance=False)
    held_stream = None if held is None else open_stream(held, plain, seed, Ranks(), device)
    first = next(iter(stream.once()))
    if method.squares and first.weights is not None:
        raise PosterityError(
            f"{type(method).__name__} squares the gradient of every example, and with it the example's weight, which "
            "should count once: repeat examples instead"
        )
    if likelihood is None:
        likelihood = likelihoods.infer(first.targets)
        _log.info("likelihood: %s, from the type of the targets (%s)", likelihood, first.targets.dtype)
    probe = probed(module, first, likelihood, stream, device)
    method.check(probe, likelihood, first)
    if held_stream is not None:
        check_held(probe, likelihood, held_stream)
    if stream.smallest // ranks.world == 1:
        check_single(probe, first.inputs)
    steps = int(training.steps or (epochs or 10) * stream.steps_per_epoch)
    plan = Plan(stream.num_data, steps, stream.steps_per_epoch, stream.batch_size, training.algorithm, training.lr)
    order = device_order(probe, first.inputs)
    job = Job(method, likelihood, stream, training, plan, ranks, device, seed, order=order, held=held_stream)
    check_ranks(job, probe)
    return job, probe


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
