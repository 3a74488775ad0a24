"""Restarts: the same method from several initialisations gives a Mixture; from MAP, a deep ensemble.

Where the method and the network allow it, all members are trained as one stacked network: every parameter gets a member
dimension, the forward pass is a ``vmap``, the losses are summed, and an elementwise optimizer treats each member as it
would alone. Elsewhere one after the other; on several ranks, each rank trains its share of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import vmap

from posterity.calling import arguments, functional_call, map_inputs
from posterity.networks import duplicate, is_frozen
from posterity.posteriors import Mixture, Posterior
from posterity.probability.likelihoods import Likelihood, pooled
from posterity.random import RandomStreams, global_seed
from posterity.run import NoCollector, Run
from posterity.training.distributed import Ranks
from posterity.training.loop import Job, train
from posterity.training.single import finish, fit_one, probed, shown
from posterity.training.stream import Resident
from posterity.types import Batch, Inputs, Params, PosterityError

__all__ = ["fit_members", "reinitialised"]

_log = logging.getLogger("posterity")
_MEMBER_STRIDE = 10_007  # seeds 0, 1, 2 … of repeated experiments must not share members

_STACKABLE = (
    nn.Linear,
    nn.Flatten,
    nn.ReLU,
    nn.GELU,
    nn.Tanh,
    nn.Sigmoid,
    nn.SiLU,
    nn.Softplus,
    nn.LeakyReLU,
    nn.Identity,
    nn.LayerNorm,
)
_STACKABLE_ON_GPU = (nn.Conv1d, nn.Conv2d, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.GroupNorm)


def fit_members(module: nn.Module | Callable[[], nn.Module], probe: nn.Module, job: Job, members: int) -> Mixture:
    """The mixture of ``members`` fits."""
    seeds = [job.seed + _MEMBER_STRIDE * i for i in range(members)]
    networks = [_fresh(module, probe, seed, job) for seed in seeds]
    if len({str(network) for network in networks}) > 1:
        raise PosterityError("the function made networks that differ, but members are weights of one and the same")
    jobs = [replace(job, seed=seed, stream=job.stream.alone(seed), ranks=Ranks()) for seed in seeds]
    if job.ranks.world > 1:
        parts = _spread(networks, jobs, job.ranks)
    elif _stackable(networks, job):
        parts = _together(networks, jobs)
    else:
        parts = [fit_one(n, _numbered(own, i)) for i, (n, own) in enumerate(zip(networks, jobs, strict=True))]
    shared = pooled([part.likelihood for part in parts])
    for part in parts:
        _give(part, shared)
    return Mixture(parts)


def _give(posterior: Posterior, likelihood: Likelihood) -> None:
    """Let a posterior, and what it is made of, have this likelihood."""
    posterior.likelihood = likelihood
    for part in posterior.parts:
        _give(part, likelihood)


def reinitialised(module: nn.Module, seed: int, device: torch.device) -> nn.Module:
    """A copy with fresh weights, by each part's ``reset_parameters``; what is not trained stays as it is."""
    network = duplicate(module)
    frozen = [(p, p.detach().clone()) for p in network.parameters() if not p.requires_grad]
    with global_seed(seed, device):
        for name, part in reversed(list(network.named_modules())):  # children first: a parent may redraw its parts
            if is_frozen(part):
                continue
            reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
            if reset is not None:
                reset()
            elif any(p.requires_grad for p in part.parameters(recurse=False)):
                raise PosterityError(
                    f"part {name!r} ({type(part).__name__}) has parameters but no reset_parameters: "
                    "pass a function that makes the network instead of the network"
                )
    with torch.no_grad():
        for p, value in frozen:
            p.copy_(value)
    return network


class Stacked(nn.Module):
    """Several networks of one architecture as one: parameters [members, ...], examples member after member."""

    def __init__(self, networks: list[nn.Module]) -> None:
        super().__init__()
        self.members = len(networks)
        self.names = [name for name, _ in networks[0].named_parameters()]
        self._template = [duplicate(networks[0]).to("meta").train()]  # in a list, so that it is no submodule
        for index, name in enumerate(self.names):
            own = [network.get_parameter(name) for network in networks]
            stacked = torch.stack([p.detach() for p in own])
            self.register_parameter(str(index), nn.Parameter(stacked, requires_grad=own[0].requires_grad))

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        """Outputs of every member on its own examples, [members · batch, ...]."""
        params: Params = dict(zip(self.names, self.parameters(), strict=True))
        inputs: Inputs = kwargs or args
        own = map_inputs(inputs, lambda t: t.unflatten(0, (self.members, -1)))
        outputs = vmap(self._one)(params, own)
        return outputs.flatten(0, 1)

    def _one(self, params: Params, inputs: Inputs) -> Tensor:
        args, kwargs = arguments(inputs)
        return functional_call(self._template[0], params, args, kwargs)

    def member(self, index: int) -> Params:
        """One member's weights."""
        return {name: p.detach()[index] for name, p in zip(self.names, self.parameters(), strict=True)}


class Together:
    """The streams of several members, their batches side by side; each member keeps its own shuffle."""

    def __init__(self, streams: list[Resident]) -> None:
        self.streams = streams
        first, self.checked = streams[0], True
        self.num_data, self.batch_size, self.smallest = first.num_data, first.batch_size, first.smallest
        self.steps_per_epoch = first.steps_per_epoch

    def epoch(self, index: int) -> Iterator[tuple[Batch, float]]:
        """Every member's batch, concatenated; the size is one member's, so that their losses add up."""
        for own in zip(*(stream.epoch(index) for stream in self.streams), strict=True):
            tensors = [batch.inputs for batch, _ in own]
            yield Batch(torch.cat(tensors), torch.cat([batch.targets for batch, _ in own])), own[0][1]

    def once(self) -> Iterator[Batch]:
        """Every example once, in order."""
        return self.streams[0].once()


def _together(networks: list[nn.Module], jobs: list[Job]) -> list[Posterior]:
    """Train all members as one stacked network."""
    job = replace(jobs[0], stream=Together([own.stream for own in jobs]))  # type: ignore[misc,arg-type]
    stacked = Stacked(networks).to(job.device)
    streams = RandomStreams.from_seed(job.seed, 0, job.device)
    optimizer = job.method.optimizer(stacked, job.plan, streams)
    run = Run(stacked, optimizer, NoCollector(), job.plan, streams, members=len(networks))
    with shown(job, f"{type(job.method).__name__} × {len(networks)}") as callbacks:
        train(run, job, callbacks)
    posteriors = []
    for index, (network, own) in enumerate(zip(networks, jobs, strict=True)):
        network.load_state_dict(stacked.member(index), strict=False)
        alone = Run(network, optimizer, NoCollector(), job.plan, streams, step=run.step, history=run.history)
        posteriors.append(finish(alone, own))
    return posteriors


def _spread(networks: list[nn.Module], jobs: list[Job], ranks: Ranks) -> list[Posterior]:
    """Every rank trains its share alone; all ranks end with all members."""
    own = {i: fit_one(networks[i], _numbered(jobs[i], i)) for i in range(ranks.rank, len(jobs), ranks.world)}
    device = jobs[0].device
    gathered = {i: q for part in ranks.gather({i: q.to("cpu") for i, q in own.items()}) for i, q in part.items()}
    return [gathered[i].to(device) for i in range(len(jobs))]


def _fresh(module: nn.Module | Callable[[], nn.Module], probe: nn.Module, seed: int, job: Job) -> nn.Module:
    if isinstance(module, nn.Module):
        return reinitialised(probe, seed, job.device)
    with global_seed(seed, job.device):
        return probed(module(), next(iter(job.stream.once())), job.likelihood, job.stream, job.device)


def _numbered(job: Job, index: int) -> Job:
    """Each member checkpoints in a file of its own."""
    if job.training.checkpoint is None:
        return job
    return replace(job, training=replace(job.training, checkpoint=f"{job.training.checkpoint}.{index}"))


def _stackable(networks: list[nn.Module], job: Job) -> bool:
    """Whether the members can be one stacked network, and gain by it on this device."""
    allowed = _STACKABLE + (_STACKABLE_ON_GPU if job.device.type == "cuda" else ())
    leaves = [m for m in networks[0].modules() if not list(m.children())]
    return (
        job.method.vectorises
        and isinstance(job.stream, Resident)
        and isinstance(job.stream.inputs, Tensor)
        and job.likelihood.trainable() is None
        and job.held is None  # validation data and micro-batches are no batches of members side by side
        and job.training.accumulate == 1
        and not list(networks[0].buffers())
        and all(isinstance(leaf, allowed) for leaf in leaves)
        and _maps(networks, job.stream.inputs)
    )


@torch.enable_grad()
def _maps(networks: list[nn.Module], inputs: Tensor) -> bool:
    """Whether the networks' own code can be stacked: not if it draws masks, branches on values or has checkpoints."""
    try:
        Stacked(networks)(inputs[:1].repeat_interleave(len(networks), 0)).sum().backward()
    except RuntimeError as error:
        _log.info("members are trained one after the other (%s)", str(error).splitlines()[0])
        return False
    return True
