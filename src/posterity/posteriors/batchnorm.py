"""Buffers that fit each draw: BatchNorm's running statistics, refreshed in one pass over the data for all draws.

A draw's weights give other activations than the weights under which the running statistics were gathered. For each
draw the statistics are reset and become the plain averages over the batches of the (population mean, unbiased variance)
that each BatchNorm layer sees in train mode, as in SWA (Izmailov et al. 2018):

    mean_n = mean_{n−1} + (batch mean − mean_{n−1})/n,    the same for the variance,    n = 1, …, at most ``BATCHES``.

torch's own cumulative average (``momentum=None``) reads its counter back from the device in every layer of every pass;
here the counter is known, so nothing waits, and each batch is fetched once for all draws. The numbers are the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

import torch
from torch import nn

from posterity.calling import call, map_inputs
from posterity.posteriors.base import WeightPosterior
from posterity.types import Batch, Params, PosterityError

__all__ = ["BATCHES", "batchnorm_layers", "refreshed", "with_bank"]

P = TypeVar("P", bound=WeightPosterior)

BATCHES = 100
"""How many batches a refresh looks at, unless told otherwise."""


def batchnorm_layers(module: nn.Module) -> dict[str, nn.modules.batchnorm._BatchNorm]:
    """BatchNorm layers that keep running statistics, by name."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats
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
    networks = [_ready(module, params) for params in draws]
    layers = [layer for network in networks for layer in batchnorm_layers(network).values()]
    seen = 0
    for batch in islice(batches, limit):
        seen += 1
        for layer in layers:
            layer.momentum = 1 / seen
        inputs = map_inputs(batch.inputs, lambda t: t.to(device, non_blocking=True))
        for network in networks:
            call(network, inputs)
    if not seen:
        raise PosterityError("refreshing BatchNorm needs at least one batch of training data")
    return [_buffers(network, seen) for network in networks]


def with_bank(posterior: P, batches: Iterable[Batch], draws: int = 32) -> P:
    """The same posterior with a bank of draws whose buffers fit them; itself if the network has no BatchNorm."""
    if not posterior.needs_bank or not batchnorm_layers(posterior.module):
        return posterior
    banked = copy.copy(posterior)._fresh()
    banked.bank = {}
    samples = [params for params, _ in banked.samples(draws) or ()]
    each = refreshed(posterior.module, [*samples, posterior.mean()], batches)
    banked.module = copy.deepcopy(posterior.module)
    banked.module.load_state_dict(each.pop(), strict=False)
    banked.bank = {name: torch.stack([buffers[name] for buffers in each]) for name in each[0]}
    return banked


def _ready(module: nn.Module, params: Params) -> nn.Module:
    """A copy with these weights (not copied), its BatchNorm layers, and they alone, in train mode."""
    device = next(module.parameters()).device
    # deepcopy takes what its memo already holds, so the copy is made around the given weights.
    weights = {
        id(p): nn.Parameter(params.get(name, p).to(device), requires_grad=False)
        for name, p in module.named_parameters()
    }
    network = copy.deepcopy(module, weights).eval()
    for layer in batchnorm_layers(network).values():
        layer.train()
        layer.reset_running_stats()
        layer.num_batches_tracked = None  # counted by the caller
    return network


def _buffers(network: nn.Module, batches: int) -> Params:
    """The running statistics of every BatchNorm layer, under the names that a state_dict gives them."""
    buffers: Params = {}
    for name, layer in batchnorm_layers(network).items():
        mean, variance = layer.running_mean, layer.running_var
        assert mean is not None and variance is not None  # such layers keep both
        buffers |= {
            f"{name}.running_mean": mean,
            f"{name}.running_var": variance,
            f"{name}.num_batches_tracked": torch.tensor(batches, device=mean.device),
        }
    return buffers
