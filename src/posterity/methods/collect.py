"""The moments and the last deviations of a path of weights, gathered while it is walked.

One collector serves SWAG (Maddox et al. 2019, 1902.02476) and HWA (Karimi & Li 2021): after snapshot n, with the share
a = 1/n of a plain average (or at least 1 − decay, which forgets old snapshots),

    δ        = wₙ − meanₙ₋₁
    mean     ← mean + a δ
    variance ← (1 − a)(variance + a δ²)          the population variance of the snapshots; kept as total·variance,
                                                 with total ← total/(1 − a), which is n for a plain average
    within   ← within + a (varianceₙ − within)   the mean of the snapshots' own variances (HWA), if asked for
    row      = (1 − a) δ = wₙ − meanₙ            the deviation from the UPDATED running mean; the last ``rank`` are kept

Weights are stored as differences from the first snapshot: nearby numbers of equal precision subtract exactly, so the
variance keeps its digits even where the mean is a million times larger than the spread. Everything is one flat vector,
updated in place, on a CPU block by block so that a block stays in cache; rows lie in a ring, and a deviation is worked
out in the row where it ends. Memory is rank + 3 vectors: the first snapshot, the mean's offset, the variance and the
rows (one more with ``within``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn

from posterity.flat import Layout
from posterity.methods.base import plain_parameters
from posterity.posteriors.batchnorm import batchnorm_layers
from posterity.run import Run
from posterity.types import Params, Plan, PosterityError, check_fraction

__all__ = ["Snapshots", "Times", "Trajectory", "check_rank"]

_BLOCK = {"cpu": 2**17, "cuda": 2**40}
"""Numbers worked on at a time: on a CPU what fits in its cache, on a GPU all there are."""
_NAMES = ("start", "every")
_SCRATCH = 2**22
"""Numbers worked on at a time where a deviation cannot be worked out in its row."""


class Trajectory:
    """Running mean, variance and the last deviations of a sequence of weights.

    Args:
        layout: Which parameters, in which order.
        rank: How many deviations to keep; 0 keeps the moments alone.
        decay: 0 weighs all snapshots alike; above, older ones fade by this factor with every new one.
        within: Whether snapshots come with variances of their own, whose mean is kept too.
        device: Where the moments are kept; the device that the weights are on.
        dtype: The precision of the moments, whatever the precision of the weights.
        rows_device: Where the deviations are kept, if elsewhere (the CPU, for a large network on a GPU).
        rows_dtype: The precision of the deviations, if lower than that of the moments.
    """

    def __init__(
        self,
        layout: Layout,
        rank: int,
        *,
        decay: float = 0.0,
        within: bool = False,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        rows_device: torch.device | str | None = None,
        rows_dtype: torch.dtype | None = None,
    ) -> None:
        check_rank(rank)
        check_fraction(decay=decay)
        self.layout, self.rank, self.decay, self.count, self._total = layout, rank, decay, 0, 1.0
        self._first = torch.zeros(layout.total, device=device, dtype=dtype)
        self._offset, self._squares = torch.zeros_like(self._first), torch.zeros_like(self._first)
        self._within = torch.zeros_like(self._first) if within else None
        self._rows = torch.zeros(rank, layout.total, device=rows_device or device, dtype=rows_dtype or dtype)
        self._block = _BLOCK.get(self._first.device.type, _SCRATCH)
        self._scratch: Tensor | None = None
        if rank == 0 or self._rows.device != self._first.device or self._rows.dtype != dtype or within:
            self._block = min(self._block, _SCRATCH)
            self._scratch = torch.empty_like(self._first[: self._block])

    @torch.no_grad()
    def add(self, weights: Mapping[str, Tensor], variance: Mapping[str, Tensor] | None = None) -> None:
        """Take one snapshot, with its own variance where ``within`` was asked for."""
        if (variance is None) != (self._within is None):
            raise PosterityError("snapshots come with variances if, and only if, within=True was asked for")
        if self.count == 0:
            for part, pieces in self._blocks(weights):
                torch.cat(pieces, out=self._first[part])
        self.count += 1
        share = max(1 / self.count, 1 - self.decay) if self.decay else 1 / self.count
        row = self._rows[(self.count - 1) % self.rank] if self.rank else None
        for part, pieces in self._blocks(weights):
            deviation = self._room(part, row)
            torch.cat(pieces, out=deviation).sub_(self._first[part])
            deviation.sub_(self._offset[part].lerp_(deviation, share))  # (1 − a) δ
            if self.count > 1:
                self._squares[part].addcmul_(deviation, deviation, value=share * self._total / (1 - share) ** 2)
            if row is not None and self._scratch is not None:
                row[part].copy_(deviation)
        self._grow(share)
        if variance is not None and self._within is not None:
            for part, pieces in self._blocks(variance):
                self._within[part].lerp_(torch.cat(pieces, out=self._room(part, None)), share)

    def _room(self, part: slice, row: Tensor | None) -> Tensor:
        """Where a deviation is worked out: in the row where it is kept, or in the scratch block."""
        return row[part] if row is not None and self._scratch is None else self._scratch[: part.stop - part.start]  # type: ignore[index]

    def _grow(self, share: float) -> None:
        """Count the total weight up; where old snapshots fade it grows without end, so it starts again from 1."""
        if self.count > 1:
            self._total /= 1 - share
        if self._total > 1e6:
            self._squares /= self._total
            self._total = 1.0

    def _blocks(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[slice, list[Tensor]]]:
        """Consecutive stretches of the flat vector and the pieces of ``tensors`` that fill them."""
        pieces: list[Tensor] = []
        start, size = 0, self._block
        room = size
        for name in self.layout.names:
            flat = tensors[name].detach().reshape(-1)
            while len(flat) >= room:
                yield slice(start, start + size), [*pieces, flat[:room]]
                flat, start, room, pieces = flat[room:], start + size, size, []
            if len(flat):
                pieces.append(flat)
                room -= len(flat)
        if pieces:
            yield slice(start, start + size - room), pieces

    @property
    def mean(self) -> Tensor:
        """The mean of the snapshots, as a new flat vector."""
        self._check_begun()
        return self._first + self._offset

    @property
    def variance(self) -> Tensor:
        """The population variance of the snapshots, as a new flat vector."""
        self._check_begun()
        return self._squares / self._total

    @property
    def within(self) -> Tensor:
        """The mean of the snapshots' own variances, flat."""
        self._check_begun()
        if self._within is None:
            raise PosterityError("this trajectory was not asked to keep the snapshots' own variances")
        return self._within

    @property
    def deviations(self) -> Tensor:
        """The rows really stored, [min(count, rank), weights], in no particular order."""
        return self._rows[: min(self.count, self.rank)]

    def named(self, vector: Tensor) -> Params:
        """Views of a flat vector by parameter name."""
        return self.layout.unflatten(vector)

    def state_dict(self) -> dict[str, Any]:
        """All that was gathered."""
        state: dict[str, Any] = {"count": self.count, "total": self._total, "first": self._first}
        state |= {"offset": self._offset, "squares": self._squares}
        if self._within is not None:
            state["within"] = self._within
        return {**state, "rows": self.deviations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up again what was gathered."""
        expected = (min(state["count"], self.rank), self.layout.total)
        if tuple(state["rows"].shape) != expected or state["first"].shape != self._first.shape:
            raise PosterityError(
                f"the state is of another network or rank: it has {list(state['rows'].shape)} deviations and weights, "
                f"expected were {list(expected)}"
            )
        self.count, self._total = state["count"], state["total"]
        self._first.copy_(state["first"])
        self._offset.copy_(state["offset"])
        self._squares.copy_(state["squares"])
        if self._within is not None:
            self._within.copy_(state["within"])
        self.deviations.copy_(state["rows"])

    def _check_begun(self) -> None:
        if self.count == 0:
            raise PosterityError("0 snapshots were collected, at least 1 are needed")


def check_rank(rank: Any) -> None:
    """Refuse a number of deviations that is none, and a single one, which has no spread."""
    if not isinstance(rank, SupportsIndex) or int(rank) < 0 or int(rank) == 1:
        raise PosterityError(f"rank must be 0 (diagonal) or at least 2 deviations, got {rank!r}")


@dataclass(frozen=True)
class Times:
    """When to look at the run: after steps start + every, start + 2·every, ..."""

    start: int
    every: int

    def __call__(self, step: int) -> bool:
        """Whether to look after this many steps."""
        return step > self.start and (step - self.start) % self.every == 0

    @classmethod
    def of(
        cls, plan: Plan, start: int | float, every: int | str | None, wanted: int, names: tuple[str, str] = _NAMES
    ) -> Times:
        """The times of a plan; ``every=None`` is an epoch, or less where that gives fewer than ``wanted`` looks.

        ``names`` are what the method calls ``start`` and ``every``, for messages about bad values.
        """
        begin = plan.at(start, names[0])
        if every is None:
            return cls(begin, max(1, min(plan.steps_per_epoch, (plan.steps - begin) // wanted)))
        return cls(begin, plan.count(every, names[1]))

    def count(self, steps: int) -> int:
        """How many looks a run of so many steps gives."""
        return max(0, (steps - self.start) // self.every)


def current_weights(run: Run) -> tuple[Params, None]:
    """The weights being trained, without variances."""
    return plain_parameters(run.module), None


def other_buffers(module: nn.Module) -> Params:
    """Copies of the buffers that are not BatchNorm's: those are refreshed for every draw."""
    refreshed = tuple(f"{name}." for name in batchnorm_layers(module))
    return {name: b.clone() for name, b in module.named_buffers() if not name.startswith(refreshed)}


@dataclass
class Snapshots:
    """A Collector: adds what ``read`` gives to a trajectory whenever it is due.

    Attributes:
        trajectory: Where snapshots go.
        due: Whether to take one after so many steps.
        read: The weights of a run and, for HWA, their variances; the plain weights if not given.
        buffers: The network's other buffers as they were at the start, to see whether training changes them.
    """

    trajectory: Trajectory
    due: Callable[[int], bool]
    read: Callable[[Run], tuple[Params, Params | None]] = current_weights
    buffers: Params = field(default_factory=dict)

    def observe(self, run: Run) -> None:
        """Called after every step."""
        if self.due(run.step):
            self.trajectory.add(*self.read(run))

    def moved_buffers(self, module: nn.Module) -> list[str]:
        """Buffers other than BatchNorm's that training has changed: they are neither averaged nor refreshed."""
        now = other_buffers(module)
        return [name for name, before in self.buffers.items() if not torch.equal(now[name], before)]

    def state_dict(self) -> dict[str, Any]:
        """All that was gathered."""
        return self.trajectory.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up again what was gathered."""
        self.trajectory.load_state_dict(state)
