"""Low-rank adapters: a few trainable directions beside the fixed weights of a large network (Hu et al. 2106.09685).

    y = W x + b + (alpha/rank) U D x,     D [rank, inputs],  U [outputs, rank]

W and b stay as they are, and so do the running statistics of BatchNorm layers in a fit; D starts at random and U at
zero, so that at first the network computes exactly what it did.
Only D and U need gradients. Every method leaves parameters without gradients alone, so a posterior over such a network
is one over its adapters: it is as cheap as they are small, and it needs no more than ``posterity.fit``. The same holds
for adapters that another library has put in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import SupportsIndex

from torch import Tensor, nn

from posterity.layers.select import Which, select
from posterity.networks import duplicate, keeps_statistics
from posterity.types import PosterityError, check_positive

__all__ = ["Adapted", "adapters", "adapters_off"]


class Adapted(nn.Module):
    """A fixed Linear layer with a low-rank adapter beside it.

    Args:
        base: The layer; it is not copied.
        rank: How many directions the adapter has.
        alpha: The adapter's output is multiplied by alpha/rank.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        like = {"dtype": base.weight.dtype, "device": base.weight.device}
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False, **like)
        self.up = nn.Linear(rank, base.out_features, bias=False, **like)
        self.scale = alpha / rank
        self.on = True
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A new start of the adapter, at which it adds nothing."""
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """W x + b + (alpha/rank) U D x."""
        return self.base(x) + self.scale * self.up(self.down(x)) if self.on else self.base(x)


def adapters(module: nn.Module, rank: int = 8, *, alpha: float | None = None, which: Which = None) -> nn.Module:
    """A copy of a network with low-rank adapters beside its Linear layers, which alone need gradients.

    To train other parts as well (a new head), set ``requires_grad_(True)`` on them afterwards.

    Args:
        module: Any network; it is not changed.
        rank: How many directions each adapter has.
        alpha: An adapter's output is multiplied by alpha/rank; None takes rank, for a factor of 1.
        which: Which modules: patterns on their names, types, or ``"last"``; all Linear layers if not given.

    Example:
        >>> net = adapters(nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)), rank=2)
        >>> sum(p.numel() for p in net.parameters() if p.requires_grad)
        620
    """
    if not isinstance(rank, SupportsIndex) or rank < 1:
        raise PosterityError(f"rank must be a whole number above 0, got {rank!r}")
    alpha = float(rank) if alpha is None else alpha
    check_positive(alpha=alpha)
    net = duplicate(module).requires_grad_(True)  # what is frozen already can be adapted too
    chosen = {id(owner) for found in select(net, which).values() for owner, _ in found.places if _adaptable(owner)}
    if not chosen:
        raise PosterityError(f"which={which!r} selects no Linear layer, and only those can have adapters")
    net.requires_grad_(False)
    made: dict[int, Adapted] = {}  # a layer that stands in two places keeps standing in both
    for layer in filter(keeps_statistics, net.modules()):
        layer.frozen = True  # type: ignore[assignment]  # or the network under the adapters would be another
    for parent in list(net.modules()):
        for name, child in list(parent._modules.items()):
            if id(child) in chosen:
                setattr(parent, name, made.setdefault(id(child), Adapted(child, rank, alpha)))  # type: ignore[arg-type]
        if isinstance(parent, nn.TransformerEncoderLayer):
            parent.activation_relu_or_gelu = 0  # torch's fused kernel would read past the adapters
    if id(net) in chosen:
        return Adapted(net, rank, alpha)  # type: ignore[arg-type]
    return net


def _adaptable(layer: nn.Module) -> bool:
    """A plain Linear layer that its parent calls; subclasses may be read by other ways (attention's projection)."""
    return type(layer) is nn.Linear


@contextmanager
def adapters_off(module: nn.Module) -> Iterator[None]:
    """The network without its adapters, for the time of the context: exactly the one they were put into."""
    layers = [layer for layer in module.modules() if isinstance(layer, Adapted)]
    before = [layer.on for layer in layers]
    try:
        for layer in layers:
            layer.on = False
        yield
    finally:
        for layer, on in zip(layers, before, strict=True):
            layer.on = on
