"""Where the loop's batches come from: tensors that stay on the device, or the user's DataLoader.

A stream gives, for any epoch and position, this rank's share of each global batch, so that a run can be taken up in the
middle of an epoch and two ranks see together what one process would have seen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from copy import copy
from itertools import chain, islice
from operator import length_hint
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from posterity.calling import as_batch, check_finite, map_batch, map_inputs
from posterity.random import generator_for, global_seed
from posterity.training.config import Training
from posterity.training.distributed import Ranks
from posterity.training.examples import as_tensors, changes
from posterity.types import Batch, Inputs, PosterityError

__all__ = ["Resident", "Stream", "open_stream"]

_EPOCH_STRIDE = 15_485_863  # a prime: epochs of nearby seeds do not share their shuffles


class Stream(Protocol):
    """Batches by epoch."""

    num_data: int
    batch_size: int
    steps_per_epoch: int
    smallest: int
    """Examples of the smallest batch, as far as is known."""
    checked: bool
    """Whether all of the data has been looked at before the first step."""

    def epoch(self, index: int) -> Iterator[tuple[Batch, float]]:
        """This rank's part of each batch, and the number of examples whose mean it stands for.

        That number is the size of the whole batch. Where batches are the same in every epoch it is their average size:
        the examples of a smaller batch would otherwise count for more than others, epoch after epoch.
        """
        ...

    def once(self) -> Iterator[Batch]:
        """Every example once, on every rank."""
        ...

    def alone(self, seed: int) -> Stream:
        """The same data for one process, in an order of its own."""
        ...


class Resident:
    """Tensors on the device, shuffled anew every epoch and sliced there; ``balance`` draws classes equally often."""

    checked = True

    def __init__(
        self,
        inputs: Inputs,
        targets: Tensor,
        batch_size: int,
        seed: int,
        ranks: Ranks | None = None,
        balance: bool = False,
    ) -> None:
        self.inputs, self.targets, self.balance = inputs, targets, balance
        self.num_data = len(targets)
        self.batch_size = min(int(batch_size), self.num_data)  # of numpy's integers torch's split knows nothing
        self.seed, self.ranks = seed, ranks or Ranks()
        tail = self.num_data % self.batch_size
        # A last batch too small to give every rank an example is left out of that epoch.
        self.steps_per_epoch = self.num_data // self.batch_size + (tail >= self.ranks.world)
        self.smallest = tail if tail >= self.ranks.world else self.batch_size
        if self.batch_size < self.ranks.world:
            raise PosterityError(f"a batch of {self.batch_size} cannot be shared by {self.ranks.world} ranks")

    def order(self, index: int) -> Tensor:
        """The shuffle of an epoch: a pure function of seed and epoch."""
        return torch.randperm(self.num_data, generator=self._generator(index)).to(self.targets.device)

    def balanced(self, index: int) -> Tensor:
        """As many examples, each class equally often and each of its examples equally likely."""
        generator = self._generator(index)
        _, classes, sizes = self.targets.cpu().unique(return_inverse=True, return_counts=True)
        drawn = torch.randperm(self.num_data, generator=generator) % len(sizes)
        rank = (torch.rand(self.num_data, generator=generator, dtype=torch.float64) * sizes[drawn]).long()
        first = sizes.cumsum(0) - sizes
        return classes.argsort(stable=True)[first[drawn] + rank].to(self.targets.device)

    def _generator(self, index: int) -> torch.Generator:
        return generator_for(self.seed + _EPOCH_STRIDE * (index + 1))

    def epoch(self, index: int) -> Iterator[tuple[Batch, float]]:
        """Slices of the shuffled data."""
        order = self.balanced(index) if self.balance else self.order(index)
        for chosen in order.split(self.batch_size)[: self.steps_per_epoch]:
            own = chosen[self.ranks.rank :: self.ranks.world] if self.ranks.world > 1 else chosen
            yield self._rows(own), len(chosen)

    def once(self) -> Iterator[Batch]:
        """Every example once, in a fixed shuffle: data are often sorted, and some look at the first batches only."""
        for own in self.order(-1).split(self.batch_size):
            yield self._rows(own)

    def alone(self, seed: int) -> Resident:
        """The same tensors."""
        return Resident(self.inputs, self.targets, self.batch_size, seed, balance=self.balance)

    def _rows(self, own: Tensor) -> Batch:
        return Batch(map_inputs(self.inputs, lambda t: t.index_select(0, own)), self.targets.index_select(0, own))


class FromLoader:
    """A user's DataLoader; every rank takes its rows of each batch, unless the loader's sampler shards already.

    A sampler draws from torch's global generator as an epoch begins, seeded alike on all ranks.

    Attributes:
        whole: The loader, or where it gives every rank its share, another one that gives all of the data.
        part: This rank's rows of a batch.
        copies: How many batches like the loader's make a whole one: the number of ranks where its sampler shards.
        typical: The average size of a batch, where batches are the same in every epoch.
    """

    checked = False

    def __init__(self, loader: Any, device: torch.device, num_data: int | None, seed: int, ranks: Ranks) -> None:
        self.loader, self.whole, self.device, self.seed = loader, loader, device, seed
        self.part, self.copies = slice(ranks.rank, None, ranks.world), 1
        self.steps_per_epoch, self.num_data, self.batch_size, self.smallest = _measure(loader, num_data)
        self.sampler = getattr(loader, "sampler", None)
        self.typical = self.num_data / self.steps_per_epoch if _repeats(loader) else None
        if isinstance(self.sampler, DistributedSampler):
            self.part, self.copies = slice(None), ranks.world
            self.batch_size *= ranks.world
            self.whole = _unsharded(loader, self.batch_size)
        elif self.smallest < ranks.world:
            raise PosterityError(
                f"a batch of {self.smallest} cannot be shared by {ranks.world} ranks: use drop_last=True or another "
                "batch_size"
            )

    def alone(self, seed: int) -> FromLoader:
        """Whole batches."""
        other = copy(self)
        other.loader, other.seed, other.part, other.copies, other.sampler = self.whole, seed, slice(None), 1, None
        return other

    def _batches(self, loader: Iterable[Any], index: int) -> Iterator[Batch]:
        with global_seed(self.seed + _EPOCH_STRIDE * (index + 1), self.device):
            items = iter(loader)
            first = list(islice(items, 1))
        for item in chain(first, items):
            batch = as_batch(item)
            if batch.weights is not None and batch.weights.shape != batch.targets.shape[:1]:
                message = f"each of {len(batch.targets)} examples needs one weight, got {tuple(batch.weights.shape)}"
                raise PosterityError(message)
            yield map_batch(batch, lambda t: t.to(self.device, non_blocking=True))

    def epoch(self, index: int) -> Iterator[tuple[Batch, float]]:
        """The loader's batches, this rank's rows of them."""
        if isinstance(self.sampler, DistributedSampler):
            self.sampler.set_epoch(index)  # or it would shuffle as before
        batches = self._batches(self.loader, index)
        for given in range(self.steps_per_epoch):
            batch = next(batches, None)
            if batch is None:
                expected = f"{self.steps_per_epoch} were expected, by its length or its first pass"
                raise PosterityError(f"the loader gave {given} batches in an epoch, and {expected}")
            yield map_batch(batch, lambda t: t[self.part]), self.typical or self.copies * len(batch.targets)

    def once(self) -> Iterator[Batch]:
        """The loader's batches, whole; shuffled if it shuffles. Of one that never ends, an epoch."""
        batches = self._batches(self.whole, -1)
        return islice(batches, self.steps_per_epoch) if self.whole is self.loader else batches


def _unsharded(loader: DataLoader[Any], batch_size: int) -> DataLoader[Any]:
    """All of the data of a loader that gives every rank its share, in batches of all ranks."""
    return DataLoader(
        loader.dataset,
        batch_size,
        shuffle=loader.sampler.shuffle,  # type: ignore[attr-defined]
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
    )


def open_stream(data: Any, training: Training, seed: int, ranks: Ranks, device: torch.device) -> Stream:
    """A stream over a DataLoader (or any list of batches), a Dataset, or a pair of tensors."""
    if isinstance(data, Iterator):
        raise PosterityError("an iterator can be read only once: give a list of batches, a DataLoader or a Dataset")
    if changes(data):
        data = DataLoader(data, int(training.batch_size), shuffle=True)
    if isinstance(data, DataLoader | list) or (not isinstance(data, Dataset | tuple) and isinstance(data, Iterable)):
        if training.balance:
            raise PosterityError(
                "balance needs tensors, or a Dataset without random transforms; give a loader a WeightedRandomSampler "
                "instead"
            )
        return FromLoader(data, device, training.num_data, seed, ranks)
    inputs, targets = as_tensors(data)
    if training.num_data not in (None, len(targets)):
        raise PosterityError(f"num_data={training.num_data} was given, but the data holds {len(targets)} examples")
    if training.balance and (targets.ndim != 1 or targets.is_floating_point()):
        raise PosterityError(f"balance needs integer classes [N], got {targets.dtype} {tuple(targets.shape)}")
    check_finite(inputs)
    inputs = map_inputs(inputs, lambda t: t.to(device))
    return Resident(inputs, targets.to(device), training.batch_size, seed, ranks, training.balance)


def _repeats(loader: Any) -> bool:
    """Whether all of the data comes in the same batches in every epoch."""
    in_order = isinstance(loader, DataLoader) and isinstance(loader.sampler, SequentialSampler)
    return isinstance(loader, list) or (in_order and loader.batch_size is not None and not loader.drop_last)


def _measure(loader: Iterable[Any], num_data: int | None) -> tuple[int, int, int, int]:
    """Steps an epoch, N, batch size and smallest batch, from what a loader says of itself or by one pass over it."""
    size, sampler = getattr(loader, "batch_size", None), getattr(loader, "sampler", None)
    # A subset is all that is trained on; other samplers may repeat examples or skip some, but draw from the whole set.
    data = sampler if isinstance(sampler, SubsetRandomSampler) else getattr(loader, "dataset", None)
    try:
        steps, known = len(loader), len(data)  # type: ignore[arg-type]
        smallest = min(size, known - (steps - 1) * size) if size else known // max(1, steps)
    except TypeError:
        sizes = list(_sizes(loader, num_data))
        steps, known, smallest = len(sizes), sum(sizes), min(sizes, default=0)
    if steps == 0 or known == 0:
        raise PosterityError("the loader gives no batches")
    if num_data not in (None, known):
        raise PosterityError(f"num_data={num_data} was given, but the loader's data holds {known} examples")
    return steps, known, size or -(-known // steps), smallest


def _sizes(loader: Iterable[Any], num_data: int | None) -> Iterator[int]:
    """The sizes of the batches of one pass; one that never ends is cut at the loader's length, or seen to exceed N."""
    seen = 0
    for item in islice(loader, length_hint(loader, sys.maxsize)):
        size = len(as_batch(item).targets)
        seen += size
        if num_data is not None and seen > num_data:
            raise PosterityError(
                f"num_data={num_data} was given, but one pass over the loader has more; if it never ends, give it a "
                "length, the number of its batches that are an epoch"
            )
        yield size
