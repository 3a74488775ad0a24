"""Modules with parameters of their own beside layers: one vmap, in which every example has a copy of each parameter.

A class token, positions that are learned, the scale of a branch, a table that words are looked up in and scored by:
such a parameter P is used in the midst of a module's own code, in ways that no rule can foresee. The module's forward
runs under ``vmap`` instead, with P.expand(B, ...) for P, so that the gradient that reaches the copies is each example's
own. It runs once, dropout included, and the copies themselves take no memory. That it gives what it gives on the batch
is looked at once, in eval mode.

Layers with a rule leave the vmap, and see the whole batch as ever. Where examples do not come first in what a layer is
given (as in positions 0, 1, 2, ... that all examples share), it stays inside and uses copies, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from posterity.calling import nested_tensors
from posterity.curvature.generic_rule import check_same
from posterity.curvature.sink import SECOND_BATCH, Forward, Pass, Sink
from posterity.networks import buffers_kept
from posterity.types import PosterityError
from posterity.unrolled import PLAIN, explained, replaced_forwards, transformable

_ANY_CALL = object()  # what all uses of a copy report as their call
_ADVICE = "give the parameters to a small module, and let that alone use them"


class Copies:
    """The copies of one capture.

    Args:
        shared: What its layers share.
    """

    def __init__(self, shared: Pass) -> None:
        self._shared = shared
        self._sinks: dict[int, tuple[Sink, str]] = {}
        self._inside: list[tuple[nn.Module, Forward]] = []
        self._plain: list[tuple[nn.Module, Forward]] = []  # what layers do where nothing is watched
        self._originals: dict[int, Tensor] = {}  # the parameter behind each copy, while a vmap runs
        self._staying: set[nn.Module] = set()  # layers that never leave

    def owns(self, sink: Sink, own: Mapping[str, Tensor]) -> None:
        """Say where the squares of these parameters go."""
        self._sinks.update({id(p): (sink, name) for name, p in own.items()})

    def inside(self, layer: nn.Module, original: Forward, rule: Forward | None = None) -> None:
        """Say what a layer does in the vmap of a module above: leave it for its rule, or what it does without one."""
        self._plain.append((layer, original))
        if type(layer).forward not in PLAIN:  # those have another forward there already
            leaving = rule and _leaving(layer, original, rule, self._originals, self._staying)
            self._inside.append((layer, leaving or original))

    def whole(
        self, module: nn.Module, forward: Forward | None, layers: Mapping[nn.Module, bool], sink: Sink
    ) -> Forward:
        """The forward of a whole network, under one vmap if its layers are used in ways that rules cannot follow.

        Args:
            module: The network.
            forward: What it does in a capture, if it has parameters of its own.
            layers: Those that must give examples first, and whether they may be used several times.
            sink: Of the network.
        """
        original, looked = module.forward, False

        @_uncompiled
        def look(*args: Any, **kwargs: Any) -> None:
            nonlocal forward, looked
            # Whatever goes wrong now does so in the pass, too, unless the network is made for one size of batch. Its
            # layers are taken to be used as usual then.
            with suppress(Exception), _resting(module):
                self._staying.update(self._misused(module, original, layers, (args, kwargs)))
            if self._staying and forward is None:
                name = next(name for name, layer in module.named_modules() if layer in self._staying)
                advice = f"let {name} see examples first, and once in a pass, or use IVON, SWAG or another method"
                forward = self.forward(module, original, sink, advice)
            looked = True

        def chosen(*args: Any, **kwargs: Any) -> Any:
            if not looked:
                look(*args, **kwargs)
            return (forward or original)(*args, **kwargs)

        return chosen

    def _misused(
        self, module: nn.Module, forward: Forward, layers: Mapping[nn.Module, bool], given: Any
    ) -> set[nn.Module]:
        """The layers that are used twice though they may not be, or do not give examples first, as a few of these tell.

        They are as many as nothing else that the network holds or is given, nor the batch itself, is long.
        """
        tensors, put = _taken_apart(given)
        batch = next((len(t) for t in tensors if t.dim()), 0)
        lengths = {length for t in (*tensors, *module.parameters(), *module.buffers()) for length in t.shape}
        few = next(number for number in count(3) if number not in lengths)
        rows = [i % batch for i in range(few)] if batch else []
        args, kwargs = put([t[rows] if t.shape[:1] == (batch,) else t for t in tensors])
        met: set[nn.Module] = set()
        found: set[nn.Module] = set()

        def noting(layer: nn.Module, original: Forward) -> Forward:
            def noted(*args: Any, **kwargs: Any) -> Any:
                output = original(*args, **kwargs)
                first = next(iter(nested_tensors(output)), None)
                again = layer in met and not layers[layer]
                if again or first is None or first.shape[:1] != (len(rows),):
                    found.add(layer)
                met.add(layer)
                return output

            return noted

        plain = [(layer, noting(layer, own) if layer in layers else own) for layer, own in self._plain]
        with replaced_forwards(plain):
            forward(*args, **kwargs)
        return found

    def forward(self, module: nn.Module, original: Forward, sink: Sink, advice: str = _ADVICE) -> Forward:
        """The forward of a module under a vmap over examples."""
        problem, looked = f"{sink.label} has a forward that torch cannot follow by example", False

        def by_example(*args: Any, **kwargs: Any) -> Any:
            with explained(problem, advice), disable_saved_tensors_hooks("checkpoints are taken"):
                return self._by_example(module, original, sink, (args, kwargs))

        @_uncompiled  # it would be compiled anew for every parameter
        def forward(*args: Any, **kwargs: Any) -> Any:
            nonlocal looked
            with transformable(module), replaced_forwards(self._inside):
                if not looked:
                    with _resting(module):
                        plain, own = (_floats(run(*args, **kwargs)) for run in (original, by_example))
                    check_same(sink.label, own, plain)
                    looked = True
                return by_example(*args, **kwargs)

        return forward

    def _by_example(self, module: nn.Module, original: Forward, sink: Sink, given: Any) -> Any:
        """The outputs of a call with these arguments."""
        tensors, put = _taken_apart(given)
        batch = next((len(t) for t in tensors if t.dim()), None)
        if batch is None:
            message = f"{sink.label} was called without a tensor, and squared gradients need a batch of examples"
            raise PosterityError(message)
        dims = [0 if t.shape[:1] == (batch,) else None for t in tensors]
        params = [p for p in module.parameters() if p.requires_grad]
        late = len(self._shared.reported) > 0  # a backward pass has been here
        key = (batch, late, torch.is_grad_enabled())
        copies = [self._shared.once((id(p), *key), partial(self._copied, p, batch, late)) for p in params]
        put_out = put

        def one(copies: list[Tensor], *own: Tensor) -> list[Tensor]:
            nonlocal put_out
            self._originals.clear()
            self._originals.update({id(copy): p for copy, p in zip(copies, params, strict=True)})
            with _holding(module, {id(p): copy for copy, p in zip(copies, params, strict=True)}):
                args, kwargs = put([t if dim is None else t.unsqueeze(0) for t, dim in zip(own, dims, strict=True)])
                found, put_out = _taken_apart(original(*args, **kwargs))
            if any(map(is_batchedtensor, module.buffers())):
                raise RuntimeError("it keeps statistics of its batches")  # as torch raises for those kept in place
            return found

        outputs = vmap(one, in_dims=(0, *dims), randomness="different")(copies, *tensors)
        return put_out([t.flatten(0, 1) if t.dim() > 1 else t for t in outputs])

    def _copied(self, p: Tensor, batch: int, late: bool) -> Tensor:
        """A copy for each example, whose gradient is squared."""
        copies = p.expand(batch, *p.shape)
        if copies.requires_grad:
            copies.register_hook(partial(self._add, p, late))
        return copies

    @torch.no_grad()
    def _add(self, p: Tensor, late: bool, gradient: Tensor) -> None:
        if late:
            raise PosterityError(SECOND_BATCH)
        sink, name = self._sinks[id(p)]
        if name not in sink.sums:
            raise PosterityError(
                f"{sink.label} is not given examples first, so that it has no Kronecker factors: a diagonal curvature, "
                "as of VOGN and of Laplace(structure='diagonal'), can do with that"
            )
        scale, out = sink.report(_ANY_CALL, gradient), sink.sums[name]
        out.add_(gradient.to(out.dtype).square().sum(0), alpha=scale)


def _leaving(
    layer: nn.Module, original: Forward, rule: Forward, originals: Mapping[int, Tensor], staying: Collection[nn.Module]
) -> Forward:
    """A layer's forward inside a vmap, which goes outside with all examples where they come first."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        tensors, put = _taken_apart((args, kwargs))
        if layer in staying or not _examples_first(tensors):
            return original(*args, **kwargs)
        put_out = put

        def whole(*tensors: Tensor) -> list[Tensor]:
            nonlocal put_out
            args, kwargs = put(tensors)
            with _holding(layer, originals):
                found, put_out = _taken_apart(rule(*args, **kwargs))
            return found

        outputs = _Outside.apply(whole, *tensors)
        return put_out(outputs)

    return forward


class _Outside(torch.autograd.Function):
    """A function of the whole batch, called inside the vmap, where an example is a batch of one."""

    @staticmethod
    def forward(function: Callable[..., Any], *tensors: Tensor) -> Any:  # type: ignore[override]
        return function(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: the derivative is that of what ``vmap`` calls."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, function: Callable[..., Any], *tensors: Tensor) -> Any:  # type: ignore[override]
        dims = in_dims[1:]
        outputs = function(
            *(t if d is None else t.movedim(d, 0).squeeze(1) for t, d in zip(tensors, dims, strict=True))
        )
        # Copied, since what follows may write in place, which torch forbids in views of another function's outputs.
        return tuple(out.unsqueeze(1).clone() for out in outputs), (0,) * len(outputs)


def _examples_first(tensors: Sequence[Tensor]) -> bool:
    """Whether a call inside the vmap is one by example: its first input is, and each one that is comes as a batch."""
    own = [t for t in tensors if is_batchedtensor(t)]
    return len(own) > 0 and own[0] is tensors[0] and all(t.shape[:1] == (1,) for t in own)


@contextmanager
def _resting(module: nn.Module) -> Iterator[None]:
    """Inside, the module is in eval mode, where dropout rests; it keeps its buffers, and draws no random numbers."""
    modes = [(part, part.training) for part in module.modules()]
    devices = {p.device for p in module.parameters() if p.device.type == "cuda"}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices), buffers_kept(module):
            module.eval()
            yield
    finally:
        for part, training in modes:
            part.training = training


def _uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which a compiler leaves as it is; only then is imported what says so, which takes a second."""
    hidden = torch._disable_dynamo(function)
    return lambda *args, **kwargs: (hidden if torch.compiler.is_compiling() else function)(*args, **kwargs)


def _floats(outputs: Any) -> list[Tensor]:
    return [t for t in nested_tensors(outputs) if t.is_floating_point()]


def _taken_apart(values: Any) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
    """The tensors among them, and a function that puts others in their places."""
    leaves, spec = tree_flatten(values)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def put(tensors: Sequence[Tensor]) -> Any:
        filled = list(leaves)
        for i, tensor in zip(places, tensors, strict=True):
            filled[i] = tensor
        return tree_unflatten(filled, spec)

    return [leaves[i] for i in places], put


@contextmanager
def _holding(module: nn.Module, others: Mapping[int, Tensor]) -> Iterator[None]:
    """Inside, a module has other tensors in the place of those parameters whose ids are given."""
    places = [(part._parameters, name, p) for part in module.modules() for name, p in part._parameters.items()]
    places = [place for place in places if id(place[2]) in others]
    try:
        for parameters, name, p in places:
            parameters[name] = others[id(p)]  # type: ignore[assignment]  # as in functional_call
        yield
    finally:
        for parameters, name, p in places:
            parameters[name] = p
