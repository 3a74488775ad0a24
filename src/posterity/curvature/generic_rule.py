"""Any other layer: vmap of its own vjp, on the inputs it was given and the output gradients it received.

The layer is run again, example by example in chunks, so this is slow and needs a layer that treats examples apart and
uses no random numbers. That is checked: what the layer gave on the batch must be what it gives on each example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.func import vjp, vmap
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from posterity.calling import functional_call
from posterity.curvature.outer import examples_at_once
from posterity.curvature.sink import Forward, Sink
from posterity.types import Params, PosterityError
from posterity.unrolled import transformable

_CHUNK = 16  # workspaces: the vmap holds several tensors the size of the per-example gradients at once


@dataclass(frozen=True)
class _Call:
    """One call of a module: its inputs, buffers and autocast, and its outputs with gradients, each by its place."""

    inputs: list[Any]
    spec: TreeSpec
    buffers: Params
    autocast: Callable[[], AbstractContextManager[Any]]
    places: list[int]
    outputs: list[Tensor]


def generic(module: nn.Module, original: Forward, sink: Sink) -> Forward:
    """Any module, with all the parameters below it."""
    rerunning = False

    def forward(*args: Any, **kwargs: Any) -> Any:
        buffers = {name: b.clone() for name, b in module.named_buffers()}
        out = original(*args, **kwargs)
        leaves = tree_flatten(out)[0]
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if rerunning or not places:
            return out
        inputs, spec = tree_flatten((args, kwargs))
        inputs = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in inputs]
        outputs = [leaves[i].detach().clone() for i in places]  # a clone, for an in-place activation may follow
        call = _Call(inputs, spec, buffers, _autocast(outputs[0].device.type), places, outputs)

        def backward(gradients: Sequence[Tensor | None]) -> None:
            nonlocal rerunning
            rerunning = True
            try:
                filled = zip(outputs, gradients, strict=True)
                _add_squares(module, sink, call, [torch.zeros_like(o) if g is None else g for o, g in filled])
            finally:
                rerunning = False

        register_multi_grad_hook([leaves[i] for i in places], backward)
        return out

    return forward


def _autocast(device: str) -> Callable[[], AbstractContextManager[Any]]:
    """The autocast that is on, for a backward pass, in which none is."""
    return partial(torch.autocast, device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device), False)


@torch.no_grad()
def _add_squares(module: nn.Module, sink: Sink, call: _Call, gradients: list[Tensor]) -> None:
    batch = len(gradients[0])
    scale = sink.report(call, gradients[0])
    mapped = [i for i, leaf in enumerate(call.inputs) if isinstance(leaf, Tensor) and leaf.shape[:1] == (batch,)]
    held = {name: p.detach() for name, p in module.named_parameters()}
    params = {name: held.pop(name) for name in sink.sums}

    def outputs(params: Params, own: list[Tensor]) -> list[Tensor]:
        inputs = list(call.inputs)
        for i, leaf in zip(mapped, own, strict=True):
            inputs[i] = leaf.unsqueeze(0)
        args, kwargs = tree_unflatten(inputs, call.spec)
        buffers = {name: b.clone() for name, b in call.buffers.items()}  # the module may write into them
        leaves = tree_flatten(functional_call(module, {**params, **held, **buffers}, args, kwargs))[0]
        return [leaves[i].squeeze(0).to(out.dtype) for i, out in zip(call.places, call.outputs, strict=True)]

    def gradient(own: list[Tensor], d: list[Tensor]) -> tuple[list[Tensor], Params]:
        out, pull = vjp(lambda p: outputs(p, own), params)  # type: ignore[misc]
        return out, pull(d)[0]

    size = _CHUNK * examples_at_once(sum(p.numel() for p in params.values()), gradients[0].device)
    for start in range(0, batch, size):
        part = slice(start, start + size)
        own, d = [call.inputs[i][part] for i in mapped], [g[part] for g in gradients]
        try:
            with transformable(module), call.autocast():
                again, squares = vmap(gradient, randomness="different")(own, d)  # randomness is found below
        except RuntimeError as error:
            raise PosterityError(f"{sink.label} has no per-example gradients: {error}") from error
        check_same(sink.label, again, [out[part] for out in call.outputs])
        for name, square in squares.items():
            sink.sums[name].add_(square.square().sum(0), alpha=scale)  # not in place: two may share memory


def check_same(label: str, again: list[Tensor], outputs: list[Tensor]) -> None:
    """Refuse a layer that gives each example something else alone than on the batch."""
    for a, b in zip(again, outputs, strict=True):
        tolerance = 1e3 * torch.finfo(b.dtype).eps
        if a.shape != b.shape or not torch.allclose(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max())):
            raise PosterityError(f"{label} is random or mixes examples, so that it has no per-example gradients")
