"""The states of a Markov chain, kept as rows of one matrix, in memory or in a file.

How many samples will come is known before the run, so the matrix is made once: [samples, weights], on the network's
device, or mapped from a file where it is too large for that. A posterior over the samples holds views of its rows.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posterity.files import make_folder
from posterity.flat import Layout
from posterity.methods.base import trainable
from posterity.posteriors import Empirical
from posterity.posteriors.batchnorm import batchnorm_layers, refreshed
from posterity.probability.likelihoods import Likelihood
from posterity.run import Run
from posterity.types import Batch, PosterityError

__all__ = ["Chain", "Due"]

Due = Callable[[int], bool]
"""Whether something is to be done after so many steps."""


class Chain:
    """A Collector of whole sets of weights.

    Args:
        module: The network being sampled.
        due: Whether to keep the weights after so many steps.
        capacity: How many samples will come.
        folder: Where to keep them in a file mapped into memory; None keeps them on the network's device.
    """

    def __init__(self, module: nn.Module, due: Due, capacity: int, folder: str | Path | None = None) -> None:
        if capacity < 2:
            raise PosterityError(
                f"{capacity} samples would come, but at least two are needed: lower burn_in or thin, or train longer"
            )
        params = trainable(module)
        first = next(iter(params.values()))
        self.layout, self.due, self.count = Layout.of(params), due, 0
        shape = (capacity, self.layout.total)
        self.states = (
            torch.empty(shape, device=first.device, dtype=first.dtype)
            if folder is None
            else _mapped(shape, first.dtype, Path(folder))
        )

    def observe(self, run: Run) -> None:
        """Keep the weights whenever they are due."""
        if self.due(run.step):
            self.states[self.count].copy_(self.layout.flatten(trainable(run.module)))
            self.count += 1

    def posterior(self, module: nn.Module, likelihood: Likelihood, batches: Iterable[Batch]) -> Empirical:
        """Equal weight on every sample, each with BatchNorm statistics of its own."""
        if self.count < 2:
            raise PosterityError(
                f"the run stopped early, after {self.count} samples, but at least two are needed: leave patience out, "
                "or begin to sample earlier"
            )
        fixed = {name: p.detach() for name, p in module.named_parameters() if name not in self.layout.names}
        points = [{**fixed, **self.layout.unflatten(state)} for state in self.states[: self.count]]
        buffers = refreshed(module, points, batches) if batchnorm_layers(module) else None
        return Empirical(module, likelihood, points, buffers, owned=True)

    def state_dict(self) -> dict[str, Any]:
        """All samples so far."""
        return {"count": self.count, "states": self.states[: self.count]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the samples up again."""
        self.count = state["count"]
        self.states[: self.count].copy_(state["states"])


def _mapped(shape: tuple[int, int], dtype: torch.dtype, folder: Path) -> Tensor:
    """A matrix in a fresh file of ``folder``; the file lives as long as it is needed, and is the user's to remove."""
    make_folder(folder)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="chain-", suffix=".bin", delete=False) as file:
        _reserve(file.fileno(), Path(file.name), shape[0] * shape[1] * dtype.itemsize)
    return torch.from_file(file.name, shared=True, size=shape[0] * shape[1], dtype=dtype).view(shape)


def _reserve(handle: int, file: Path, size: int) -> None:
    """Take all of the room at once: a write into mapped memory that finds the disk full kills the process."""
    if sys.platform != "linux":  # others have no such call
        return
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError as error:
        file.unlink()
        raise PosterityError(f"{file.parent} has no room for a chain of {size:,} bytes: {error.strerror}") from error
