"""What a data set IS once it is in memory: tensors, what they mean, and how to get back to the original units.

Inputs are float32 ([N, C, H, W] images, [N, D] tables) or int64 tokens [N, L]; targets are int64 classes [N] or
float32 values [N, D]. Inputs and real targets are standardised, z = (x - mean) / std, with the statistics of the
training examples alone: whatever is held out, also the validation part, is only ever transformed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from posterity.calling import check_finite
from posterity.data.sampling import long_tailed
from posterity.data.text import Vocabulary
from posterity.data.units import Standardiser
from posterity.random import generator_for
from posterity.types import PosterityError

Pair = tuple[Tensor, Tensor]
"""Inputs and targets of the same length."""


class Task(StrEnum):
    """What is predicted."""

    CLASSIFICATION = "classification"
    REGRESSION = "regression"


class Kind(StrEnum):
    """What an input is; a plane is a table with two columns that can be drawn."""

    IMAGE = "image"
    TABULAR = "tabular"
    TEXT = "text"
    PLANE = "plane"


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training and test examples, ready for a network.

    Attributes:
        name: What it was loaded as.
        task: Classification or regression.
        kind: What the inputs are.
        train: Inputs and targets to learn from; None for a set that is only ever tested on (out of distribution).
        test: Inputs and targets to be judged on.
        validation: A part held out of the training examples, where one was carved.
        classes: The name of each class, in the order of the integer targets; None for regression.
        standardiser: How the inputs were standardised; None where they are as they came.
        target_standardiser: The same for the targets of a regression.
        vocabulary: The words of the tokens, for text.
        columns: The names of the inputs of a table, where it has some.
    """

    name: str
    task: Task
    kind: Kind
    train: Pair | None
    test: Pair
    validation: Pair | None = None
    classes: tuple[str, ...] | None = None
    standardiser: Standardiser | None = None
    target_standardiser: Standardiser | None = None
    vocabulary: Vocabulary | None = None
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse parts that do not fit each other."""
        if (self.task == Task.CLASSIFICATION) != (self.classes is not None):
            raise PosterityError(f"{self.name}: classes belong to a classification and to nothing else")
        for part, pair in (("training", self.train), ("test", self.test), ("validation", self.validation)):
            if pair is not None:
                self._check(part, *pair)

    def _check(self, part: str, x: Tensor, y: Tensor) -> None:
        where = f"{self.name}, {part} part"
        if len(x) == 0 or len(x) != len(y):
            raise PosterityError(f"{where}: expected as many inputs as targets and not none, got {len(x)} and {len(y)}")
        if x.shape[1:] != self.shape:
            raise PosterityError(f"{where}: inputs have the shape {tuple(x.shape[1:])}, expected {self.shape}")
        check_finite(x, f"{where}: inputs")
        if self.classes is not None:
            if y.dtype != torch.int64 or y.dim() != 1:
                raise PosterityError(f"{where}: classes must be int64 [N], got {y.dtype} {tuple(y.shape)}")
            if int(y.min()) < 0 or int(y.max()) >= len(self.classes):
                raise PosterityError(
                    f"{where}: labels run from {int(y.min())} to {int(y.max())}, expected 0 to {len(self.classes) - 1}"
                )
        elif y.dim() != 2:
            raise PosterityError(f"{where}: real targets must be of shape [N, D], got {tuple(y.shape)}")
        else:
            check_finite(y, f"{where}: targets")

    def __repr__(self) -> str:
        parts = {"training": self.train, "validation": self.validation, "test": self.test}
        sizes = " + ".join(f"{len(pair[1]):,} {part}" for part, pair in parts.items() if pair is not None)
        what = f"{len(self.classes)} classes" if self.classes is not None else f"{self.outputs} target column(s)"
        inputs = "×".join(map(str, self.shape))
        return f"DataSet({self.name}: {self.task.value}, {self.kind.value} inputs {inputs}, {what}; {sizes} examples)"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple((self.train or self.test)[0].shape[1:])

    @property
    def outputs(self) -> int:
        """How many numbers a network must return: one a class, or one a target column."""
        return len(self.classes) if self.classes is not None else self.test[1].shape[1]

    @property
    def pixels(self) -> Standardiser:
        """From pixels in [0, 1] to inputs; other images are taken to be stretched between their least and greatest."""
        own = self.standardiser or Standardiser(torch.zeros(1), torch.ones(1))
        low, high = (float(value) for value in own.invert(self.test[0]).aminmax())
        if low > -1e-3 and high < 1 + 1e-3:
            return own
        span = high - low or 1.0
        return Standardiser((own.mean - low) / span, own.std / span)

    def training(self) -> Pair:
        """The training examples, or a sentence that this set has none."""
        if self.train is None:
            raise PosterityError(f"{self.name} has test examples only: use it as out-of-distribution data")
        return self.train

    def with_validation(self, size: int | float, generator: torch.Generator | None = None) -> DataSet:
        """The same set with a part of the training examples held out.

        Args:
            size: How many examples (int), or what fraction of them (float).
            generator: Picks them at random; None takes the last ones.
        """
        x, _ = self.training()
        total = len(x)
        wanted = size if isinstance(size, Integral) else size * total
        count = round(wanted) if 0 < wanted < total else 0  # NaN cannot be rounded
        if not 0 < count < total:
            raise PosterityError(f"a validation part of {size!r} does not fit {total} training examples")
        order = torch.arange(total) if generator is None else torch.randperm(total, generator=generator)
        return self._trained_on(order[:-count], order[-count:])

    def subset(self, indices: Tensor) -> DataSet:
        """The same set with only these training examples (a long tail, a task, a smaller budget)."""
        return self._trained_on(indices, None)

    def long_tailed(self, imbalance: float, seed: int = 0) -> DataSet:
        """The same set with ever fewer training examples a class, the last class 1/``imbalance`` of the first."""
        _, y = self.training()
        return self.subset(long_tailed(y, imbalance, generator_for(seed)))

    def _trained_on(self, kept: Tensor, held: Tensor | None) -> DataSet:
        """Keep some training examples, hold others out, and standardise everything anew by the kept ones."""
        x, y = self.training()
        validation = self.validation if held is None else (x[held], y[held])
        train = x[kept], y[kept]
        old, old_targets = self.standardiser, self.target_standardiser
        new = None if old is None else Standardiser.fit(train[0])
        new_targets = None if old_targets is None else Standardiser.fit(train[1])

        def again(pair: Pair) -> Pair:
            x, y = pair
            return x if new is None else new.apply(x), y if new_targets is None else new_targets.apply(y)

        return replace(
            self,
            train=again(train),
            test=again(self.test),
            validation=None if validation is None else again(validation),
            standardiser=old and new and old.then(new),
            target_standardiser=old_targets and new_targets and old_targets.then(new_targets),
        )

    def in_units_of(self, other: DataSet) -> DataSet:
        """The same inputs standardised as ``other`` was: how out-of-distribution data must reach its network.

        The columns of tables are brought to its order by their names, where both have names.
        """
        if self.shape != other.shape or self.kind != other.kind:
            raise PosterityError(
                f"{self.name} has {self.kind} inputs of shape {self.shape}, "
                f"but {other.name} has {other.kind} inputs of shape {other.shape}"
            )
        order = self._order_of(other)

        def moved(pair: Pair) -> Pair:
            raw = (pair[0] if self.standardiser is None else self.standardiser.invert(pair[0]))[:, order]
            return raw if other.standardiser is None else other.standardiser.apply(raw), pair[1]

        return self._mapped(moved, standardiser=other.standardiser, columns=other.columns)

    def _mapped(self, function: Callable[[Pair], Pair], **changes: Any) -> DataSet:
        """The same set with every part mapped."""
        parts = {"train": self.train, "test": self.test, "validation": self.validation}
        mapped: dict[str, Any] = {name: None if pair is None else function(pair) for name, pair in parts.items()}
        return replace(self, **mapped, **changes)

    def _order_of(self, other: DataSet) -> list[int] | slice:
        """Where the columns of ``other`` are in this table; as they come where one of the two has no names."""
        if self.columns is None or other.columns is None:
            return slice(None)
        missing = [name for name in other.columns if name not in self.columns]
        if missing:
            own = ", ".join(self.columns)
            raise PosterityError(f"{self.name} has no column {missing[0]!r}, which the network needs: there are {own}")
        return [self.columns.index(name) for name in other.columns]

    def continuing(self, other: DataSet) -> DataSet:
        """More data for a network that has learned from ``other``.

        Inputs and real targets are brought to its units, and classes by their names to its numbers.
        """
        if self.task != other.task or self.vocabulary != other.vocabulary:
            raise PosterityError(f"{self.name} does not continue {other.name}: they differ in task or vocabulary")
        moved, target = self.in_units_of(other), self._retarget(other)
        return moved._mapped(
            lambda pair: (pair[0], target(pair[1])),
            classes=other.classes,
            target_standardiser=other.target_standardiser,
        )

    def _retarget(self, other: DataSet) -> Callable[[Tensor], Tensor]:
        """From this set's targets to those of ``other``."""
        if self.classes is None or other.classes is None:
            own, new = self.target_standardiser, other.target_standardiser
            raw = own.invert if own is not None else lambda y: y
            return lambda y: raw(y) if new is None else new.apply(raw(y))
        strange = [name for name in self.classes if name not in other.classes]
        if strange:
            raise PosterityError(
                f"{self.name} has the class {strange[0]!r}, for which the network has no output: it knows "
                f"{', '.join(other.classes)}"
            )
        numbers = torch.tensor([other.classes.index(name) for name in self.classes])
        return lambda y: numbers.to(y.device)[y]

    @classmethod
    def standardised(
        cls,
        name: str,
        kind: Kind,
        train: Pair,
        test: Pair,
        *,
        classes: tuple[str, ...] | None = None,
        validation: Pair | None = None,
        columns: tuple[str, ...] | None = None,
    ) -> DataSet:
        """From original units (any float dtype) to a data set in standard units and float32."""
        task = Task.REGRESSION if classes is None else Task.CLASSIFICATION
        inputs = Standardiser.fit(train[0])
        targets = Standardiser.fit(train[1]) if classes is None else None

        def ready(pair: Pair) -> Pair:
            x, y = pair
            return inputs.apply(x).float(), (targets.apply(y).float() if targets is not None else y)

        return cls(
            name,
            task,
            kind,
            train=ready(train),
            test=ready(test),
            validation=None if validation is None else ready(validation),
            classes=classes,
            standardiser=inputs,
            target_standardiser=targets,
            columns=columns,
        )
