"""The whole of a run in one file: kill it at any moment, and resuming gives the bits of an uninterrupted run (on CPU).

Besides the Run this holds torch's global generator (dropout masks, a loader's shuffling), as it is now and as it was
when the epoch began, of every rank: an epoch is replayed from its beginning to where the run stood.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from posterity.files import read_state, write_state
from posterity.networks import load_buffers
from posterity.run import Run, Sums
from posterity.training.distributed import Ranks
from posterity.types import PosterityError

__all__ = ["Checkpoint"]


@dataclass
class Checkpoint:
    """Saves and restores one run.

    Attributes:
        path: The file; None keeps nothing.
        every: Steps between saves.
        identity: What must agree between the run that saved and the run that resumes.
        ranks: Rank 0 writes; every rank's own randomness and buffers are in the file.
        epoch_start: The global generators as the current epoch began.
    """

    path: Path | None
    every: int
    identity: dict[str, Any]
    ranks: Ranks
    epoch_start: dict[str, Tensor] = field(default_factory=dict)

    def begin_epoch(self, device: torch.device) -> None:
        """Remember where the global generators stand."""
        self.epoch_start = global_generators(device)

    def due(self, step: int) -> bool:
        """Whether this step is one to save at."""
        return self.path is not None and step % self.every == 0

    def save(self, run: Run, device: torch.device) -> None:
        """Write the run, whole or not at all."""
        own = {
            "now": global_generators(device),
            "epoch_start": self.epoch_start,
            "local": run.streams.state_dict(),
            "sums": vars(run.sums),
            # Until an epoch ends, every rank's BatchNorm has seen its own examples only.
            "buffers": {n: b.cpu() for n, b in run.module.named_buffers()} if self.ranks.world > 1 else {},
        }
        each = self.ranks.gather(own)
        if self.ranks.writes and self.path is not None:
            write_state(self.path, {"identity": self.identity, "run": run.state_dict(), "ranks": each}, "checkpoint")

    def restore(self, run: Run, device: torch.device) -> dict[str, Tensor] | None:
        """Bring the run back; the generators to set when its epoch has been replayed, or None without a file."""
        if self.path is None or not self._is_there(self.path):
            return None
        state = read_state(self.path, "checkpoint")
        for key, value in self.identity.items():
            was = state["identity"].get(key, value)
            if was != value:
                raise PosterityError(f"{self.path} belongs to another run: its {key} is {was!r}, this run's {value!r}")
        if len(state["ranks"]) != self.ranks.world:
            raise PosterityError(
                f"{self.path} is of a run on {len(state['ranks'])} processes, got {self.ranks.world}: resume on as many"
            )
        try:
            run.load_state_dict(state["run"])
        except (RuntimeError, KeyError) as error:
            raise PosterityError(f"{self.path} is of another network, or of other members: {error}") from error
        own = state["ranks"][self.ranks.rank]
        load_buffers(run.module, own.get("buffers", {}))  # files of before they were kept have none
        run.streams.load_state_dict(own["local"])
        sums: dict[str, Any] = own.get("sums", {})  # a file of before they were kept has none
        run.sums = Sums(**tree_map_only(Tensor, lambda t: t.to(device), sums))
        # An epoch that was under way is replayed from its start; one about to begin starts now.
        begun = run.step % run.plan.steps_per_epoch != 0
        set_global_generators(own["epoch_start"] if begun else own["now"], device)
        return own["now"]

    def _is_there(self, path: Path) -> bool:
        """Whether there is a file; of ranks of which some see it and some do not, each would go on at another step."""
        seen = self.ranks.gather(path.exists())
        if any(seen) and not all(seen):
            raise PosterityError(f"{path} is there for some of the processes only: put it where all can read it")
        return all(seen)


def global_generators(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's global generators that a step may use."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_global_generators(state: dict[str, Tensor], device: torch.device) -> None:
    """Put torch's global generators where they were."""
    torch.set_rng_state(state["cpu"].cpu())
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
