"""The same fit on many processes: who am I, average these tensors, gather those.

Under torchrun the process group is opened here (NCCL on GPUs, gloo elsewhere) unless the user's script already has.
Without torchrun every function is the identity.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

__all__ = ["Ranks", "session"]

_groups = count()


@dataclass(frozen=True)
class Ranks:
    """This process among its peers."""

    rank: int = 0
    world: int = 1

    @property
    def writes(self) -> bool:
        """Whether this is the one process that writes files and shows progress."""
        return self.rank == 0

    def average_(self, tensors: list[Tensor]) -> None:
        """Replace each tensor by its mean over ranks: one bucket, one all-reduce."""
        if self.world == 1 or not tensors:
            return
        bucket = torch.cat([t.reshape(-1) for t in tensors])
        dist.all_reduce(bucket)
        bucket /= self.world
        for tensor, part in zip(tensors, bucket.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def broadcast_(self, tensors: list[Tensor]) -> None:
        """Replace each tensor by rank 0's."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0)  # autograd has no part in it, and would warn

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values


@contextmanager
def session(device: torch.device) -> Iterator[Ranks]:
    """The ranks of this process: its torchrun group, opened and closed here if nobody else has."""
    if not dist.is_available() or (not dist.is_initialized() and "WORLD_SIZE" not in os.environ):
        yield Ranks()
        return
    opened = not dist.is_initialized()
    if opened:
        # Its functions have the default group for a default argument, bound at import. Imported now, they bind none; if
        # torch's compiler imported it later, they would keep the group's threads alive after destroy_process_group,
        # which can abort the exit.
        import_module("torch.distributed.nn")
        # Each group meets under a name of its own: under an old one it would find the addresses of the last, or of
        # the processes in whose place torchrun has started these.
        store, rank, world = _meeting()
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        own = dist.PrefixStore(f"posterity-{start}-{next(_groups)}", store)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=own, rank=rank, world_size=world)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        if opened:
            dist.destroy_process_group()


@cache
def _meeting() -> tuple[dist.Store, int, int]:
    """Where the processes that torchrun started find each other, this one's rank and their number."""
    return next(rendezvous("env://"))


def local_device(device: torch.device) -> torch.device:
    """This process's own GPU, where there are several processes on one machine."""
    if device.type == "cuda" and device.index is None and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    return device
