"""How much work a network is: floating-point operations of one input, two for every multiply and add."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from posterity import calling
from posterity.compression.layers import SparseLinear
from posterity.compression.speed import rows
from posterity.types import Inputs

__all__ = ["flops"]


def flops(network: nn.Module, inputs: Inputs) -> int:
    """Of matrix products and convolutions, for one input; all the rest is small beside them."""
    one = rows(inputs, 1)
    spared = 0

    def count_zeros(layer: Any, args: tuple[torch.Tensor, ...], _: torch.Tensor) -> None:
        nonlocal spared  # the counter takes a sparse product for a dense one
        applied = args[0].numel() // layer.in_features
        spared += 2 * applied * (layer.in_features * layer.out_features - layer.kept)

    sparse = [m for m in network.modules() if isinstance(m, SparseLinear)]
    hooks = [layer.register_forward_hook(count_zeros) for layer in sparse]
    try:
        # Not under no_grad: attention's fused inference path is a single call that the counter cannot see into.
        with FlopCounterMode(display=False) as counter:
            calling.call(network, one)
    finally:
        for hook in hooks:
            hook.remove()
    return counter.get_total_flops() - spared
