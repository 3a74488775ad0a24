"""``learn``: a stream of tasks, one after the other, each from what the ones before have left.

With a folder the state after each task, and within it the fit's own checkpoint, are on disk: a run killed anywhere goes
on to the same bits (on a CPU).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from torch import nn

from posterity.continual.heads import ending
from posterity.continual.result import Learned
from posterity.continual.strategy import Carry, Strategy
from posterity.continual.stream import Settings, Stream
from posterity.continual.tasks import Task
from posterity.methods import Method
from posterity.probability import likelihoods
from posterity.probability.likelihoods import Categorical, Likelihood
from posterity.training.config import Training
from posterity.types import PosterityError

__all__ = ["TaskError", "learn"]


class TaskError(PosterityError):
    """A task that could not be learned; ``so_far`` has what was learned before it."""

    def __init__(self, message: str, so_far: Learned) -> None:
        super().__init__(message)
        self.so_far = so_far


def learn(
    module: nn.Module,
    method: Method | Strategy,
    tasks: Iterable[Task],
    *,
    likelihood: Likelihood | None = None,
    epochs: int | None = None,
    seed: int = 0,
    training: Training | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    draws: int = 32,
    watch: Callable[[Learned], None] | None = None,
) -> Learned:
    """Learn tasks one after another.

    Args:
        module: An ordinary network, which is not changed; with a head for each task, it ends in a Linear layer with a
            row for every class of all tasks.
        method: A method, whose posterior after each task becomes the prior of the next; or a strategy, such as
            ``Carry(method=..., memory=Memory(200))`` or a baseline.
        tasks: What is learned, in order. Of a list all tests are known from the beginning (forward transfer); any other
            iterable is asked for its next task when the last is done.
        likelihood: How targets arise from outputs; None takes it from the type of the targets.
        epochs: Passes over each task's data.
        seed: All randomness.
        training: Everything else about each fit.
        folder: Where the posterior of every task, the results and the checkpoints go; None keeps nothing on disk.
        resume: Go on from what the folder holds.
        draws: Networks averaged in predictions.
        watch: Called after each task with what is learned so far.
    """
    if not isinstance(module, nn.Module):
        raise PosterityError(f"tasks are learned one after another by one network, got {type(module).__name__}")
    strategy = method if isinstance(method, Strategy) else Carry(method=method)
    where = None if folder is None else Path(folder)
    settings = Settings(strategy, likelihood, epochs, seed, training or Training(), draws, where)
    stream = Stream(module, settings)
    known = isinstance(tasks, Sequence)
    for task in tasks if known else ():
        _check(task, module, likelihood)
        stream.expect(task)
    if where is not None:
        stream.open(where, resume)
    for number, task in enumerate(tasks, 1):
        try:
            _check(task, module, likelihood)
            if not known:
                stream.expect(task)
            stream.next(task)
        except PosterityError as error:
            raise TaskError(f"task {number} ({getattr(task, 'name', '?')}): {error}", stream.learned) from error
        if watch is not None:
            watch(stream.learned)
    return stream.learned


def _check(task: Task, module: nn.Module, likelihood: Likelihood | None) -> None:
    """Refuse a task before anything is spent on it."""
    if not isinstance(task, Task):
        raise PosterityError(f"a stream is made of Tasks, got {type(task).__name__}")
    task.check()
    targets = task.train[1]
    if not isinstance(likelihood or likelihoods.infer(targets), Categorical):
        return
    outputs = range(ending(module, task.train[0]).outputs)
    classes = outputs if task.head is None else task.head
    for asked, there in ((classes, outputs), (targets.unique().tolist(), classes)):
        strange = sorted(set(asked) - set(there))
        if strange:
            known = ", ".join(map(str, there))
            raise PosterityError(f"{task.name}: the network has no output for class {strange[0]}, only for {known}")
