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

from posterity.data.dataset import DataSet
from posterity.data.pieces import to_train_on
from posterity.devices import device_order
from posterity.methods.base import Method
from posterity.posteriors import Posterior
from posterity.probability import likelihoods
from posterity.probability.likelihoods import Likelihood
from posterity.random import global_seed
from posterity.training.checks import (
    check_arguments,
    check_held,
    check_ranks,
    check_single,
    refuse_one_class,
)
from posterity.training.config import Training
from posterity.training.distributed import Ranks, local_device, session
from posterity.training.examples import split_off
from posterity.training.loop import Job
from posterity.training.restarts import fit_members
from posterity.training.single import fit_one, probed
from posterity.training.stream import Stream, open_stream
from posterity.types import Plan, PosterityError

__all__ = ["fit", "fit_next"]

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
    stream, held = _streams(data, training, seed, ranks, device)
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
    if held is not None:
        check_held(probe, likelihood, held)
    if stream.smallest // ranks.world == 1:
        check_single(probe, first.inputs)
    steps = int(training.steps or (epochs or 10) * stream.steps_per_epoch)
    plan = Plan(stream.num_data, steps, stream.steps_per_epoch, stream.batch_size, training.algorithm, training.lr)
    order = device_order(probe, first.inputs)
    job = Job(method, likelihood, stream, training, plan, ranks, device, seed, order=order, held=held)
    check_ranks(job, probe)
    return job, probe


def _streams(
    data: Any, training: Training, seed: int, ranks: Ranks, device: torch.device
) -> tuple[Stream, Stream | None]:
    """The data to train on, and those to validate by: held out of them, or given beside them."""
    validation = training.validation
    if isinstance(validation, Real):
        data, validation = split_off(data, float(validation), seed)
    stream = open_stream(data, training, seed, ranks, device)
    if validation is None:
        return stream, None
    plain = replace(training, num_data=None, balance=False)
    return stream, open_stream(validation, plain, seed, Ranks(), device)
