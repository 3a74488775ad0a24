"""Known streams of tasks by name, each with the network that papers use."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from posterity import data
from posterity.continual.tasks import Permuted, Task, on_validation, split
from posterity.data import DataSet
from posterity.models import mlp
from posterity.random import global_seed
from posterity.types import PosterityError

__all__ = ["BENCHMARKS", "Benchmark", "benchmark"]


@dataclass(frozen=True)
class Description:
    """How a stream is made.

    Attributes:
        source: The data set, by name.
        meaning: In one sentence.
        tasks: From the data, the number of tasks (None for the usual) and a seed.
        hidden: Widths of the network's hidden layers.
        held: Training examples that are kept apart to choose settings on.
        epochs: Passes over each task that suffice.
        batch_size: Examples a step; large, since a step of a small network is bound by launching kernels.
    """

    source: str
    meaning: str
    tasks: Callable[[DataSet, int | None, int], Sequence[Task]]
    hidden: tuple[int, ...] = (100, 100)
    held: int = 5000
    epochs: int = 20
    batch_size: int = 512


def _permuted(source: DataSet, tasks: int | None, seed: int) -> Permuted:
    return Permuted(source.training(), source.test, tasks or 10, seed)


def _split(heads: bool) -> Callable[[DataSet, int | None, int], Sequence[Task]]:
    return lambda source, tasks, seed: split(source, 2, heads=heads)[:tasks]


BENCHMARKS: dict[str, Description] = {
    "permuted-mnist": Description("mnist", "ten orders of MNIST's pixels, one head", _permuted),
    "split-mnist": Description(
        "mnist", "five pairs of digits, a head for each pair", _split(True), (256, 256), epochs=15, batch_size=256
    ),
    "split-mnist-single": Description(
        "mnist", "five pairs of digits, one head", _split(False), (256, 256), epochs=15, batch_size=256
    ),
    "split-fashion": Description(
        "fashion-mnist",
        "five pairs of garments, a head for each pair",
        _split(True),
        (256, 256),
        epochs=15,
        batch_size=256,
    ),
    "split-fashion-single": Description(
        "fashion-mnist", "five pairs of garments, one head", _split(False), (256, 256), epochs=15, batch_size=256
    ),
    "permuted-digits": Description(
        "digits",
        "orders of the pixels of scikit-learn's small digits, one head",
        _permuted,
        held=200,
        epochs=30,
        batch_size=32,
    ),
    "split-digits": Description(
        "digits", "five pairs of small digits, a head for each pair", _split(True), held=200, epochs=30, batch_size=32
    ),
}


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A stream of tasks and a network for it.

    Attributes:
        name: Its name in the shell.
        tasks: What is learned, in order.
        module: A freshly initialised network.
        epochs: Passes over each task that suffice.
        batch_size: Examples a step.
    """

    name: str
    tasks: Sequence[Task]
    module: nn.Module
    epochs: int
    batch_size: int


def benchmark(name: str, *, tasks: int | None = None, seed: int = 0, validate: bool = False) -> Benchmark:
    """A stream by name.

    Args:
        name: One of ``BENCHMARKS``.
        tasks: How many tasks; None for all, ten of the permuted ones.
        seed: Draws the orders of permuted pixels, and the network's first weights.
        validate: Judge on the last training examples, which are then not learned from: to choose settings.
    """
    if name not in BENCHMARKS:
        raise PosterityError(f"there is no stream {name!r}; there are {', '.join(BENCHMARKS)}")
    if tasks is not None and tasks < 1:
        raise PosterityError(f"a stream has at least one task, got tasks={tasks}")
    made = BENCHMARKS[name]
    source = data.load(made.source)
    source = on_validation(source, made.held) if validate else source
    with global_seed(seed, torch.device("cpu")):
        network = mlp(math.prod(source.shape), source.outputs, made.hidden)
    return Benchmark(name, made.tasks(source, tasks, seed), network, made.epochs, made.batch_size)
