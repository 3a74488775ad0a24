"""Randomness as an argument: two streams, one shared by all ranks and one of each rank's own.

Noise added to weights after the gradient (SG-MCMC) must be the same on every rank, or the replicas drift apart;
noise inside the forward pass (dropout, local reparameterisation) should differ, or ranks repeat each other's draws.

Much of a small network's step on a CPU goes into random numbers. ``normal_`` is for noise while training: in float32 it
looks each number up among 2¹⁶ equally likely quantiles, four numbers for every 64 random bits, in about half the time
of ``Tensor.normal_``. It never gives more than 4.3 standard deviations, which one normal number in 60,000 exceeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from posterity.types import PosterityError

_STRIDE = 1_000_003  # a prime, so that (seed, rank) pairs of ordinary size never collide
_PIECE = 2**16  # numbers made at a time: what they are made of stays in cache, and a multiple of 4 keeps the order


@dataclass(frozen=True)
class RandomStreams:
    """Generators on one device: ``shared`` agrees on all ranks, ``local`` is this rank's own."""

    shared: torch.Generator
    local: torch.Generator

    @classmethod
    def from_seed(cls, seed: int, rank: int = 0, device: torch.device | str = "cpu") -> RandomStreams:
        """Streams of one seed; the local one differs from rank to rank."""
        return cls(
            generator_for(seed, device),
            generator_for(seed + _STRIDE * (rank + 1), device),
        )

    def state_dict(self) -> dict[str, Tensor]:
        """The position of both streams."""
        return {"shared": self.shared.get_state(), "local": self.local.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where ``state`` was taken."""
        self.shared.set_state(state["shared"].cpu())
        self.local.set_state(state["local"].cpu())


def generator_for(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A private generator, so that nothing needs torch's global one."""
    return _seeded(torch.Generator(device), seed)


def _seeded(generator: torch.Generator, seed: int) -> torch.Generator:
    try:
        return generator.manual_seed(seed)
    except (RuntimeError, TypeError, ValueError) as error:
        raise PosterityError(f"a seed must be a whole number of at most 64 bits, got {seed!r}") from error


@contextmanager
def global_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Run code that can only use torch's global generator (dropout masks, initialisers), and leave no trace of it."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        _seeded(torch.default_generator, seed)  # torch.manual_seed takes a millisecond where CUDA is not started
        if devices:
            index = torch.cuda.current_device() if device.index is None else device.index
            torch.cuda.default_generators[index].manual_seed(seed)
        yield


def normal_(out: Tensor, std: float = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
    """Fill a contiguous tensor with N(0, std²), as training noise."""
    if out.device.type != "cpu" or out.dtype != torch.float32 or torch.compiler.is_compiling():
        return out.normal_(0, std, generator=generator)  # a compiler makes these in the midst of other work
    quantiles = _quantiles() if std == 1 else _quantiles() * std
    size = min(_PIECE, out.numel())
    bits, places = torch.empty(-(-size // 4), dtype=torch.int64), torch.empty(size, dtype=torch.int32)
    for part in out.view(-1).split(_PIECE):
        bits[: -(-len(part) // 4)].random_(-(2**63), None, generator=generator)
        own = places[: len(part)].copy_(bits.view(torch.uint16)[: len(part)])
        torch.index_select(quantiles, 0, own, out=part)
    return out


def normal_like(x: Tensor) -> Tensor:
    """N(0, 1) as training noise, laid out in memory as ``x`` is."""
    noise = torch.empty_like(x)
    normal_(noise.as_strided((x.numel(),), (1,)))
    return noise


@cache
def _quantiles() -> Tensor:
    """The 2¹⁶ midpoint quantiles of a normal distribution, stretched to variance 1."""
    middle = (torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16
    quantiles = torch.special.ndtri(middle)
    return (quantiles / quantiles.square().mean().sqrt()).float()
