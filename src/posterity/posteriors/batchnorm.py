"""Buffers that fit each draw: BatchNorm's running statistics, refreshed in one pass over the data for all draws.

A draw's weights give other activations than the weights under which the running statistics were gathered. For each
draw the statistics are reset and become the plain averages over the batches of the (population mean, unbiased variance)
that each BatchNorm layer sees in train mode, as in SWA (Izmailov et al. 2018).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

import torch
from torch import nn
from torch.func import functional_call

from posterity.calling import arguments
from posterity.posteriors.base import WeightPosterior
from posterity.types import Batch, Params, PosterityError

__all__ = ["batchnorm_layers", "refreshed", "with_bank"]

P = TypeVar("P", bound=WeightPosterior)

BATCHES = 100
"""How many batches a refresh looks at, unless told otherwise."""


def batchnorm_layers(module: nn.Module) -> dict[str, nn.Module]:
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
    network = copy.deepcopy(module).eval()
    layers = batchnorm_layers(network)
    for layer in layers.values():
        layer.train()
        layer.momentum = None  # type: ignore[assignment]  # a plain average over batches
    fresh = {f"{name}.{key}": b for name, layer in layers.items() for key, b in _initial(layer).items()}
    buffers = [{key: b.clone() for key, b in fresh.items()} for _ in draws]
    seen = 0
    for batch in islice(batches, limit):
        seen += 1
        args, kwargs = arguments(batch.inputs)
        for params, own in zip(draws, buffers, strict=True):
            functional_call(network, {**params, **own}, args, kwargs)
    if not seen:
        raise PosterityError("refreshing BatchNorm needs at least one batch of training data")
    return buffers


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


def _initial(layer: nn.Module) -> Params:
    buffers = {name: b.clone() for name, b in layer.named_buffers()}
    return {
        "running_mean": torch.zeros_like(buffers["running_mean"]),
        "running_var": torch.ones_like(buffers["running_var"]),
        "num_batches_tracked": torch.zeros_like(buffers["num_batches_tracked"]),
    }
