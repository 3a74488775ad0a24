"""The user's network: copies of it, its modes, its precision, its buffers."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._pytree import tree_leaves

from posterity.calling import type_name
from posterity.types import Params, PosterityError

__all__ = [
    "buffers_kept",
    "check_same_network",
    "copied",
    "differentiable",
    "duplicate",
    "hooked",
    "is_batchnorm",
    "is_frozen",
    "is_spread",
    "keeps_statistics",
    "load_buffers",
    "own_buffers",
    "parameter_uses",
    "plain_copy",
    "precision_of",
    "results_kept",
    "train_mode",
    "trained_network",
    "unwrapped",
]


AnyModule = TypeVar("AnyModule", bound=nn.Module)


def duplicate(module: AnyModule) -> AnyModule:
    """A deep copy; the network may keep results of its last pass, such as attention maps or features."""
    return copy.deepcopy(module, results_kept(module))


def results_kept(module: nn.Module) -> dict[int, Any]:
    """The memo for a deep copy of a network: what stands in it for results of the last pass, which torch cannot copy.

    A result with a graph behind it is copied without the graph. One of a pass under vmap or jvp has no numbers outside
    of that pass, and becomes an empty tensor.
    """
    found = [t for part in module.modules() for t in tree_leaves(vars(part)) if isinstance(t, Tensor)]
    escaped = [t for t in found if torch._C._functorch.is_functorch_wrapped_tensor(t)]
    nothing = {id(t): torch.empty(0) for t in escaped}
    return nothing | {id(t): t.detach().clone() for t in found if not t.is_leaf and id(t) not in nothing}


def unwrapped(module: nn.Module) -> nn.Module:
    """The network inside what ``torch.compile`` returned, whose parameters have the names that a posterior goes by."""
    return getattr(module, "_orig_mod", module)  # the class itself would import torch's compiler, for everyone


def is_spread(module: nn.Module) -> bool:
    """Whether it wraps a network over devices or processes."""
    return isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel)


def trained_network(module: nn.Module) -> nn.Module:
    """The plain network inside what a loop of one's own has compiled, spread over devices, or both."""
    inner = unwrapped(module)
    return trained_network(inner.module) if is_spread(inner) else inner  # type: ignore[arg-type]


def copied(module: nn.Module) -> nn.Module:
    """A copy of the user's network, which is never changed itself; one that could not be copied later is refused.

    Of a compiled network it is the plain one: names stay what they were, and draws go through it as through any other.
    Its embeddings have dense gradients: prior and noise act on every row, and few optimizers take sparse gradients. A
    BatchNorm or InstanceNorm layer in eval mode, in a network in training mode, is frozen; it is marked, since modes
    change later.
    """
    module = unwrapped(module)
    for name, part in module.named_modules():
        where, hooks = f"layer {name!r}" if name else "the network", part._forward_pre_hooks.values()
        if any(isinstance(hook, WeightNorm | SpectralNorm) for hook in hooks):
            raise PosterityError(
                f"{where} has torch.nn.utils' old weight or spectral norm, and cannot be copied after a call: use the "
                "one of torch.nn.utils.parametrizations"
            )
        if any(isinstance(hook, BasePruningMethod) for hook in hooks):
            raise PosterityError(
                f"{where} is masked by torch.nn.utils.prune, and cannot be copied: make its zeros its own first, by "
                "torch.nn.utils.prune.remove(layer, 'weight')"
            )
    network = duplicate(module)
    for part in network.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            part.sparse = False
        if keeps_statistics(part) and network.training and not part.training:
            part.frozen = True  # type: ignore[assignment]
    return network


def is_batchnorm(layer: nn.Module) -> bool:
    """Whether it is a BatchNorm layer, of any number of dimensions."""
    return isinstance(layer, _BatchNorm)


def keeps_statistics(layer: nn.Module) -> bool:
    """Whether it may have running statistics to normalise by in eval mode: a BatchNorm or InstanceNorm layer."""
    return isinstance(layer, _NormBase)


def is_frozen(layer: nn.Module) -> bool:
    """Whether it is a BatchNorm or InstanceNorm layer that keeps its running statistics in training, and uses them."""
    return getattr(layer, "frozen", False) and keeps_statistics(layer)


def train_mode(network: nn.Module) -> nn.Module:
    """The network in training mode, except for layers with running statistics that are frozen."""
    network.train()
    for layer in filter(is_frozen, network.modules()):
        layer.eval()
    return network


@contextmanager
def differentiable(network: nn.Module) -> Iterator[None]:
    """Inside, recurrent layers in eval mode do the same in training mode, where alone cuDNN differentiates them."""
    layers = [(m, m.dropout) for m in network.modules() if isinstance(m, nn.RNNBase) and not m.training]
    for layer, _ in layers:
        layer.training, layer.dropout = True, 0.0
    try:
        yield
    finally:
        for layer, rate in layers:
            layer.training, layer.dropout = False, rate


def plain_copy(module: nn.Module) -> nn.Module:
    """A copy in eval mode, whose parameters need no gradients."""
    return copied(module).eval().requires_grad_(False)


def precision_of(module: nn.Module) -> str:
    """The type of a network's weights, as files name it."""
    return type_name(next(module.parameters()).dtype)


def check_same_network(whose: str, theirs: Mapping[str, object], own: Mapping[str, object]) -> None:
    """Refuse what belongs to another network, as the names and shapes of its parameters tell."""
    for name in [*theirs, *own]:
        if theirs.get(name) != own.get(name):
            was, got = theirs.get(name, "absent"), own.get(name, "absent")
            raise PosterityError(
                f"{whose} belongs to another network: parameter {name!r} is {was} there and {got} here"
            )


def load_buffers(module: nn.Module, stored: Params) -> None:
    """Give a network these buffers, including those that are not persistent, which ``load_state_dict`` leaves out."""
    for name, buffer in module.named_buffers():
        if name in stored:
            buffer.data = stored[name].to(buffer)


@contextmanager
def own_buffers(module: nn.Module) -> Iterator[None]:
    """After it the network has the buffers that it had before, whatever its passes have put in their place."""
    before = [(part, dict(part._buffers)) for part in module.modules()]
    try:
        yield
    finally:
        for part, buffers in before:
            part._buffers.update(buffers)


@contextmanager
def hooked(layers: Iterable[nn.Module], hook: Callable[..., None]) -> Iterator[None]:
    """Inside, ``hook(layer, args, output)`` is called after every forward of these layers."""
    handles = [layer.register_forward_hook(hook) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def buffers_kept(module: nn.Module) -> Iterator[None]:
    """Put the buffers back as they were: looking at a module must not move its BatchNorm statistics."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        with own_buffers(module):
            yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)


def parameter_uses(outputs: Any) -> Counter[int]:
    """How many operations of the graph behind these outputs read each parameter, by its id."""
    nodes = [leaf.grad_fn for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
    met, found = set(nodes), Counter[int]()
    while nodes:
        for node, _ in nodes.pop().next_functions:
            parameter = getattr(node, "variable", None)
            if parameter is not None:
                found[id(parameter)] += 1
            elif node is not None and node not in met:
                met.add(node)
                nodes.append(node)
    return found
