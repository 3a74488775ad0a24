"""How much work a network is: floating-point operations of one input, two for every multiply and add."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from posterity import calling
from posterity.compression.layers import SparseLinear
from posterity.compression.speed import rows
from posterity.networks import hooked
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
    with hooked(sparse, count_zeros), _unfused(), FlopCounterMode(display=False) as counter:
        calling.call(network, one)
    return counter.get_total_flops() - spared


@contextmanager
def _unfused() -> Iterator[None]:
    """Recurrent layers and attention as the products they are made of: the counter cannot see into one fused call."""
    mha, mkldnn = torch.backends.mha, torch.backends.mkldnn
    fast, (enabled, *_) = mha.get_fastpath_enabled(), mkldnn.set_flags(False)
    mha.set_fastpath_enabled(False)
    try:
        with torch.backends.cudnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        mha.set_fastpath_enabled(fast)
        mkldnn.set_flags(enabled)  # by itself: flags() would write what only Intel's GPUs have, with a warning
