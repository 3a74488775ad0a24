"""A network as a graph: traced with torch.fx, shapes measured, BatchNorm folded, idle layers taken out.

Sub-modules whose own Python torch.fx cannot follow become single opaque calls; a network whose outermost forward
cannot be followed is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn

from posterity import calling
from posterity.networks import duplicate
from posterity.types import Inputs, PosterityError

__all__ = [
    "Network",
    "Shapes",
    "arguments",
    "call_counts",
    "clean",
    "fold_batch_norm",
    "in_place",
    "measure_shapes",
    "remove_identities",
    "trace",
]

Shapes = dict[fx.Node, torch.Size]
"""The shape of every node that is one tensor."""

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_IDENTITIES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_FUNCTIONS: dict[type, tuple[Any, ...]] = {
    nn.ReLU: (torch.relu,),
    nn.Tanh: (torch.tanh,),
    nn.Sigmoid: (torch.sigmoid,),
    nn.Flatten: (torch.flatten, 1),
}
_MIXING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Network(fx.GraphModule):
    """A traced network that is called like any other module."""

    def recompile(self) -> Any:
        """Make the code fit the graph."""
        code = super().recompile()
        # On small networks the way to the layers takes as long as the layers do. fx's own call only rewrites error
        # messages; and what stands in __dict__ is found without nn.Module's slow search. Setting a layer removes it
        # from there, so it cannot go stale.
        del type(self).__call__
        for module in self.modules():
            module.__dict__.update(module._modules)
        return code


class _Tracer(fx.Tracer):
    """Follows every module but torch's own and those named opaque."""

    proxy_buffer_attributes = True  # so that ``self.positions[: x.shape[1]]`` can be traced

    def __init__(self, opaque: Iterable[nn.Module] = ()) -> None:  # unpickling a network gives none
        super().__init__()
        self._opaque = set(opaque)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is one call of the graph."""
        return m in self._opaque or super().is_leaf_module(m, module_qualified_name)


def trace(module: nn.Module) -> Network:
    """The graph of a copy of ``module`` in evaluation mode, on the CPU."""
    _refuse_tied(module)
    module = duplicate(module).eval().cpu()
    try:
        graph = _Tracer().trace(module)
    except Exception:  # whatever the user's forward raises when it meets a proxy
        graph = _trace_around(module)
    network = Network(module, graph)
    _follow_overwritten(network)
    _use_functions(network)
    return network


def _trace_around(module: nn.Module) -> fx.Graph:
    """The graph of a network some of whose parts cannot be traced: those are one call each."""
    opaque = [sub for sub in module.modules() if sub is not module and not _traceable(sub)]
    try:
        return _Tracer(opaque).trace(module)
    except Exception as error:
        kind = type(module).__name__
        raise PosterityError(f"torch.fx cannot trace {kind}.forward, so it cannot be compacted: {error}") from error


def in_place(network: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node overwrites the tensor that it reads first."""
    if node.op == "call_module":
        return bool(getattr(network.get_submodule(str(node.target)), "inplace", False))
    function: Any = node.target
    name = function if node.op == "call_method" else getattr(function, "__name__", "")
    named = name.endswith("_") and getattr(function, "__module__", "") != "_operator"  # and_, or_, not_
    return node.kwargs.get("inplace") is True or (named and node.op in ("call_method", "call_function"))


def _follow_overwritten(network: Network) -> None:
    """Let those who read a tensor after it was overwritten read the result: a graph loses what nobody reads."""
    place = {node: number for number, node in enumerate(network.graph.nodes)}
    for node in place:
        if in_place(network, node):
            source = node.all_input_nodes[0]
            for user in [user for user in source.users if place[user] > place[node]]:
                user.replace_input_with(source, node)


def _use_functions(network: Network) -> None:
    """Activations and flattening as functions, which are called faster than modules."""
    for node in list(network.graph.nodes):
        module = network.get_submodule(node.target) if node.op == "call_module" else None
        overwrites = getattr(module, "inplace", False) and len(node.args[0].users) > 1
        if overwrites or (type(module) is nn.Flatten and (module.start_dim, module.end_dim) != (1, -1)):
            continue
        if type(module) in _FUNCTIONS:
            function, *arguments = _FUNCTIONS[type(module)]
            with network.graph.inserting_before(node):
                new = network.graph.call_function(function, (node.args[0], *arguments))
            node.replace_all_uses_with(new)
            network.graph.erase_node(node)
    clean(network)


def _traceable(module: nn.Module) -> bool:
    """Whether a module's own forward can be traced, its children taken as given."""
    if fx.Tracer().is_leaf_module(module, ""):
        return True  # torch's own layers are never traced into
    try:
        _Tracer(module.children()).trace(module)
    except Exception:
        return False
    return True


def _refuse_tied(module: nn.Module) -> None:
    """Two names for one parameter cannot shrink differently."""
    seen: dict[int, str] = {}
    for name, param in module.named_parameters(remove_duplicate=False):
        first = seen.setdefault(id(param), name)
        if first != name:
            raise PosterityError(f"{first!r} and {name!r} are one tied parameter, which cannot shrink: untie them")


def arguments(network: fx.GraphModule, example: Inputs) -> tuple[Any, ...]:
    """An example as positional arguments, on the CPU, with a batch of at least two.

    A batch of one hides reshapes that mix the batch with the channels.
    """
    named = [node for node in network.graph.nodes if node.op == "placeholder"]
    positional, keywords = calling.arguments(example)
    unknown = set(keywords) - {node.target for node in named}
    if unknown:
        raise PosterityError(f"the example has an input {unknown.pop()!r} that the network does not take")
    left = [keywords[n.target] if n.target in keywords else n.args[0] for n in named[len(positional) :] if keywords]
    return tuple(_as_batch(value) for value in (*positional, *left))


def _as_batch(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu()
    return value if value.dim() == 0 or len(value) > 1 else torch.cat([value, value])


class _Recorder(fx.Interpreter):
    """Runs the graph and writes down shapes."""

    def __init__(self, network: fx.GraphModule) -> None:
        super().__init__(network)
        self.shapes: Shapes = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.shapes[n] = result.shape
        return result


def measure_shapes(network: fx.GraphModule, inputs: tuple[Any, ...]) -> Shapes:
    """The shape of every tensor in the graph when it is called with ``inputs``."""
    recorder = _Recorder(network)
    with torch.no_grad():
        recorder.run(*calling.map_inputs(inputs, torch.clone))  # the network may write into its inputs
    return recorder.shapes


def call_counts(network: fx.GraphModule) -> Counter[str]:
    """How often the graph calls each sub-module, or reads a weight of it by itself."""
    whose = {"call_module": lambda name: name, "get_attr": lambda name: name.rpartition(".")[0]}
    return Counter(whose[node.op](str(node.target)) for node in network.graph.nodes if node.op in whose)


def remove_identities(network: fx.GraphModule) -> None:
    """Take out modules that do nothing in evaluation mode: dropout, identity."""
    for node in list(network.graph.nodes):
        if node.op == "call_module" and isinstance(network.get_submodule(node.target), _IDENTITIES):
            node.replace_all_uses_with(node.args[0])
            network.graph.erase_node(node)
    clean(network)


def fold_batch_norm(network: fx.GraphModule, shapes: Shapes) -> None:
    """Scale and shift of a BatchNorm that follows a linear layer or convolution, written into that layer.

    y = γ (W x + b − m) / √(v + ε) + β, so W ← s W and b ← s (b − m) + β with s = γ / √(v + ε): one row each, so no zero
    is lost. A layer that somebody else reads too, or a BatchNorm without running statistics, stays as it is.
    """
    calls = call_counts(network)
    modules = dict(network.named_modules())
    for node in list(network.graph.nodes):
        if node.op != "call_module" or type(modules[node.target]) not in _BATCH_NORMS:
            continue
        source, norm = node.args[0], modules[node.target]
        layer = modules[source.target] if source.op == "call_module" else None
        if type(layer) not in _MIXING or norm.running_mean is None or len(source.users) > 1:
            continue
        # BatchNorm1d after a linear layer on [N, T, C] normalises T, not the layer's outputs.
        same_channels = type(layer) is not nn.Linear or len(shapes[source]) == 2
        if same_channels and calls[source.target] == calls[node.target] == 1:
            _absorb(layer, norm)
            node.replace_all_uses_with(source)
            network.graph.erase_node(node)
    clean(network)


def _absorb(layer: Any, norm: Any) -> None:
    """The BatchNorm's scale and shift as the layer's own."""
    mean, variance = norm.running_mean.double(), norm.running_var.double()
    gain = torch.ones_like(mean) if norm.weight is None else norm.weight.detach().double()
    shift = torch.zeros_like(mean) if norm.bias is None else norm.bias.detach().double()
    scale = gain / (variance + norm.eps).sqrt()
    weight = layer.weight.detach()
    bias = torch.zeros_like(mean) if layer.bias is None else layer.bias.detach().double()
    scaled = weight.double() * scale.view(-1, *[1] * (weight.dim() - 1))
    trainable = layer.weight.requires_grad
    layer.weight = nn.Parameter(scaled.to(weight.dtype), trainable)
    layer.bias = nn.Parameter((scale * (bias - mean) + shift).to(weight.dtype), trainable)


def clean(network: fx.GraphModule) -> None:
    """Code and sub-modules brought in line with the graph."""
    network.graph.lint()
    network.recompile()
    network.delete_all_unused_submodules()
