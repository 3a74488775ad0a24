"""What ``fit`` refuses before the first step, in a sentence each: arguments, data, networks that do not fit them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import torch
from torch import Tensor, nn

from posterity.calling import InputSpec, batch_shape, call, check_finite, map_inputs, tensors_of
from posterity.curvature.squared import check_is_mean
from posterity.methods.base import Method
from posterity.networks import copied, is_batchnorm, train_mode
from posterity.probability.likelihood import Likelihood, before_training, check_likelihood
from posterity.probability.priors import check_prior
from posterity.random import global_seed
from posterity.training.config import Training
from posterity.training.doctor import check_logits
from posterity.training.loop import Job
from posterity.training.stream import Resident, Stream
from posterity.types import Batch, Inputs, PosterityError, check_whole

__all__ = [
    "check_arguments",
    "check_data",
    "check_held",
    "check_ranks",
    "check_single",
    "check_statistics",
    "refuse_one_class",
]


def refuse_one_class(job: Job, classes: Sequence[str] | None) -> None:
    """Refuse classes that are all the same, as far as all are known; by name, where they have ``classes``."""
    targets = job.stream.targets if isinstance(job.stream, Resident) else None
    if targets is not None and job.likelihood.classifies and bool((targets == targets.flatten()[0]).all()):
        one = int(targets.flatten()[0])
        name = one if classes is None else repr(classes[one])
        raise PosterityError(f"all targets are class {name}: there is nothing to learn from one class")


def check_statistics(network: nn.Module) -> None:
    """Refuse a network whose predictions depend on how inputs are cut into batches."""
    for name, layer in network.named_modules():
        if is_batchnorm(layer) and layer.running_mean is None:
            raise PosterityError(
                f"{name or 'the network'} ({type(layer).__name__}) has no running statistics, so that what is "
                "predicted for an input would depend on the others beside it: make it with track_running_stats=True"
            )


@torch.no_grad()
def check_data(network: nn.Module, batch: Batch, likelihood: Likelihood, targets: Tensor) -> None:
    """Refuse inputs that the network cannot take or that it writes into, and targets that do not fit its outputs."""
    check_finite(batch.inputs)
    if batch.weights is not None and not bool((batch.weights >= 0).all()):
        raise PosterityError(f"weights of examples must not be negative, got {float(batch.weights.min())!r}")
    mode = network.training
    network.eval()
    inputs = map_inputs(batch.inputs, torch.clone)
    try:
        outputs = call(network, inputs)
    except (RuntimeError, TypeError, IndexError) as error:
        spec = InputSpec.of(batch.inputs)
        seen = f"inputs of shape {batch_shape(spec.shapes[0])} and type {spec.dtypes[0]}"
        raise PosterityError(f"the network cannot take {seen}: {error}") from error
    finally:
        network.train(mode)
    if not all(map(torch.equal, tensors_of(inputs), tensors_of(batch.inputs))):
        raise PosterityError(
            "the network writes into its inputs, so that a second draw would see other ones: let it work on a copy"
        )
    if not isinstance(outputs, Tensor):
        raise PosterityError(
            f"the network must return one tensor, got {type(outputs).__name__}: wrap it in a module that returns its "
            "logits or predictions alone"
        )
    likelihood.check(outputs[:1].expand(len(targets), *outputs.shape[1:]), targets)
    likelihood.check(outputs, batch.targets)
    _check_loss(before_training(likelihood), outputs, batch.targets)
    check_logits(likelihood, outputs)


def _check_loss(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> None:
    """Refuse a likelihood of one's own that adds examples up: each would count as often as a batch has others."""
    found = tuple(likelihood.log_prob(outputs, targets).shape)
    if found != (len(targets),):
        raise PosterityError(
            f"{type(likelihood).__name__}.log_prob must give one number an example: expected shape {(len(targets),)}, "
            f"got {found}"
        )
    check_is_mean(likelihood.loss, outputs, targets)


def check_held(network: nn.Module, likelihood: Likelihood, held: Stream) -> None:
    """``check_data`` for validation data, which would otherwise be looked at only after the first epoch."""
    first = next(iter(held.once()))
    try:
        check_data(network, first, likelihood, held.targets if isinstance(held, Resident) else first.targets)
    except PosterityError as error:
        raise PosterityError(f"validation data: {error}") from error


@torch.no_grad()
def check_single(network: nn.Module, inputs: Inputs) -> None:
    """Refuse a last batch of one example where the network cannot train on one, as with BatchNorm."""
    trial = train_mode(copied(network))
    try:
        with global_seed(0, next(network.parameters()).device):
            call(trial, map_inputs(inputs, lambda t: t[:1]))
    except ValueError as error:
        raise PosterityError(
            f"an epoch has a batch of a single example, and the network cannot train on one ({error}): choose another "
            "batch_size"
        ) from error


def check_ranks(job: Job, network: nn.Module) -> None:
    """Refuse processes that were asked for different fits: their gradients would be averaged all the same."""
    plan = job.plan
    own = {"seed": job.seed, "num_data": plan.num_data, "steps": plan.steps, "batch size": plan.batch_size}
    shapes = {f"parameter {name!r}": list(p.shape) for name, p in network.named_parameters()}
    first, *others = job.ranks.gather(own | shapes)
    for rank, other in enumerate(others, 1):
        for key in [*first, *other]:
            if first.get(key) != other.get(key):
                raise PosterityError(
                    f"all processes must be given the same fit, but its {key} is {first.get(key)!r} on process 0 and "
                    f"{other.get(key)!r} on process {rank}"
                )


def check_arguments(
    method: Method, likelihood: Likelihood | None, epochs: int | None, members: int, seed: int, training: Training
) -> None:
    """Refuse arguments of ``fit`` that are not what they should be."""
    if not isinstance(method, Method):
        raise PosterityError(f"the method must be one such as posterity.MAP(), got {method!r}")
    check_prior(method.prior)
    if likelihood is not None:
        check_likelihood(likelihood)
    if not isinstance(training, Training):
        raise PosterityError(f"training must be a posterity.Training, got {training!r}")
    check_whole(epochs=epochs, members=members)
    if not isinstance(seed, SupportsIndex):
        raise PosterityError(f"seed must be a whole number, got {seed!r}")
    if epochs is not None and training.steps is not None:
        raise PosterityError("give epochs or Training(steps=...), not both")
    if epochs is not None and epochs < 1:
        raise PosterityError(f"epochs must be at least 1, got {epochs}")
    if members < 1:
        raise PosterityError(f"members must be a positive number, got {members!r}")
