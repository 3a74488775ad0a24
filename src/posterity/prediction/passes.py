"""Draws through a network, the fastest way that this device offers.

Sets of weights go through the network one after the other or in chunks under ``vmap``, the inputs all at once or in
blocks that stay in cache. Which is faster depends on network and device, so the ways are timed once a posterior and the
winner is kept; all compute the same numbers up to rounding.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.func import vmap

from posterity.calling import InputSpec, arguments, call, functional_call, map_inputs, num_examples
from posterity.devices import activation_bytes
from posterity.probability.likelihoods import Likelihood
from posterity.recorded import Recorded
from posterity.types import Inputs, Params, PosterityError, Predictor, check_positive_if_given, check_whole

__all__ = ["KEEP", "Compute", "DrawsFunctions", "Passes", "Way", "Weights", "blocks", "stack"]

_CACHE_BLOCK = 250  # inputs whose activations stay in a CPU's cache (measured: 125 to 250)
_PROBE = 1000  # inputs that ways are timed on
_CLEARLY = 0.95  # a way that is faster than the plain loop by less than this may owe it to chance
_HOPELESS, _SHORT = 3.0, 0.05  # a way this many times as slow, and not within so many seconds, is timed only once
KEEP = 2**26  # numbers of its own draws that a posterior keeps stacked: 256 MB in float32

T = TypeVar("T")
Weights = tuple[Params, Params]
"""Parameters and buffers of one draw."""


class DrawsFunctions(Protocol):
    """What prediction needs of a posterior."""

    likelihood: Likelihood
    inputs: InputSpec | None
    module: nn.Module
    ways: dict[Any, Any]

    @property
    def most_draws(self) -> int | None:
        """How many draws can be asked for, where they are limited."""
        ...

    def draws(self, n: int, generator: torch.Generator | None = None) -> Iterator[Predictor]:
        """n functions."""
        ...

    def drawn_outputs(
        self, inputs: Inputs, n: int, generator: torch.Generator | None = None, block: int | None = None
    ) -> Iterator[Tensor]:
        """What n functions make of the inputs, [some draws, batch, ...] at a time."""
        ...

    def samples(self, n: int, generator: torch.Generator | None = None) -> Iterator[Weights] | None:
        """The weights of n draws, or None where a draw is not a set of weights."""
        ...

    def independent_moments(self) -> tuple[Params, Params]:
        """Mean and variance of every parameter, where parameters are independent Gaussians."""
        ...


@dataclass(frozen=True)
class Compute:
    """How a prediction is computed; the defaults are right for almost everyone.

    Attributes:
        batched: Draws through vmap (True), one by one (False), or whichever is measured to be faster (None).
        compile: Compile the batched pass: worth it on a GPU when the same shapes are predicted often.
        chunk: Draws of one batched pass; None takes 8 on a CPU and 32 on a GPU.
        memory: Bytes that the activations of one pass may take; None takes 1 GiB on a CPU and a quarter of what is free
            on a GPU.
        block: Inputs of one pass; None takes as many as the memory allows, or fewer if that is faster.
    """

    batched: bool | None = None
    compile: bool = False
    chunk: int | None = None
    memory: int | None = None
    block: int | None = None

    def __post_init__(self) -> None:
        given = {"chunk": self.chunk, "memory": self.memory, "block": self.block}
        check_whole(**given)
        check_positive_if_given(**given)


@dataclass(frozen=True)
class Way:
    """One way through the network: draws in a batched pass or one by one, and how many inputs at a time."""

    batched: bool
    block: int


class Passes:
    """Chunks of draws through one network; kept with its posterior, so that what it learns is learned once.

    It holds no reference to the posterior or to itself, so that the memory of both is free as soon as they are let go.

    Args:
        module: The network.
        compute: How the user wants it done.
    """

    def __init__(self, module: nn.Module, compute: Compute) -> None:
        self.module, self.compute = module, compute
        self.device = next(module.parameters()).device
        self.chunk = compute.chunk or (8 if self.device.type == "cpu" else 32)
        self.one_pass: Callable[[Weights, Inputs], Tensor] = partial(_outputs, module)
        self.stacked_pass: Callable[[Weights, Inputs], Tensor] = partial(_stacked_outputs, module)
        if compute.compile:
            self.one_pass = torch.compile(self.one_pass)
            self.stacked_pass = torch.compile(self.stacked_pass)
        # Recurrent layers have no batching rule; everything else is taken to have one until it is tried.
        self.vmappable = not any(isinstance(m, nn.RNNBase) for m in module.modules())
        self.budgets: dict[InputSpec, int] = {}  # inputs whose activations fit the memory, by their shape
        self.ways: dict[int, Way] = {}  # by the bits of the number of inputs
        self.kept: dict[int, list[Weights]] = {}
        self.replays: dict[int, Recorded] = {}  # of the chunks that are kept, which lie where they lie

    def chunks(self, posterior: DrawsFunctions, count: int, generator: torch.Generator | None) -> Iterable[Weights]:
        """Draws stacked in chunks; those of the posterior's own seed are kept for the next call unless big."""
        own = generator is None and count * sum(p.numel() for p in self.module.parameters()) <= KEEP
        if own and count in self.kept:
            return self.kept[count]
        samples = posterior.samples(count, generator)
        if samples is None:
            raise PosterityError("this posterior's draws are not sets of weights")
        stacked = (stack(chunk) for chunk in batched(samples, self.chunk))
        if not own:
            return stacked
        self.kept = {count: list(stacked)}
        self.replays = {
            id(chunk): Recorded(partial(self.stacked_pass, chunk))
            for chunk in self.kept[count]
            if self.compute.compile and self.device.type == "cuda"
        }
        return self.kept[count]

    def __call__(self, chunk: Weights, inputs: Inputs, way: Way) -> Tensor:
        """Outputs of the chunk's draws, [draws, batch, ...]."""
        parts = list(blocks(inputs, way.block))
        if way.batched:
            replay = self.replays.get(id(chunk))
            outputs = [replay(part).clone() if replay else self.stacked_pass(chunk, part) for part in parts]
            return _join(outputs, dim=1)
        draws = [_row(chunk, i) for i in range(_count(chunk))]
        if self.compute.compile:
            return torch.stack([_join([self.one_pass(draw, part) for part in parts], dim=0) for draw in draws])
        return torch.stack(self._looped(draws, parts))

    def _looped(self, draws: list[Weights], parts: list[Inputs]) -> list[Tensor]:
        """Outputs draw by draw, the draws' tensors standing in for the module's own."""
        # As functional_call does, but without its overhead, a tenth of a small network's forward pass.
        own = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        saved = {name: tensor.data for name, tensor in own.items()}
        outputs = []
        try:
            for params, buffers in draws:
                for name, value in (*params.items(), *buffers.items()):
                    own[name].data = value
                outputs.append(_join([call(self.module, part) for part in parts], dim=0))
        finally:
            for name, value in saved.items():
                own[name].data = value
        return outputs

    def way(self, posterior: DrawsFunctions, inputs: Inputs, count: int) -> Way:
        """The way asked for, or the fastest of those worth trying, timed once for about so many inputs."""
        if self.compute.batched is not None:
            return self._largest(self.compute.batched, inputs)
        if count < self.chunk or not self.vmappable:
            return self._largest(False, inputs)
        size = min(num_examples(inputs), _PROBE).bit_length()
        if size not in self.ways:
            chunk = next(iter(self.chunks(posterior, self.chunk, None)))
            self.vmappable = self._batches(chunk, inputs)
            self.ways[size] = self._fastest(chunk, inputs) if self.vmappable else self._largest(False, inputs)
        fastest = self.ways[size]  # sentences may be longer than those that it was timed on
        return replace(fastest, block=min(fastest.block, self._largest(fastest.batched, inputs).block))

    def _batches(self, chunk: Weights, inputs: Inputs) -> bool:
        """Whether vmap can follow the network; it cannot branch on values, or write into a tensor of its own making."""
        try:
            with warnings.catch_warnings():
                # Of an operation that it would only repeat draw by draw, such as torch's fused transformer layer.
                warnings.filterwarnings("error", "There is a performance drop")
                self(chunk, map_inputs(inputs, lambda t: t[:2]), Way(True, 2))
        except Exception:  # whatever the network raises; if the fault is not vmap's, the loop will raise it again
            return False
        return True

    def _fastest(self, chunk: Weights, inputs: Inputs) -> Way:
        """Time one chunk each way on the first inputs; the best of a few tries counts."""
        few = map_inputs(inputs, lambda t: t[:_PROBE])
        ways = [self._largest(False, inputs), self._largest(True, inputs)]
        if self.device.type == "cpu" and num_examples(few) > _CACHE_BLOCK:
            ways += [replace(way, block=min(way.block, _CACHE_BLOCK)) for way in ways]

        # On a CPU this thread's own time, which does not count what others do on a busy machine.
        clock = time.perf_counter if self.device.type == "cuda" else time.thread_time

        def seconds(way: Way) -> float:
            start = clock()
            self(chunk, few, way)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            return clock() - start

        best = {way: seconds(way) for way in ways}  # this round warms up
        for _ in range(2):
            close = max(_SHORT, _HOPELESS * min(best.values()))
            best |= {way: min(least, seconds(way)) for way, least in best.items() if least < close}
        fastest = min(best, key=lambda way: best[way])
        return fastest if best[fastest] < _CLEARLY * best[ways[0]] else ways[0]

    def _largest(self, batched_pass: bool, inputs: Inputs) -> Way:
        """As many inputs at a time as the memory budget allows."""
        if self.compute.block is not None:
            return Way(batched_pass, self.compute.block)
        spec = InputSpec.of(inputs)
        if spec not in self.budgets:
            cpu, given = self.device.type == "cpu", self.compute.memory
            memory = given or (2**30 if cpu else torch.cuda.mem_get_info(self.device)[0] // 4)
            self.budgets[spec] = memory // activation_bytes(self.module, inputs)
        return Way(batched_pass, max(1, self.budgets[spec] // (self.chunk if batched_pass else 1)))


def _outputs(module: nn.Module, weights: Weights, inputs: Inputs) -> Tensor:
    """What one draw of the weights makes of the inputs."""
    args, kwargs = arguments(inputs)
    return functional_call(module, {**weights[0], **weights[1]}, args, kwargs)


def _stacked_outputs(module: nn.Module, stacked: Weights, inputs: Inputs) -> Tensor:
    """What several draws make of the inputs; layers before the first random weight are passed through once."""
    params, buffers = ({name: t[0] if _is_shared(t) else t for name, t in group.items()} for group in stacked)
    axes = tuple({name: None if _is_shared(t) else 0 for name, t in group.items()} for group in stacked)
    if all(axis is None for part in axes for axis in part.values()):
        once = _outputs(module, (params, buffers), inputs)
        return once.expand(_count(stacked), *once.shape)
    each = vmap(partial(_outputs, module), in_dims=(axes, None), randomness="error")
    return each((params, buffers), inputs)


def _is_shared(stacked: Tensor) -> bool:
    """Whether it is one tensor, alone or repeated without a copy."""
    return len(stacked) == 1 or stacked.stride(0) == 0


def _join(parts: list[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def blocks(inputs: Inputs, size: int) -> Iterator[Inputs]:
    """The inputs in consecutive pieces."""
    total = num_examples(inputs)
    if total <= size:
        yield inputs
        return
    for start in range(0, total, size):
        yield map_inputs(inputs, itemgetter(slice(start, start + size)))


def _count(stacked: Weights) -> int:
    return len(next(iter(stacked[0].values())))


def _row(stacked: Weights, index: int) -> Weights:
    """One draw of a stack, without copying."""
    return {name: p[index] for name, p in stacked[0].items()}, {name: b[index] for name, b in stacked[1].items()}


def stack(chunk: list[Weights]) -> Weights:
    """Several draws as one set of tensors with a draw dimension in front."""
    params = {name: _stacked([draw[0][name] for draw in chunk]) for name in chunk[0][0]}
    return params, {name: _stacked([draw[1][name] for draw in chunk]) for name in chunk[0][1]}


def _stacked(tensors: list[Tensor]) -> Tensor:
    """The tensors as one; without a copy where all draws share one, such as a weight that is not random."""
    first = tensors[0]
    return first.expand(len(tensors), *first.shape) if all(t is first for t in tensors) else torch.stack(tensors)


def batched(items: Iterator[T], size: int) -> Iterator[list[T]]:
    """Lists of up to ``size`` consecutive items."""
    while chunk := list(itertools.islice(items, size)):
        yield chunk
