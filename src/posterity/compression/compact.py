"""A masked network made really smaller: dead neurons, filters and channels taken out, the function kept.

    masked network → graph → BatchNorm folded → dead branches replaced by their constant → units analysed → rewritten

compacted(x) = masked(x) up to rounding, for every x of the example's shape (any batch). What ``analysis.py`` cannot
follow keeps its size and its zeros, and is named in the result. Where a dead unit has a bias it is not zero but the
constant act(b), which moves into the next layer's bias:

    b ← b + Σ_k (Σ_space W[:, k]) c_k               exact where nothing is padded with zeros
    W[:, d] ← W[:, d] + W[:, k] · c_k / c_d          under zero padding: one constant channel d stands for all others
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from posterity.calling import map_inputs, nested_tensors
from posterity.compression.analysis import Analysis, Layer, analyse
from posterity.compression.outputs import pairs
from posterity.compression.trace import (
    Network,
    Shapes,
    arguments,
    clean,
    fold_batch_norm,
    measure_shapes,
    remove_identities,
    trace,
)
from posterity.devices import device_of
from posterity.masks import apply
from posterity.networks import duplicate
from posterity.types import Inputs, PosterityError

__all__ = ["Compacted", "compact", "silenced"]

_SUMS = (operator.add, torch.add)
_LIMITS = {torch.float32: 1e-4, torch.float64: 1e-8}


@dataclass(frozen=True)
class Compacted:
    """A smaller network and what there is to say about it.

    Attributes:
        module: The network, in evaluation mode, on the device of the one it was made from.
        not_followed: Operations whose inputs kept their size, because no rule knows them.
        constant: Whether nothing is left: the output is the same for every input.
    """

    module: Network
    not_followed: tuple[str, ...]
    constant: bool


def compact(
    module: nn.Module, example: Inputs, masks: Mapping[str, Tensor] | None = None, select_inputs: bool = True
) -> Compacted:
    """Remove every unit that the zeros of a network have made useless.

    Args:
        module: A network with zeros in its weights; it is not changed.
        example: Inputs it can be called with, the batch first.
        masks: Weights to set to zero beforehand, by parameter name.
        select_inputs: Let a layer that uses few of the network's inputs pick those out (one gather, a smaller product).
    """
    masked = apply(module, masks or {})
    network = trace(masked)
    inputs = arguments(network, example)
    remove_identities(network)
    shapes = measure_shapes(network, inputs)
    fold_batch_norm(network, shapes)
    constants = _replace_dead_branches(network, shapes)
    analysis = analyse(network, measure_shapes(network, inputs), constants, select_inputs)
    _rewrite(analysis)
    _check_same(masked, network, inputs)
    return Compacted(network.eval().to(device_of(module)), tuple(analysis.not_followed), analysis.constant_output)


def silenced(module: nn.Module, example: Inputs) -> nn.Module:
    """A copy with the same outputs, and zeros in all weights that have no say in them: a file need not hold those.

    Args:
        module: A network with zeros in its weights; it is not changed.
        example: Inputs it can be called with, the batch first.
    """
    network = trace(module)
    analysis = analyse(network, measure_shapes(network, arguments(network, example)), {}, select=False)
    read, quiet = analysis.read(), duplicate(module)
    for node, made in [*((layer.node, layer.outputs) for layer in analysis.layers), *analysis.norms]:
        unread = ~read[made.ids]
        for value in quiet.get_submodule(str(node.target)).state_dict().values():
            if value.ndim:  # BatchNorm counts its batches
                value[unread.to(value.device)] = 0
    return quiet


def _replace_dead_branches(network: fx.GraphModule, shapes: Shapes) -> dict[str, int]:
    """Sums with a branch that is constant: the branch becomes a vector, or nothing where it is zero.

    The branch's units are tied to those of the sum, so without this all of its layers would go on running.

    Returns:
        The names of the vectors, with the dimension of their channels.
    """
    analysis = analyse(network, shapes, {}, select=False)
    constants: dict[str, int] = {}
    for node in list(network.graph.nodes):
        if node.op != "call_function" or node.target not in _SUMS or node not in analysis.channels:
            continue
        for branch in node.all_input_nodes:
            known = analysis.channels[branch]
            whole = all(shapes[other] == shapes[node] for other in node.all_input_nodes)
            if len(node.all_input_nodes) == 2 and whole and bool(known.constant.all()):
                name = _replace_branch(analysis, node, branch)
                constants |= {name: known.dim} if name else {}
                break
    network.graph.eliminate_dead_code()
    clean(network)
    return constants


def _replace_branch(analysis: Analysis, node: fx.Node, branch: fx.Node) -> str | None:
    """Put a constant in the place of one branch of a sum, and say what it is called."""
    network, known = analysis.network, analysis.channels[branch]
    other = next(n for n in node.all_input_nodes if n is not branch)
    if not bool(known.value.any()):
        node.replace_all_uses_with(other)
        return None
    name = f"constant_{node.name}"
    shape = [1] * len(analysis.shapes[node])
    shape[known.dim] = -1
    network.register_buffer(name, known.value.to(analysis.dtype).view(shape))
    with network.graph.inserting_before(node):
        node.replace_input_with(branch, network.graph.get_attr(name))
    return name


def _rewrite(analysis: Analysis) -> None:
    """Slice every layer to the units that stay."""
    network, kept = analysis.network, analysis.kept()
    layers = _keep_one(analysis, kept)
    for node in analysis.joins:
        node.args = (_parts(analysis, node, kept), *node.args[1:])
    network.graph.eliminate_dead_code()
    alive = set(network.graph.nodes)
    for layer in layers:
        if layer.selects:
            _select(analysis, layer, kept)
        _shrink(analysis.module(layer.node), layer, kept)
    for node, known in analysis.norms:
        if node in alive:
            _slice_norm(analysis.module(node), kept[known.ids])
    for node in alive:
        if node.op == "get_attr" and node.target in analysis.constants:
            rows = kept[analysis.channels[node].ids].nonzero().squeeze(1)
            held = network.get_buffer(node.target)
            network.register_buffer(node.target, held.index_select(analysis.channels[node].dim, rows))
    for node in alive.intersection(analysis.flattened):
        _flatten_behind_batch(network, node)
    network.graph.eliminate_dead_code()  # sizes that only a view asked for
    clean(network)


def _parts(analysis: Analysis, join: fx.Node, kept: Tensor) -> list[fx.Node]:
    """What a concatenation still joins: the parts of which something stays, or else the first."""
    parts: Any = join.args[0]
    left = [p for p in parts if p not in analysis.channels or bool(kept[analysis.channels[p].ids].any())]
    return left or list(parts[:1])


def _keep_one(analysis: Analysis, kept: Tensor) -> list[Layer]:
    """A layer of which nothing is needed keeps one unit, since a convolution cannot have no channel.

    Nobody reads what that unit says, or else it says the right constant.

    Returns:
        The layers that still run; ``kept`` has their units added.
    """
    roots = analysis.units.resolved()
    size = -1
    while int(kept.sum()) != size:
        size = int(kept.sum())
        running = _running(analysis, kept)
        layers = [layer for layer in analysis.layers if layer.node in running]
        for layer in layers:
            for channels in (layer.inputs, layer.outputs):
                if not bool(kept[channels.ids].any()):
                    kept |= roots == roots[channels.ids[0]]
    return layers


def _running(analysis: Analysis, kept: Tensor) -> set[fx.Node]:
    """The nodes that the output depends on, once concatenations have lost their empty parts."""
    waiting = [node for node in analysis.network.graph.nodes if node.op == "output"]
    running: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in running:
            running.add(node)
            waiting += _parts(analysis, node, kept) if node in analysis.joins else node.all_input_nodes
    return running


def _shrink(module: Any, layer: Layer, kept: Tensor) -> None:
    """Slice a layer in place, with the constants it no longer reads in its bias."""
    rows, columns = kept[layer.outputs.ids], kept[layer.inputs.ids]
    weight, bias, value = layer.weight.clone(), layer.bias.clone(), layer.inputs.value
    groups = layer.groups
    if groups == 1:
        even = ~columns & layer.inputs.constant & ~layer.uneven
        bias += weight.sum(-1)[:, even] @ value[even]
        uneven = ~columns & layer.uneven
        if bool(uneven.any()):
            ratio = value[uneven] / value[layer.deputy]
            weight[:, layer.deputy] += torch.einsum("oks,k->os", weight[:, uneven], ratio)
        weight = weight[:, columns]
    else:
        groups = int(columns.sum()) // (len(columns) // groups)
    old = module.weight
    small = weight[rows].reshape(int(rows.sum()), -1, *old.shape[2:]).to(old.dtype)
    module.weight = nn.Parameter(small, old.requires_grad)
    if module.bias is not None or bool(bias[rows].any()):
        module.bias = nn.Parameter(bias[rows].to(old.dtype), old.requires_grad)
    for name, size in zip(_SIZES[type(module)], (int(columns.sum()), int(rows.sum()), groups), strict=False):
        setattr(module, name, size)


_CHANNELS = ("in_channels", "out_channels", "groups")
_SIZES: dict[type, tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _CHANNELS),
}


def _slice_norm(norm: Any, rows: Tensor) -> None:
    norm.num_features = int(rows.sum())
    for value in [*norm.parameters(), *norm.buffers()]:
        if value.dim() == 1:  # all but the count of batches seen
            value.data = value.data[rows].clone()


def _select(analysis: Analysis, layer: Layer, kept: Tensor) -> None:
    """Let a layer read only some channels of a tensor that keeps them all."""
    network, columns = analysis.network, kept[layer.inputs.ids]
    if bool(columns.all()):
        return
    name = f"select_{layer.node.name}"
    network.register_buffer(name, columns.nonzero().squeeze(1))
    source = analysis.source(layer.node)
    dim = layer.inputs.dim - len(analysis.shapes[source])  # from the end: some networks squeeze a batch of one away
    with network.graph.inserting_before(layer.node):
        index = network.graph.get_attr(name)
        chosen = network.graph.call_function(torch.index_select, (source, dim, index))
    layer.node.replace_input_with(source, chosen)


def _flatten_behind_batch(network: fx.GraphModule, node: fx.Node) -> None:
    """A view to a fixed width becomes a flatten, which fits any width."""
    with network.graph.inserting_before(node):
        flat = network.graph.call_function(torch.flatten, (node.all_input_nodes[0], 1))
    node.replace_all_uses_with(flat)
    network.graph.erase_node(node)


def _check_same(masked: nn.Module, network: fx.GraphModule, inputs: tuple[Any, ...]) -> None:
    """Compare both networks on the example: a last guard against code that torch.fx itself misreads."""
    with torch.no_grad():  # each on a copy: what one writes into its inputs must not reach the other
        expected, got = (net.eval().cpu()(*map_inputs(inputs, torch.clone)) for net in (masked, network))
    for tensor, (distances, sizes) in zip(nested_tensors(expected), pairs(got, expected), strict=True):
        limit = _LIMITS.get(tensor.dtype, 1e-1)
        error = float(distances.max() / (1 + sizes.max()))
        if not error <= limit:
            raise PosterityError(
                f"compaction changed the outputs by {error:.2g} of their size, expected at most {limit:g}: "
                "does the network overwrite tensors in place?"
            )
