"""Learning from a plain stream: yesterday's posterior is today's prior, batch by batch, with a file in between."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from posterity.continual.heads import next_network
from posterity.methods import Method
from posterity.posteriors import Posterior, WeightPosterior, load, save
from posterity.probability.likelihoods import Likelihood
from posterity.probability.priors import Normal, from_posterior
from posterity.training.config import Training
from posterity.training.fit import fit_next
from posterity.types import PosterityError

__all__ = ["carry_on", "online"]

SEED_STRIDE = 7919  # a prime, between the seeds of two batches or tasks


def online(
    module: nn.Module,
    method: Method,
    batches: Iterable[Any],
    *,
    path: str | Path | None = None,
    posterior: WeightPosterior | None = None,
    likelihood: Likelihood | None = None,
    temperature: float = 1.0,
    epochs: int | None = None,
    seed: int = 0,
    training: Training | None = None,
) -> WeightPosterior:
    """Learn from one batch of data after another; the posterior after the last.

    A stream that stops half-way goes on from its file as if it had not stopped. Whatever a batch has wrong with it, the
    file holds the posterior after the batch before.

    Args:
        module: An ordinary network, which is not changed.
        method: How each batch is learned; its prior is that of the first.
        batches: Pairs of tensors (inputs, targets), Datasets, or loaders.
        path: The posterior's file: read first if it is there, written after every batch.
        posterior: Where to go on from, instead of a file.
        likelihood: How targets arise from outputs; None takes it from the type of the targets.
        temperature: Of the carried prior: above 1 it forgets, at infinity all of it.
        epochs: Passes over each batch.
        seed: All randomness of the first batch; each next has another.
        training: Everything else about each fit.
    """
    if path is not None and posterior is None and Path(path).exists():
        posterior = weights_of(load(path, module))
    network, own = module, method.carrying(method.prior)
    training = training or Training()
    for data in batches:
        if posterior is not None:
            network, own = carry_on(module, method, posterior, temperature)
            seed = posterior.seed + SEED_STRIDE
        posterior = weights_of(
            fit_next(
                network,
                own,
                data,
                likelihood=likelihood,
                epochs=None if training.steps else epochs,
                seed=seed,
                training=replace(training, checkpoint=None, resume=False),
            )
        )
        if path is not None:
            save(posterior, path)
    if posterior is None:
        raise PosterityError("the stream has no batch, and there is no posterior to go on from")
    return posterior


def carry_on(
    module: nn.Module, method: Method, posterior: WeightPosterior, temperature: float = 1.0
) -> tuple[nn.Module, Method]:
    """The network at the posterior's mean, and the method with the posterior as its prior.

    Args:
        module: A network of the posterior's architecture.
        method: What comes next; its own prior is that of weights without a variance.
        posterior: What is known.
        temperature: Of the carried prior.
    """
    if not isinstance(method.prior, Normal):
        raise PosterityError(f"learning that goes on starts from a Normal prior, got {method.prior!r}")
    prior = from_posterior(posterior, method.prior, temperature)
    stds = {name: variance.sqrt() for name, variance in posterior.variance().items()}
    return next_network(module, posterior, {}), method.carrying(prior, stds)


def weights_of(posterior: Posterior) -> WeightPosterior:
    """The posterior, if it is one over weights."""
    if not isinstance(posterior, WeightPosterior):
        raise PosterityError(f"{type(posterior).__name__} is no distribution over weights, and cannot be carried on")
    return posterior
