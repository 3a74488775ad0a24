"""Buffers that fit each draw: BatchNorm's running statistics, refreshed in one pass over the data for all draws.

A draw's weights give other activations than the weights under which the running statistics were gathered. For each
draw the statistics are reset and become the plain averages over the batches of the (population mean, unbiased variance)
that each BatchNorm layer sees in train mode, as in SWA (Izmailov et al. 2018):

    mean = 1/n Σ batch means,    variance = 1/n Σ batch variances,    n batches, at most ``BATCHES``.

InstanceNorm with running statistics, which it uses in eval mode as BatchNorm does, gives those of a batch as means over
its examples.

torch's own cumulative average (``momentum=None``) reads its counter back from the device in every layer of every pass;
here statistics are summed outside the layers, so nothing waits, and each batch is fetched once for all draws. On a GPU
one batch through all draws is recorded and replayed: launching its thousands of small kernels from Python takes longer
than running them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import TypeVar

import torch
from torch import Tensor, nn

from posterity.calling import call, map_inputs
from posterity.devices import aligned, device_order
from posterity.networks import duplicate, is_frozen, results_kept
from posterity.posteriors.base import WeightPosterior
from posterity.recorded import Recorded
from posterity.types import Batch, Inputs, Params, PosterityError

__all__ = ["BATCHES", "batchnorm_layers", "refreshed", "with_bank"]

P = TypeVar("P", bound=WeightPosterior)

BATCHES = 100
"""How many batches a refresh looks at, unless told otherwise."""


def batchnorm_layers(module: nn.Module) -> dict[str, nn.modules.batchnorm._NormBase]:
    """Layers that keep running statistics, by name: BatchNorm and, where it was asked to, InstanceNorm.

    Frozen ones are not among them: their statistics are the same for all draws.
    """
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats and not is_frozen(layer)
    }


@torch.no_grad()
def refreshed(module: nn.Module, draws: list[Params], batches: Iterable[Batch], limit: int = BATCHES) -> list[Params]:
    """The BatchNorm buffers of each set of weights, gathered over at most ``limit`` batches.

    Args:
        module: The network; not changed.
        draws: Sets of weights.
        batches: Training batches, the same for every draw.
        limit: How many of them to look at.
    """
    device = next(module.parameters()).device
    fetched = (map_inputs(batch.inputs, lambda t: t.to(device, non_blocking=True)) for batch in islice(batches, limit))
    first = next(fetched, None)
    if first is None:
        raise PosterityError("refreshing BatchNorm needs at least one batch of training data")
    order = device_order(module, first)
    networks = [_ready(module, params, order) for params in draws]
    latest = [statistic for network in networks for statistic in _statistics(network).values()]
    sums = [torch.zeros_like(statistic) for statistic in latest]

    def gather(inputs: Inputs) -> None:
        for network in networks:
            call(network, inputs)
        torch._foreach_add_(sums, latest)

    gathered, seen = Recorded(gather) if device.type == "cuda" else gather, 0
    for inputs in chain([first], fetched):
        gathered(map_inputs(inputs, order))
        seen += 1
    torch._foreach_copy_(latest, torch._foreach_div(sums, seen))
    return [_buffers(network, seen) for network in networks]


def with_bank(posterior: P, batches: Iterable[Batch], draws: int = 32) -> P:
    """The same posterior with a bank of draws whose buffers fit them; itself if the network has no BatchNorm."""
    if not posterior.needs_bank or not batchnorm_layers(posterior.module):
        return posterior
    banked = copy.copy(posterior)
    banked.bank, banked.ways = {}, {}
    samples = [params for params, _ in banked.samples(draws) or ()]
    each = refreshed(posterior.module, [*samples, posterior.mean()], batches)
    banked.module = duplicate(posterior.module)
    banked.module.load_state_dict(each.pop(), strict=False)
    banked.bank = {name: torch.stack([buffers[name] for buffers in each]) for name in each[0]}
    banked.banked_in = banked.numbers
    return banked


def _ready(module: nn.Module, params: Params, order: Callable[[Tensor], Tensor]) -> nn.Module:
    """A copy with these weights, lying as its inputs will, its BatchNorm layers, and they alone, in train mode."""
    device = next(module.parameters()).device
    # deepcopy takes what its memo already holds, so the copy is made around the given weights.
    weights = {
        id(p): nn.Parameter(aligned(order(params.get(name, p).to(device))), requires_grad=False)
        for name, p in module.named_parameters()
    }
    network = copy.deepcopy(module, results_kept(module) | weights).eval()
    for layer in batchnorm_layers(network).values():
        layer.train()
        layer.reset_running_stats()
        layer.momentum = 1.0  # the running statistics are those of the latest batch
        layer.num_batches_tracked = None  # counted by the caller
    return network


def _statistics(network: nn.Module) -> Params:
    """The running statistics of every BatchNorm layer, under the names that a state_dict gives them."""
    found: dict[str, Tensor | None] = {}
    for name, layer in batchnorm_layers(network).items():
        found |= {f"{name}.running_mean": layer.running_mean, f"{name}.running_var": layer.running_var}
    return {name: statistic for name, statistic in found.items() if statistic is not None}


def _buffers(network: nn.Module, batches: int) -> Params:
    """The statistics and how many batches they are of."""
    device = next(network.parameters()).device
    counts = {f"{name}.num_batches_tracked": torch.tensor(batches, device=device) for name in batchnorm_layers(network)}
    return {**_statistics(network), **counts}
