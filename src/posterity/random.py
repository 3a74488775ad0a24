"""Randomness as an argument: two streams, one shared by all ranks and one of each rank's own.

Noise added to weights after the gradient (SG-MCMC) must be the same on every rank, or the replicas drift apart;
noise inside the forward pass (dropout, local reparameterisation) should differ, or ranks repeat each other's draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

_STRIDE = 1_000_003  # a prime, so that (seed, rank) pairs of ordinary size never collide


@dataclass(frozen=True)
class RandomStreams:
    """Generators on one device: ``shared`` agrees on all ranks, ``local`` is this rank's own."""

    shared: torch.Generator
    local: torch.Generator

    @classmethod
    def from_seed(cls, seed: int, rank: int = 0, device: torch.device | str = "cpu") -> RandomStreams:
        """Streams of one seed; the local one differs from rank to rank."""
        return cls(
            torch.Generator(device).manual_seed(seed),
            torch.Generator(device).manual_seed(seed + _STRIDE * (rank + 1)),
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
    return torch.Generator(device).manual_seed(seed)


@contextmanager
def global_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Run code that can only use torch's global generator (dropout masks, initialisers), and leave no trace of it."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a millisecond where CUDA is not started
        if devices:
            index = torch.cuda.current_device() if device.index is None else device.index
            torch.cuda.default_generators[index].manual_seed(seed)
        yield
