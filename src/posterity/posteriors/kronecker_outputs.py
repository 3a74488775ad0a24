"""The Gaussian over a linearised network's outputs under Kronecker factors, without the Jacobians of its weights.

With u_t the inputs of a layer's weight at its positions t, and d_t the derivative of one output of the network by what
leaves the layer there, that output's derivative by the weight is J = Σ_t d_t u_tᵀ. Noise left (scale ⊙ E) rightᵀ in
the weight then adds ⟨P, P'⟩ to the covariance of two outputs, with

    P = scale ⊙ Σ_t (leftᵀ d_t)(rightᵀ u_t)ᵀ,

two products of vectors with matrices where turning J itself would take products of matrices. At a single position, as
in a plain Linear layer, not even P is needed: ⟨P, P'⟩ = Σ_o (leftᵀ d)_o (leftᵀ d')_o Σ_i scale²_oi (rightᵀ u)²_i.

All d are derivatives by shifts of what leaves the layers, zero in value, taken example by example, so that it does not
matter which dimension the examples have inside the network, nor how often a layer is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import jacrev, vmap
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_map

from posterity.calling import arguments, functional_call
from posterity.posteriors.kronecker import KroneckerGaussian, MatrixBlock
from posterity.prediction.passes import blocks
from posterity.types import Inputs, Params
from posterity.unrolled import Forward, replaced_forwards, transformable

__all__ = ["KroneckerOutputs"]

_FLOATS = 2**24  # of derivatives in memory at a time
Layer = nn.Linear | _ConvNd
_KINDS = (nn.Linear.forward, nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward)


class KroneckerOutputs:
    """Mean and covariance of the outputs of a network made linear in its weights.

    Args:
        posterior: Over the weights.
    """

    def __init__(self, posterior: KroneckerGaussian) -> None:
        self.module, self.blocks, self.stds = posterior.module, posterior.blocks, posterior.stds
        owners = [self.module.get_submodule(block.weight.rpartition(".")[0]) for block in self.blocks]
        self.layers = cast(list[Layer], owners)
        means = posterior.means
        self.own = [(means[b.weight], None if b.bias is None else means[b.bias]) for b in self.blocks]
        self.free = {name: means[name] for name in self.stds}
        # A weight that is also used outside its layer's forward shows by the nan that it leaves in the outputs.
        layered = {name for block in self.blocks for name in (block.weight, block.bias)}
        nowhere = {name: mean.new_full((), math.nan).expand_as(mean) for name, mean in means.items() if name in layered}
        self.held = {**{name: mean for name, mean in means.items() if name not in self.free}, **nowhere}

    def __call__(self, inputs: Inputs) -> tuple[Tensor, Tensor] | None:
        """Mean [batch, outputs] and covariance [batch, outputs, outputs]; None where more than these layers matters."""
        if not self.blocks or any(type(layer).forward not in _KINDS for layer in self.layers):
            return None
        first, uses = self._network((), self.free, tree_map(lambda t: t[0], arguments(inputs)))
        order, shapes = [block for block, _, _ in uses], [out.shape for _, _, out in uses]
        largest = max((block.scale.numel() for block in self.blocks), default=0)
        each = sum(map(math.prod, shapes)) + largest + sum(p.numel() for p in self.free.values())
        count = max(1, _FLOATS // (len(first) * each))
        parts = [self._part(part, order, shapes) for part in blocks(inputs, count)]
        mean, covariance = (torch.cat(each) for each in zip(*parts, strict=True))
        return (mean, covariance) if mean.isfinite().all() else None

    def _network(
        self, shifts: Sequence[Tensor], free: Params, own: Any
    ) -> tuple[Tensor, list[tuple[int, Tensor, Tensor]]]:
        """Outputs for one example, with what leaves the layers shifted, and every use: its block, input and output."""
        uses: list[tuple[int, Tensor, Tensor]] = []

        def watched(block: int) -> Forward:
            def forward(x: Tensor) -> Tensor:
                out = _applied(self.layers[block], x, *self.own[block])
                uses.append((block, x, out))
                return out + shifts[len(uses) - 1] if shifts else out

            return forward

        args, kwargs = tree_map(lambda t: t.unsqueeze(0), own)
        forwards = [(layer, watched(block)) for block, layer in enumerate(self.layers)]
        with transformable(self.module), replaced_forwards(forwards):
            out = functional_call(self.module, {**self.held, **free}, args, kwargs)
        return out.flatten(), uses

    def _part(self, inputs: Inputs, order: list[int], shapes: list[torch.Size]) -> tuple[Tensor, Tensor]:
        """Some examples at once."""

        def one(shifts: Sequence[Tensor], free: Params, own: Any) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
            out, uses = self._network(shifts, free, own)
            return out, (out, [x for _, x, _ in uses])

        like = self.own[0][0]
        shifts = [like.new_zeros(shape) for shape in shapes]
        derivatives = vmap(jacrev(one, argnums=(0, 1), has_aux=True), in_dims=(None, None, 0))
        (d, by_free), (mean, seen) = derivatives(shifts, self.free, arguments(inputs))
        spread = [by_weight(by_free[name]) * std.flatten() for name, std in self.stds.items()]
        covariance = sum((s @ s.mT for s in spread), torch.zeros(()).to(like))
        for number, (block, layer) in enumerate(zip(self.blocks, self.layers, strict=True)):
            own = [(d[k], seen[k]) for k, used in enumerate(order) if used == number]
            if own:
                covariance = covariance + _covariance(block, layer, own)
        return mean, covariance


def _covariance(block: MatrixBlock, layer: Layer, uses: list[tuple[Tensor, Tensor]]) -> Tensor:
    """What the noise of one layer adds, from derivatives [batch, outputs, ...] and inputs [batch, ...] of its uses."""
    columns = block.right.shape[0] - (block.bias is not None)
    turn = block.right[:columns].T, block.right[columns] if block.bias is not None else None
    inputs = torch.cat([_rows(layer, _turned(layer, x, *turn), 1) for _, x in uses], 1)  # [batch, positions, I]
    a = torch.cat([_rows(layer, d, 2) for d, _ in uses], 2) @ block.left  # [batch, outputs, positions, O]
    if inputs.shape[1] == 1:
        weights = inputs.squeeze(1).square() @ block.scale.square().T
        a = a.squeeze(2)
        return (a * weights.unsqueeze(1)) @ a.mT
    P = (a.mT @ inputs.unsqueeze(1) * block.scale).flatten(2)
    return P @ P.mT


def _turned(layer: Layer, x: Tensor, filters: Tensor, bias: Tensor | None) -> Tensor:
    """rightᵀ u at every position [batch, ...]: the layer itself, with the columns of ``right`` for its filters."""
    if isinstance(layer, nn.Linear):
        return F.linear(x, filters, bias)
    shape = (len(filters), *layer.weight.shape[1:])
    images = x.flatten(0, -len(shape))
    return _applied(layer, images, filters.reshape(shape), bias).unflatten(0, (len(x), -1))


def _applied(layer: Layer, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The layer with another weight and bias."""
    if isinstance(layer, nn.Linear):
        return F.linear(x, weight, bias)
    return layer._conv_forward(x, weight, bias)


def _rows(layer: Layer, t: Tensor, lead: int) -> Tensor:
    """What leaves a layer, after ``lead`` other dimensions, as [..., positions, features]."""
    channel = -1 if isinstance(layer, nn.Linear) else -1 - len(layer.kernel_size)
    return t.movedim(channel, -1).flatten(lead, -2)


def by_weight(jacobian: Tensor) -> Tensor:
    """Jacobians [batch, outputs, *shape] of one parameter as [batch, outputs, weights], of a single number, too."""
    return jacobian.reshape(*jacobian.shape[:2], -1)
