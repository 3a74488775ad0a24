"""Draws in, Prediction out: the fastest way through the network that this device offers.

Draws that are sets of weights go through the network either one after the other or in chunks under ``vmap``. Which is
faster depends on network and device, so the first chunk is run one way, the second the other, and the rest the way that
won; both compute the same numbers up to rounding. Inputs go in blocks small enough to stay in cache (CPU) and within
the memory budget (all), and draws leave only sums (``accumulate``), so memory does not grow with their number.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from posterity.calling import InputSpec, arguments, check_finite, map_inputs, num_examples, tensors_of
from posterity.prediction.accumulate import Accumulator, accumulator
from posterity.prediction.prediction import Prediction
from posterity.probability.likelihoods import Likelihood
from posterity.types import Inputs, Params, PosterityError, Predictor

__all__ = ["Compute", "Weights", "predict"]

Weights = tuple[Params, Params]
"""Parameters and buffers of one draw."""


class DrawsFunctions(Protocol):
    """What prediction needs of a posterior."""

    likelihood: Likelihood
    inputs: InputSpec | None
    module: nn.Module

    def draws(self, n: int, generator: torch.Generator | None = None) -> Iterator[Predictor]:
        """n functions."""
        ...

    def samples(self, n: int, generator: torch.Generator | None = None) -> Iterator[Weights] | None:
        """The weights of n draws, or None where a draw is not a set of weights."""
        ...


@dataclass(frozen=True)
class Compute:
    """How a prediction is computed; the defaults are right for almost everyone.

    Attributes:
        batched: Draws through vmap (True), one by one (False), or whichever a first measurement finds faster (None).
        compile: Compile the batched pass: worth it on a GPU when the same shapes are predicted often.
        chunk: Draws of one batched pass.
        memory: Bytes that the activations of one pass may take.
        block: Inputs of one pass; None takes 250 on a CPU and as many as the memory allows elsewhere.
    """

    batched: bool | None = None
    compile: bool = False
    chunk: int = 8
    memory: int = 2**30
    block: int | None = None


@torch.no_grad()
def predict(
    posterior: DrawsFunctions,
    inputs: Inputs,
    draws: int | Literal["auto"] = 32,
    *,
    generator: torch.Generator | None = None,
    keep_samples: bool = False,
    tolerance: float = 0.01,
    max_draws: int = 1024,
    compute: Compute | None = None,
) -> Prediction:
    """Average the predictions of ``draws`` networks.

    Args:
        posterior: Where networks are drawn from.
        inputs: A tensor, tuple or dictionary of tensors.
        draws: How many networks, or ``"auto"``: until every probability's standard error is below ``tolerance``.
        generator: Noise; the posterior's own seed if not given, so that the same call gives the same answer.
        keep_samples: Also keep every draw's own prediction.
        tolerance: For ``"auto"``: the Monte Carlo error aimed at.
        max_draws: For ``"auto"``: where to stop all the same.
        compute: How to compute it.
    """
    (posterior.inputs.check if posterior.inputs is not None else check_finite)(inputs)
    if num_examples(inputs) == 0:
        raise PosterityError("there are no inputs to predict")
    auto = draws == "auto"
    count = max_draws if auto else draws
    if not isinstance(count, int) or count < 1:
        raise PosterityError(f"draws must be a positive number or 'auto', got {draws!r}")
    sums = accumulator(posterior.likelihood, keep_samples)
    enough: Callable[[], bool] = (lambda: sums.count >= 2 and sums.error() < tolerance) if auto else (lambda: False)
    _run(posterior, inputs, count, generator, compute or Compute(), sums, enough)
    return sums.finish()


def _run(
    posterior: DrawsFunctions,
    inputs: Inputs,
    count: int,
    generator: torch.Generator | None,
    compute: Compute,
    sums: Accumulator,
    enough: Callable[[], bool],
) -> None:
    """Feed the accumulator with chunks of draws until all are in or it has enough."""
    weights = posterior.samples(count, generator)
    if weights is None:
        block = compute.block or num_examples(inputs)
        for draw in posterior.draws(count, generator):
            sums.add(torch.cat([draw(part) for part in blocks(inputs, block)])[None])
            if enough():
                return
        return
    network = Passes(posterior.module, inputs, compute)
    for chunk in batched(weights, compute.chunk):
        for outputs in network(chunk):
            sums.add(outputs)
        if enough():
            return


class Passes:
    """Chunks of draws through one network, by the way found faster."""

    def __init__(self, module: nn.Module, inputs: Inputs, compute: Compute) -> None:
        self.module, self.inputs, self.compute = module, inputs, compute
        self.seconds: dict[bool, float] = {}
        self.device = tensors_of(inputs)[0].device
        self.block = compute.block or self._block()
        self.stacked_pass = vmap(self._one, in_dims=(0, None), randomness="error")
        if compute.compile:
            self.stacked_pass = torch.compile(self.stacked_pass)

    def __call__(self, chunk: list[Weights]) -> Iterable[Tensor]:
        """Outputs of the chunk's draws, [draws, batch, ...] in one or several pieces."""
        batched_pass = self._choice(len(chunk))
        start = time.perf_counter()
        outputs = list(self._batched(chunk) if batched_pass else self._looped(chunk))
        if batched_pass not in self.seconds:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self.seconds[batched_pass] = (time.perf_counter() - start) / len(chunk)
        return outputs

    def _choice(self, draws: int) -> bool:
        if self.compute.batched is not None:
            return self.compute.batched
        if draws < self.compute.chunk or not _vmappable(self.module):
            return False
        if len(self.seconds) < 2:
            return bool(self.seconds)  # the first chunk in a loop, the second batched, then whichever won
        return self.seconds[True] < self.seconds[False]

    def _looped(self, chunk: list[Weights]) -> Iterator[Tensor]:
        for weights in chunk:
            yield torch.cat([self._one(weights, part) for part in blocks(self.inputs, self.block)])[None]

    def _batched(self, chunk: list[Weights]) -> Iterator[Tensor]:
        stacked = stack(chunk)
        parts = [self.stacked_pass(stacked, part) for part in blocks(self.inputs, self.block)]
        yield torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def _one(self, weights: Weights, inputs: Inputs) -> Tensor:
        args, kwargs = arguments(inputs)
        return functional_call(self.module, {**weights[0], **weights[1]}, args, kwargs)

    def _block(self) -> int:
        """Inputs of one pass: cache-sized on a CPU, as many as the memory budget allows elsewhere."""
        if self.device.type == "cpu":
            return 250
        allowed = self.compute.memory // (self.compute.chunk * activation_bytes(self.module, self.inputs))
        return int(max(1, allowed))


def activation_bytes(module: nn.Module, inputs: Inputs) -> int:
    """Bytes of all layer outputs for one example: an upper bound of what one pass holds at a time."""
    sizes: list[int] = []

    def note(_: nn.Module, __: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel() * output.element_size())

    handles = [m.register_forward_hook(note) for m in module.modules() if not list(m.children())]
    try:
        args, kwargs = arguments(map_inputs(inputs, lambda t: t[:1]))
        module(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return max(1, sum(sizes))


def _vmappable(module: nn.Module) -> bool:
    """Recurrent layers have no batching rule; everything else is taken to have one."""
    return not any(isinstance(m, nn.RNNBase) for m in module.modules())


def blocks(inputs: Inputs, size: int) -> Iterator[Inputs]:
    """The inputs in consecutive pieces."""
    total = num_examples(inputs)
    if total <= size:
        yield inputs
        return
    for start in range(0, total, size):
        yield map_inputs(inputs, lambda t, a=start: t[a : a + size])  # type: ignore[misc]


def stack(chunk: list[Weights]) -> Weights:
    """Several draws as one set of tensors with a draw dimension in front."""
    params = {name: torch.stack([draw[0][name] for draw in chunk]) for name in chunk[0][0]}
    return params, {name: torch.stack([draw[1][name] for draw in chunk]) for name in chunk[0][1]}


def batched(items: Iterator[Weights], size: int) -> Iterator[list[Weights]]:
    """Lists of up to ``size`` consecutive items."""
    while chunk := list(itertools.islice(items, size)):
        yield chunk
