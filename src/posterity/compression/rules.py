"""How units pass through each operation: one short rule an operation, found in a table.

A rule takes the analysis and a node and returns the ``Channels`` of its output, or None where it cannot follow; then
every unit that the node reads is pinned, which keeps the network exact.

Constants through a channel-wise operation (activation, pooling, padding, BatchNorm) are not worked out by formula: the
operation is run on a tensor that holds the constants, and what comes out equal everywhere in space is constant. So an
average pool that counts its zero padding correctly makes a constant channel vary at the border.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from posterity.compression.units import Channels

if TYPE_CHECKING:
    from posterity.compression.analysis import Analysis

__all__ = ["RULES"]

Rule = Callable[["Analysis", fx.Node], Channels | None]


def probe(analysis: Analysis, node: fx.Node) -> Tensor:
    """[C] The constants of a channel-wise operation's output, found by running it on the constants of its input."""
    source = analysis.source(node)
    known = analysis.channels[source]
    if not bool(known.constant.any()):
        return known.value
    shape = [1] * len(analysis.shapes[source])
    shape[known.dim] = -1
    size = (1, *analysis.shapes[source][1:])
    filled = known.value.nan_to_num().to(analysis.dtype).view(shape).expand(size).clone()
    out = analysis.run(node, filled).double()
    flat = out.movedim(known.dim, 0).reshape(out.shape[known.dim], -1)
    low, high = flat.amin(1), flat.amax(1)
    even = (high - low) <= 1e-6 * torch.maximum(low.abs(), high.abs())  # a pool's partial windows round differently
    return flat[:, 0].masked_fill(~(even & known.constant), torch.nan)


def elementwise(analysis: Analysis, node: fx.Node) -> Channels | None:
    """Activations: unit by unit, wherever the channels lie."""
    known = analysis.only_input(node)
    return known and known.with_value(probe(analysis, node))


def spatial(analysis: Analysis, node: fx.Node, dims: int | None = None) -> Channels | None:
    """Pooling, padding, upsampling: unit by unit where the channels are dimension 1 and space lies behind them.

    Args:
        analysis: Of the network.
        node: The call.
        dims: How many dimensions of space the operation has, if not any number. It works on the last of its input, so
            that with fewer behind the channels it pools over the channels themselves.
    """
    known = analysis.only_input(node)
    out = analysis.shapes.get(node)
    if known is None or known.dim != 1 or out is None or len(out) < 2 or out[1] != len(known.ids):
        return None
    space = len(analysis.shapes[analysis.source(node)]) - 2
    return known.with_value(probe(analysis, node)) if space == (dims or max(1, space)) else None


def batch_norm(analysis: Analysis, node: fx.Node) -> Channels | None:
    """γ = 0 makes a channel constant whatever comes in."""
    known = analysis.only_input(node)
    norm = analysis.module(node)
    if known is None or known.dim != 1 or norm.running_mean is None or analysis.called_twice(node):
        return None
    value = probe(analysis, node)
    if norm.weight is not None:
        value = torch.where(norm.weight.detach() == 0, norm.bias.detach().double(), value)
    analysis.norms.append((node, known))
    return known.with_value(value)


def single_prelu(analysis: Analysis, node: fx.Node) -> Channels | None:
    """One slope for all channels is an activation like the others."""
    return elementwise(analysis, node) if analysis.module(node).num_parameters == 1 else None


def dropout(analysis: Analysis, node: fx.Node) -> Channels | None:
    """The function, which is only the identity when it was called with ``training=False``."""
    return elementwise(analysis, node) if node.kwargs.get("training") is False else None


def over_space(analysis: Analysis, node: fx.Node) -> Channels | None:
    """A mean or squeeze over dimensions behind the channels."""
    dims = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    if dims is None or any(isinstance(d, fx.Node) for d in _as_tuple(dims)):
        return None
    rank = len(analysis.shapes[analysis.source(node)])
    return spatial(analysis, node) if all(d % rank > 1 for d in _as_tuple(dims)) else None


def _as_tuple(dims: Any) -> tuple[Any, ...]:
    return tuple(dims) if isinstance(dims, (tuple, list)) else (dims,)


def flatten(analysis: Analysis, node: fx.Node) -> Channels | None:
    """[N, C, H, W] → [N, C·H·W]: each unit is repeated over its positions."""
    source = analysis.source(node)
    known, shape = analysis.channels.get(source), analysis.shapes[source]
    if known is None or analysis.shapes.get(node) != (shape[0], math.prod(shape[1:])):
        return None
    outer, inner = math.prod(shape[1 : known.dim]), math.prod(shape[known.dim + 1 :])
    analysis.flattened.append(node)
    return Channels(1, _spread(known.ids, outer, inner), _spread(known.value, outer, inner))


def _spread(per_unit: Tensor, outer: int, inner: int) -> Tensor:
    return per_unit.repeat_interleave(inner).repeat(outer)


def together(analysis: Analysis, node: fx.Node) -> Channels | None:
    """a + b, a − b, a · b: position j of both is one unit from here on. With a number: an activation."""
    if len(node.all_input_nodes) == 1 and len(node.args) == 2 and node.args[0] is not node.args[1]:
        return elementwise(analysis, node)
    if len(node.args) != 2 or node.kwargs:
        return None
    left, right = node.args
    a, b = (analysis.channels.get(arg) if isinstance(arg, fx.Node) else None for arg in (left, right))
    if a is None or b is None or a.dim != b.dim or len(a.ids) != len(b.ids) or not analysis.same_rank(node):
        return None
    analysis.units.tie(a.ids, b.ids)
    operation: Any = node.target
    value = operation(a.value, b.value) if callable(operation) else getattr(a.value, operation)(b.value)
    if node.target in _PRODUCTS:
        value = torch.where((a.value == 0) | (b.value == 0), 0.0, value)
    return a.with_value(value)


def concatenate(analysis: Analysis, node: fx.Node) -> Channels | None:
    """The units of every part, one after the other; a part that was not followed gets units that stay."""
    parts: Any = node.args[0] if node.args else None  # by keyword is not how anybody writes it
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    if not isinstance(parts, (list, tuple)) or not isinstance(dim, int):
        return None
    dim = dim % len(analysis.shapes[node])
    if dim == 0:
        return None  # batches, one after the other
    known = []
    for part in parts:
        channels = analysis.channels.get(part)
        if channels is None:
            channels = analysis.units.varying(analysis.shapes[part][dim], dim)
            analysis.units.pin(channels.ids)
        if channels.dim != dim:
            return None
        known.append(channels)
    analysis.joins.append(node)
    return Channels(dim, torch.cat([k.ids for k in known]), torch.cat([k.value for k in known]))


def constant(analysis: Analysis, node: fx.Node) -> Channels | None:
    """A constant that this package put in the place of a dead branch; other attributes are not followed."""
    name = str(node.target)
    if name not in analysis.constants:
        return None
    held = analysis.network.get_buffer(name).double()
    dim = analysis.constants[name]
    return Channels(dim, analysis.units.fresh(held.numel()), held.reshape(-1))


def mixing(analysis: Analysis, node: fx.Node) -> Channels | None:
    """Linear layers and convolutions: new units, each a weighted sum of the old."""
    return None if analysis.called_twice(node) else analysis.add_layer(node)


_PRODUCTS = {operator.mul, torch.mul, "mul"}

_ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh,
    nn.Softplus, nn.Softsign, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.LogSigmoid, nn.Tanhshrink,
    F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.sigmoid, F.tanh, F.softplus,
    F.softsign, F.hardswish, F.hardsigmoid, F.hardtanh, F.logsigmoid, torch.relu, torch.tanh, torch.sigmoid, torch.abs,
    torch.exp, torch.neg, torch.clamp, torch.square, operator.neg,
    "relu", "tanh", "sigmoid", "abs", "exp", "neg", "clamp", "square", "contiguous", "float",
)  # fmt: skip
_SPATIAL: dict[int | None, tuple[Any, ...]] = {
    1: (
        nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d, nn.ZeroPad1d, nn.ReflectionPad1d,
        nn.ReplicationPad1d, F.max_pool1d, F.avg_pool1d, F.adaptive_avg_pool1d, F.adaptive_max_pool1d,
    ),
    2: (
        nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.ZeroPad2d, nn.ReflectionPad2d,
        nn.ReplicationPad2d, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d,
        torch.max_pool2d,
    ),
    3: (
        nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d, nn.ZeroPad3d,
        F.max_pool3d, F.avg_pool3d, F.adaptive_avg_pool3d,
    ),
    None: (nn.Upsample, F.interpolate),
}  # fmt: skip

RULES: dict[Any, Rule] = {
    **dict.fromkeys(_ACTIVATIONS, elementwise),
    **{target: partial(spatial, dims=dims) for dims, targets in _SPATIAL.items() for target in targets},
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), batch_norm),
    **dict.fromkeys((nn.Flatten, torch.flatten, torch.reshape, "flatten", "view", "reshape"), flatten),
    **dict.fromkeys((torch.mean, "mean", torch.squeeze, "squeeze"), over_space),
    **dict.fromkeys((operator.add, torch.add, "add", operator.sub, torch.sub, "sub", *_PRODUCTS), together),
    **dict.fromkeys((torch.cat, torch.concat), concatenate),
    **dict.fromkeys((nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d), mixing),
    nn.PReLU: single_prelu,
    F.dropout: dropout,
    "get_attr": constant,
}
"""The rule of each operation: by type for modules, by object for functions, by name for methods."""
