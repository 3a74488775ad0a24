"""The vocabulary of the library: parameters, predictors, batches, the plan of a fit, and its errors."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple, Protocol, SupportsIndex

from torch import Tensor
from torch.optim import Optimizer

Params = dict[str, Tensor]
"""Parameters by their name in the user's plain module."""

Inputs = Any
"""What a network is called with: a tensor, a tuple (positional) or a dictionary (by keyword) of tensors."""

Predictor = Callable[[Inputs], Tensor]
"""One draw: a consistent function from inputs to network outputs."""


class PosterityError(ValueError):
    """Bad input, said in one sentence: what was got, what was expected."""


class PosterityWarning(UserWarning):
    """One plain line with what to do about it."""


class Batch(NamedTuple):
    """Some examples: inputs, targets, and optionally a weight for each example."""

    inputs: Inputs
    targets: Tensor
    weights: Tensor | None = None

    def weighted(self, each: Tensor) -> Tensor:
        """A value of each example, times its weight where it has one."""
        return each if self.weights is None else each * self.weights


class OptimizerFactory(Protocol):
    """Builds the plain optimizer that a fit asked for."""

    def build(self, params: Any, lr: float, weight_decay: float = 0.0) -> Optimizer:
        """An optimizer over ``params``."""
        ...


@dataclass(frozen=True)
class Plan:
    """What is known of a fit before it starts.

    Attributes:
        num_data: N, the number of training examples; the only thing a summed penalty is ever divided by.
        steps: Optimizer steps of the whole run.
        steps_per_epoch: Optimizer steps that see every example once.
        batch_size: Examples of one step, over all ranks and micro-batches.
        algorithm: The plain optimizer that the user asked for, for methods that do not bring their own.
        lr: The learning rate that the user asked for; None leaves it to the method.
    """

    num_data: int
    steps: int
    steps_per_epoch: int
    batch_size: int
    algorithm: OptimizerFactory
    lr: float | None = None

    def count(self, period: int | str, name: str = "every") -> int:
        """Steps in a period given as a number of steps or as ``"epoch"``."""
        if period == "epoch":
            return self.steps_per_epoch
        if not isinstance(period, SupportsIndex) or int(period) < 1:
            raise PosterityError(f"{name} must be a positive number of steps or 'epoch', got {period!r}")
        return int(period)

    def at(self, start: int | float, name: str = "start") -> int:
        """The step at which something starts, given as a step (int) or as a fraction of the run (float)."""
        if not isinstance(start, Real) or start != start:
            raise PosterityError(f"{name} must be a step (a whole number) or a fraction of the run, got {start!r}")
        step = int(start) if isinstance(start, SupportsIndex) else round(start * self.steps)
        if not 0 <= step < self.steps:
            raise PosterityError(f"{name}={start!r} falls outside a run of {self.steps} steps")
        return step


def hint(name: object, known: Iterable[str]) -> str:
    """What to say of an unknown name: the one that was probably meant, or all that are known."""
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known) or 'none'}"


def check_positive(**values: float | Mapping[str, Any]) -> None:
    """Refuse hyper-parameters that are not numbers above zero (mappings are checked value by value)."""
    for name, value in values.items():
        for number in value.values() if isinstance(value, Mapping) else (value,):
            low = float(number.min()) if isinstance(number, Tensor) else number
            if not isinstance(low, Real) or not 0 < float(low) < float("inf"):
                raise PosterityError(f"{name} must be positive and finite, got {low!r}")


def check_number(**values: Any) -> None:
    """Refuse what is no real number, as NaN is none."""
    for name, value in values.items():
        if not isinstance(value, Real) or value != value:
            raise PosterityError(f"{name} must be a number, got {value!r}")


def check_positive_if_given(**values: Any) -> None:
    """As ``check_positive``; None stands for one that was not given."""
    check_positive(**{name: value for name, value in values.items() if value is not None})


def check_whole(**values: Any) -> None:
    """Refuse counts that are no whole numbers; None stands for one that was not given."""
    for name, value in values.items():
        if value is not None and not isinstance(value, SupportsIndex):
            raise PosterityError(f"{name} must be a whole number, got {value!r}")


def check_fraction(**values: float) -> None:
    """Refuse hyper-parameters outside [0, 1)."""
    for name, value in values.items():
        if not isinstance(value, Real) or not 0 <= value < 1:
            raise PosterityError(f"{name} must lie in [0, 1), got {value!r}")


def check_level(level: float, what: str = "an interval's level") -> None:
    """Refuse a probability that is not strictly between 0 and 1."""
    if not 0 < level < 1:
        raise PosterityError(f"{what} lies in (0, 1), got {level!r}")
