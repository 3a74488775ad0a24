"""The Linear layer that a network ends in: what comes into it, and where its weights are in one vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from posterity.calling import call
from posterity.networks import hooked
from posterity.types import Inputs, PosterityError

__all__ = ["features", "parameter_order"]


@torch.no_grad()
def features(module: nn.Module, inputs: Inputs) -> tuple[nn.Linear, Tensor, Tensor]:
    """The Linear layer whose output the network returns, its inputs, and the outputs.

    Where the layer has a bias, a column of ones follows the inputs: [batch, inputs and bias].
    """
    seen: list[tuple[nn.Linear, Tensor, Tensor]] = []

    def look(layer: nn.Linear, args: Any, out: Tensor) -> None:
        seen[:] = [(layer, args[0], out)]  # only the latest, so that the activations of the others can go

    with hooked((m for m in module.modules() if isinstance(m, nn.Linear)), look):
        outputs = call(module, inputs)
    if not seen or seen[0][2].shape != outputs.shape or not torch.equal(seen[0][2], outputs) or outputs.dim() != 2:
        raise PosterityError("the network must end in a Linear layer whose output [batch, outputs] it returns")
    layer, found, _ = seen[0]
    ones = [] if layer.bias is None else [found.new_ones(len(found), 1)]
    return layer, torch.cat([found, *ones], 1), outputs


def parameter_order(layer: nn.Linear) -> Tensor:
    """The places of the layer's weight, then of its bias, in a matrix [outputs, inputs and bias] laid out flat."""
    width = layer.in_features + (layer.bias is not None)
    place = torch.arange(layer.out_features * width).view(layer.out_features, width)
    return torch.cat([place[:, : layer.in_features].flatten(), place[:, layer.in_features :].flatten()])
