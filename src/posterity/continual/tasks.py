"""Tasks that come one after another, and how a data set is made into a stream of them.

permuted   every task has the pixels in another order (the first in their own); all tasks share one head
split      every task has some of the classes; one head for all of them, or a head for each task
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import torch
from torch import Tensor

from posterity.data import DataSet
from posterity.random import generator_for
from posterity.types import PosterityError

__all__ = ["Permuted", "Task", "split"]

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Task:
    """Something to learn.

    Attributes:
        name: What tables call it.
        train: Inputs and targets to learn from.
        test: Inputs and targets to be judged on, also when later tasks have been learned; None is never judged.
        head: The classes of this task, where every task has a head of its own; None for a single head.
    """

    name: str
    train: Pair
    test: Pair | None = None
    head: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for part, pair in (("train", self.train), ("test", self.test)):
            if pair is not None:  # numpy's arrays are as good
                object.__setattr__(self, part, tuple(torch.as_tensor(t) for t in pair))

    def check(self) -> None:
        """Refuse a task that nothing can be learned from."""
        for part, pair in (("training", self.train), ("test", self.test)):
            if pair is not None and (len(pair[1]) == 0 or len(pair[0]) != len(pair[1])):
                raise PosterityError(
                    f"{self.name} has {len(pair[0])} {part} inputs and {len(pair[1])} targets: expected as many, and "
                    "not none"
                )


@dataclass(frozen=True, eq=False)
class Permuted(Sequence[Task]):
    """Tasks that differ in the order of the pixels. Each is made when it is asked for: ten of MNIST are two gigabytes.

    Attributes:
        train: Inputs and targets in their own order.
        test: The same to be judged on.
        tasks: How many.
        seed: Draws the orders; the first task has the pixels in their own.
    """

    train: Pair
    test: Pair
    tasks: int = 10
    seed: int = 0

    def __len__(self) -> int:
        return self.tasks

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        """A task."""
        if isinstance(index, slice):
            return [self[i] for i in range(self.tasks)[index]]
        number = range(self.tasks)[index]
        pixels = self.train[0][0].numel()
        order = torch.arange(pixels)
        if number:
            order = torch.randperm(pixels, generator=generator_for(self.seed * 10_007 + number))
        return Task(f"permutation {number + 1}", _permuted(self.train, order), _permuted(self.test, order))


def _permuted(pair: Pair, order: Tensor) -> Pair:
    inputs, targets = pair
    return inputs.flatten(1)[:, order.to(inputs.device)].view_as(inputs), targets


def split(data: DataSet, each: int = 2, *, heads: bool) -> list[Task]:
    """Tasks of ``each`` classes, in the classes' order.

    Args:
        data: A classification.
        each: Classes of a task; the last task has what is left.
        heads: Give every task a head of its own, so that it is known which classes are asked about; without, one head
            for all classes.
    """
    if data.classes is None:
        raise PosterityError(f"{data.name} has no classes to split")
    if not 1 < each <= len(data.classes):
        raise PosterityError(f"a task needs at least two of the {len(data.classes)} classes, got {each}")
    tasks = []
    for start in range(0, len(data.classes), each):
        classes = tuple(range(start, min(start + each, len(data.classes))))
        name = "/".join(data.classes[c] for c in classes)
        train, test = (_of_classes(pair, classes) for pair in (data.training(), data.test))
        tasks.append(Task(name, train, test, classes if heads else None))
    return tasks


def _of_classes(pair: Pair, classes: tuple[int, ...]) -> Pair:
    inputs, targets = pair
    rows = torch.isin(targets, torch.tensor(classes, device=targets.device))
    return inputs[rows], targets[rows]


def on_validation(data: DataSet, held: int = 5000) -> DataSet:
    """The data with its last training examples in place of the test set: what settings are chosen on."""
    apart = data.with_validation(held)
    if apart.validation is None:
        raise PosterityError(f"{data.name} has no validation part")
    return replace(apart, test=apart.validation, validation=None)
