"""What a traced network does with its units: which are constant, which are read by nobody, which must stay.

Forwards, every node gets its ``Channels`` (``rules.py``). A linear layer or convolution with weight W[o, k] gives

    output o is constant    if W[o, k] = 0 for every varying k; its value is b_o + Σ_k W[o, k] c_k

Under zero padding a constant c ≠ 0 is not constant at the border, so there it counts as varying: an *uneven* input.

Backwards, from what must stay, the units that are needed are the smallest set with

    k is needed             if a kept unit o of a layer reads it (W[o, k] ≠ 0) and it varies
    one uneven k is needed  if any is read: the maps of all constant channels under one padding are multiples of one
                            another, so one channel stands for them all

Everything else goes: constants move into biases.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from posterity.compression.rules import RULES
from posterity.compression.trace import Shapes, call_counts, in_place
from posterity.compression.units import Channels, Units

__all__ = ["Analysis", "Layer", "analyse"]


@dataclass(frozen=True)
class Layer:
    """A linear layer or convolution of the graph, between the units it reads and those it makes.

    Attributes:
        node: The call.
        weight: [O, C / groups, K] float64, with the kernel's positions in one dimension.
        bias: [O] float64.
        groups: Of the convolution.
        padded: Whether zeros are put around the input.
        inputs: The channels that it reads.
        outputs: The channels that it makes.
        selects: Whether it reads a tensor that was not followed, so that it would have to pick its inputs out of it.
    """

    node: fx.Node
    weight: Tensor
    bias: Tensor
    groups: int
    padded: bool
    inputs: Channels
    outputs: Channels
    selects: bool

    @property
    def reads(self) -> Tensor:
        """[O, C / groups] Whether an output looks at an input at all."""
        return (self.weight != 0).any(-1)

    @property
    def uneven(self) -> Tensor:
        """[C] Constants that stop being constant at a zero-padded border."""
        return self.inputs.constant & (self.inputs.value != 0) & torch.tensor(self.padded)

    @property
    def deputy(self) -> int:
        """The one uneven input that stands for them all: the largest, so that ratios to it stay at most one."""
        return int(self.inputs.value.abs().masked_fill(~self.uneven, -1).argmax())

    def looked_at(self, kept: Tensor) -> Tensor:
        """[C] The inputs that the kept outputs look at; none with groups, whose inputs are one unit with outputs."""
        if self.groups > 1:
            return torch.zeros(len(self.inputs.ids), dtype=torch.bool)
        return self.reads[kept[self.outputs.ids]].any(0)

    def read(self, kept: Tensor) -> Tensor:
        """The units of the inputs that the kept outputs look at."""
        return self.inputs.ids[self.looked_at(kept)]

    def needs(self, kept: Tensor) -> Tensor:
        """The units that the kept outputs cannot do without."""
        read = self.looked_at(kept)
        needed = read & ~self.inputs.constant
        if bool((read & self.uneven).any()):
            needed[self.deputy] = True
        return self.inputs.ids[needed]


@dataclass
class Analysis:
    """Everything known of one network; filled while the graph is walked, then read."""

    network: fx.GraphModule
    shapes: Shapes
    dtype: torch.dtype
    constants: dict[str, int]  # attributes that hold constants, and the dimension of their channels
    select: bool  # whether a layer may pick its inputs out of a tensor that cannot shrink
    units: Units = field(default_factory=Units)
    channels: dict[fx.Node, Channels] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    norms: list[tuple[fx.Node, Channels]] = field(default_factory=list)
    flattened: list[fx.Node] = field(default_factory=list)
    joins: list[fx.Node] = field(default_factory=list)
    not_followed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._calls = call_counts(self.network)

    def module(self, node: fx.Node) -> Any:
        """The sub-module that a node calls."""
        return self.network.get_submodule(str(node.target))

    def called_twice(self, node: fx.Node) -> bool:
        """Whether a layer's weights serve in several places."""
        return self._calls[str(node.target)] > 1

    def source(self, node: fx.Node) -> fx.Node:
        """The first tensor a node reads."""
        return node.all_input_nodes[0]

    def only_input(self, node: fx.Node) -> Channels | None:
        """The channels of the one tensor a node reads, if it reads one and that was followed."""
        return self.channels.get(self.source(node)) if len(node.all_input_nodes) == 1 else None

    def same_rank(self, node: fx.Node) -> bool:
        """Whether all tensors a node reads have as many dimensions as its result."""
        return all(len(self.shapes[n]) == len(self.shapes[node]) for n in node.all_input_nodes)

    def run(self, node: fx.Node, tensor: Tensor) -> Tensor:
        """The node's operation on another tensor in the place of its only input."""
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda _: tensor)
        operation: Any = node.target
        with torch.no_grad():
            if node.op == "call_module":
                return self.module(node)(*args, **kwargs)
            if node.op == "call_method":
                return getattr(args[0], operation)(*args[1:], **kwargs)
            return operation(*args, **kwargs)

    def add_layer(self, node: fx.Node) -> Channels | None:
        """Write down a linear layer or convolution, and what its outputs are."""
        module = self.module(node)
        shape = self.shapes[self.source(node)]
        dim = len(shape) - 1 if type(module) is nn.Linear else 1
        known = self.channels.get(self.source(node))
        if dim == 0 or (known is not None and known.dim != dim):
            return None  # one example without its batch, or channels that lie elsewhere
        groups, padded = getattr(module, "groups", 1), _pads_with_zeros(module)
        weight = module.weight.detach().double()
        weight = weight.reshape(*weight.shape[:2], -1)
        bias = torch.zeros(len(weight), dtype=torch.float64) if module.bias is None else module.bias.detach().double()
        inputs = known or self.units.varying(shape[dim], dim)
        outputs = self.units.varying(len(weight), dim)
        layer = Layer(node, weight, bias, groups, padded, inputs, outputs, selects=known is None)
        if groups > 1:
            self._tie_groups(layer)
        if layer.selects and (groups > 1 or not self.select):
            self.units.pin(inputs.ids)
        self.layers.append(layer)
        outputs.value.copy_(_values(layer))
        return outputs

    def _tie_groups(self, layer: Layer) -> None:
        """A group goes as a whole: its inputs and outputs are one unit."""
        members = torch.cat([layer.inputs.ids.view(layer.groups, -1), layer.outputs.ids.view(layer.groups, -1)], dim=1)
        self.units.tie(members[:, :1].expand_as(members).reshape(-1), members.reshape(-1))

    def stop(self, node: fx.Node) -> None:
        """A node that no rule follows: whatever it reads stays."""
        read = [n for n in node.all_input_nodes if n in self.channels]
        for source in read:
            self.units.pin(self.channels[source].ids)
        module = self.module(node) if node.op == "call_module" else None
        holds_weights = module is not None and any(p.dim() > 1 for p in module.parameters())
        if (read and node.op != "output") or holds_weights:
            self.not_followed.append(node.name if module is None else f"{node.name} ({type(module).__name__})")

    def kept(self) -> Tensor:
        """[units] True for every unit that stays, ties resolved."""
        return self._backwards(Layer.needs)

    def read(self) -> Tensor:
        """[units] True for every unit that has a say in the output, be it a constant."""
        return self._backwards(Layer.read)

    def _backwards(self, wants: Callable[[Layer, Tensor], Tensor]) -> Tensor:
        """The smallest set of units that holds those that must stay, and all that the layers of the set want."""
        roots = self.units.resolved()
        kept = self.units.pinned()
        size = -1
        while int(kept.sum()) != size:
            size = int(kept.sum())
            for layer in reversed(self.layers):
                kept[roots[wants(layer, kept[roots])]] = True
        return kept[roots]

    @property
    def constant_output(self) -> bool:
        """Whether the network says the same whatever it is shown."""
        results = next(n for n in self.network.graph.nodes if n.op == "output").all_input_nodes
        return all(n in self.channels and bool(self.channels[n].constant.all()) for n in results)


def _pads_with_zeros(module: Any) -> bool:
    if type(module) is nn.Linear or module.padding_mode != "zeros":
        return False
    return bool(module.padding != "valid" if isinstance(module.padding, str) else any(module.padding))


def _values(layer: Layer) -> Tensor:
    """[O] The constants a layer makes, NaN where an output varies."""
    total = layer.weight.sum(-1)
    known = layer.inputs.value.nan_to_num()
    varies = ~layer.inputs.constant | layer.uneven
    if layer.groups == 1:
        moving = (layer.reads & varies).any(1)
        return (layer.bias + total @ known).masked_fill(moving, torch.nan)
    per_group = len(layer.weight) // layer.groups
    known = known.view(layer.groups, -1).repeat_interleave(per_group, 0)
    varies = varies.view(layer.groups, -1).repeat_interleave(per_group, 0)
    moving = (layer.reads & varies).any(1)
    return (layer.bias + (total * known).sum(1)).masked_fill(moving, torch.nan)


def _changes_shared_tensor(network: fx.GraphModule, node: fx.Node) -> bool:
    """Whether somebody overwrites this tensor in place while others still read it."""
    return len(node.users) > 1 and any(in_place(network, user) for user in node.users)


def _asks_batch_size(node: fx.Node) -> bool:
    """x.size(0) and x.shape[0] read no channel."""
    if node.op == "call_method" and node.target == "size":
        if len(node.args) == 2:
            return bool(node.args[1] == 0)
    elif not (node.target is getattr and node.args[1] == "shape"):
        return False
    return all(user.target is operator.getitem and user.args[1] == 0 for user in node.users)


def analyse(network: fx.GraphModule, shapes: Shapes, constants: dict[str, int], select: bool) -> Analysis:
    """Walk the graph once; see the module's docstring.

    Args:
        network: A traced network.
        shapes: The shape of every tensor in it.
        constants: Attributes that hold constants in the place of dead branches, with the dimension of their channels.
        select: Whether a layer may pick its inputs out of a tensor that cannot shrink.
    """
    dtype = next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.get_default_dtype())
    analysis = Analysis(network, shapes, dtype, constants, select)
    for node in network.graph.nodes:
        if node.op == "placeholder" or _asks_batch_size(node) or (not node.all_input_nodes and node.op != "get_attr"):
            continue
        key: Any = node.target if node.op != "get_attr" else "get_attr"
        if node.op == "call_module":
            key = type(analysis.module(node))
        rule = RULES.get(key)
        result = rule(analysis, node) if rule is not None and node in shapes else None
        if result is None:
            analysis.stop(node)
        elif _changes_shared_tensor(network, node):
            analysis.units.pin(result.ids)
        else:
            analysis.channels[node] = result
    return analysis
