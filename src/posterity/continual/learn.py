"""``learn``: a stream of tasks, one after the other, each from what the ones before have left.

For every task: the strategy says with which prior, on which examples and from which weights to fit; the posterior is
kept, and judged on every task. With a folder the state after each task, and within it the fit's own checkpoint, are on
disk: a run killed anywhere goes on to the same bits (on a CPU).
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posterity.continual.heads import next_network, unused_rows
from posterity.continual.judge import judged
from posterity.continual.memory import joined
from posterity.continual.result import Learned
from posterity.continual.strategy import Carry, Past, Strategy
from posterity.continual.tasks import Pair, Task
from posterity.files import write_bytes
from posterity.methods import Method
from posterity.posteriors import Empirical, Posterior, WeightPosterior, load, save
from posterity.probability import likelihoods
from posterity.probability.likelihoods import Likelihood, MultiHead
from posterity.training.config import Training
from posterity.training.fit import fit
from posterity.types import PosterityError

__all__ = ["TaskError", "learn"]

SEED_STRIDE = 7919  # a prime, between the seeds of two tasks

Watch = Callable[[Learned], None]
"""Is told after every task."""


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
    watch: Watch | None = None,
) -> Learned:
    """Learn tasks one after another.

    Args:
        module: An ordinary network, which is not changed; with a head for each task, its last Linear layer has a row
            for every class of all tasks.
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
        watch: Called after each task.
    """
    strategy = method if isinstance(method, Strategy) else Carry(method=method)
    training = training or Training()
    known = tasks if isinstance(tasks, Sequence) else None
    for task in known or ():
        _check(task, module, likelihood)
    settings = _Settings(strategy, likelihood, epochs, seed, training, draws, None if folder is None else Path(folder))
    stream = _Stream(copy.deepcopy(module), settings, [task.head for task in known] if known is not None else None)
    tests = [(task.test, task.head) for task in known] if known is not None else []
    if settings.folder is not None:
        stream.open(settings.folder, resume)
    for index, task in enumerate(tasks):
        try:
            _check(task, module, likelihood)
            if known is None:
                tests.append((task.test, task.head))
            stream.next(index, task, tests)
        except PosterityError as error:
            raise TaskError(f"task {index + 1} ({task.name}): {error}", stream.learned) from error
        if watch is not None:
            watch(stream.learned)
    return stream.learned


@dataclass(frozen=True)
class _Settings:
    """What stays the same over the stream."""

    strategy: Strategy
    likelihood: Likelihood | None
    epochs: int | None
    seed: int
    training: Training
    draws: int
    folder: Path | None

    def identity(self) -> dict[str, Any]:
        """What must agree between the run that began and the run that goes on."""
        training = self.training
        return {
            "epochs": self.epochs,
            "steps": training.steps,
            "seed": self.seed,
            "batch size": training.batch_size,
            "lr": training.lr,
        }

    def file(self, name: str, index: int) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}-{index + 1:02}.safetensors"


class _Stream:
    """The tasks learned so far, and how to learn one more."""

    def __init__(self, module: nn.Module, settings: _Settings, heads: list[Any] | None) -> None:
        self.module, self.settings = module, settings
        self.all_heads = heads
        self.past = Past(settings.strategy.base)
        self.learned = Learned(repr(settings.strategy), settings.identity())
        self.done: dict[str, Any] = {}

    def open(self, folder: Path, resume: bool) -> None:
        """Read what an earlier run has left, or refuse to write over it."""
        file = folder / "results.json"
        if not file.exists():
            return
        if not resume:
            raise PosterityError(f"{folder} already holds learned tasks: resume, or choose another folder")
        try:
            self.done = json.loads(file.read_text())
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise PosterityError(f"{file} cannot be read: {error}") from error
        own = {"strategy": self.learned.strategy, **self.learned.settings}
        was = {"strategy": self.done.get("strategy"), **self.done.get("settings", {})}
        for key, value in own.items():
            if was.get(key) != value:
                raise PosterityError(
                    f"{folder} belongs to another run: its {key} is {was.get(key)}, this run's {value}"
                )
        self.learned.start = self.done["start"]

    def next(self, index: int, task: Task, tests: list[Any]) -> None:
        """Learn one more task, or take it up from disk."""
        strategy, settings, began = self.settings.strategy, self.settings, time.perf_counter()
        likelihood = self._likelihood(task)
        if not index and not self.learned.start:
            self.learned.start = self._judge(self._untrained(likelihood), tests)
        kept, train = strategy.cut(task.train, settings.seed + SEED_STRIDE * index)
        if index < len(self.done.get("tasks", ())):
            posterior = self._from_disk(index, task)
        else:
            network = self._network()
            lessons = strategy.lessons(train, self.past.memory)
            posterior = self._fit(
                network, strategy.method_for(self.past, likelihood), lessons, likelihood, index, "task"
            )
            _keep(posterior, settings.file("task", index))
        self._remember(task, posterior, kept)
        if index < len(self.done.get("tasks", ())):
            self._take_up(index, posterior)
            return
        predictive = self._refined(likelihood, index) if strategy.refines else strategy.predictive(posterior)
        self.learned.predictive = predictive
        self.learned.tasks.append(task.name)
        self.learned.seconds.append(time.perf_counter() - began)
        self.learned.rows.append(self._judge(predictive, tests))
        self._write(index, predictive)

    def _network(self) -> nn.Module:
        """Where the next fit starts."""
        known = self.past.posterior
        if known is None or self.settings.strategy.afresh:
            return self.module
        return next_network(self.module, known, unused_rows(self.module, self.past.heads))

    def _likelihood(self, task: Task) -> Likelihood:
        """With a head for each task, that of this one; of all heads where examples of several are learned together."""
        likelihood = self.settings.likelihood or likelihoods.infer(task.train[1])
        if task.head is None:
            return likelihood
        heads = tuple(self.all_heads or [*self.past.heads, task.head])
        together = self.settings.strategy.rehearse or self.settings.strategy.afresh
        return MultiHead(heads=heads, head=None if together else len(self.past.heads))

    def _fit(
        self, network: nn.Module, method: Method, data: Pair, likelihood: Likelihood, index: int, stage: str
    ) -> WeightPosterior:
        """One fit, with a checkpoint of its own."""
        settings, training = self.settings, self.settings.training
        checkpoint = settings.file(f"checkpoint-{stage}", index)
        if checkpoint is not None:
            training = replace(training, checkpoint=checkpoint, resume=True)
        posterior = fit(
            network,
            method,
            data,
            likelihood=likelihood,
            epochs=None if training.steps else settings.epochs,
            seed=settings.seed + SEED_STRIDE * index,
            training=training,
        )
        if not isinstance(posterior, WeightPosterior):
            raise PosterityError(
                f"{type(posterior).__name__} is no distribution over weights, and cannot be carried on"
            )
        return posterior

    def _refined(self, likelihood: Likelihood, index: int) -> Posterior:
        """The carried posterior after the remembered examples, too; it is used for predictions only."""
        several = replace(likelihood, head=None) if isinstance(likelihood, MultiHead) else likelihood
        method = self.settings.strategy.method_for(self.past, several)
        return self._fit(self._network(), method, joined(self.past.memory), several, index, "memory")

    def _remember(self, task: Task, posterior: WeightPosterior, kept: Pair | None) -> None:
        """What the next task will know."""
        past, strategy = self.past, self.settings.strategy
        past.heads.append(task.head)
        past.sizes.append(len(task.train[1]))
        unused = unused_rows(self.module, past.heads)
        prior = strategy.prior_after(posterior, past.prior)
        past.prior = prior.renewed(unused, strategy.base) if unused and prior is not strategy.base else prior
        past.posterior = self.learned.posterior = posterior
        past.stds = None if strategy.afresh else _stds(posterior, unused)
        if kept is not None:
            past.memory.append(kept)

    def _untrained(self, likelihood: Likelihood) -> Posterior:
        point = {name: p.detach() for name, p in self.module.named_parameters()}
        device = self.settings.training.pick_device()
        return Empirical(self.module, likelihood, [point]).to(device)

    def _judge(self, posterior: Posterior, tests: list[Any]) -> dict[str, list[float]]:
        """Every figure on every task; a head for each task is asked by itself."""
        figures: dict[str, list[float]] = {}
        heads = tuple(head for _, head in tests)
        for number, (test, head) in enumerate(tests):
            asked = None if head is None else MultiHead(heads=heads, head=number)
            found = {} if test is None else judged(posterior, test, self.settings.draws, asked)
            for name, value in found.items():
                figures.setdefault(name, []).append(value)
        return figures

    def _from_disk(self, index: int, task: Task) -> WeightPosterior:
        if self.done["tasks"][index] != task.name:
            raise PosterityError(f"the folder has {self.done['tasks'][index]!r} at this place")
        file = self.settings.file("task", index)
        found = load(file, self.module, self.settings.training.pick_device())  # type: ignore[arg-type]
        return found  # type: ignore[return-value]

    def _take_up(self, index: int, posterior: WeightPosterior) -> None:
        """The figures of a task that was learned before."""
        self.learned.predictive = posterior
        self.learned.tasks.append(self.done["tasks"][index])
        self.learned.rows.append(self.done["rows"][index])
        self.learned.seconds.append(self.done["seconds"][index])

    def _write(self, index: int, predictive: Posterior) -> None:
        """A task is done when the results say so; its checkpoint is no longer needed."""
        if self.settings.folder is None:
            return
        save(predictive, self.settings.folder / "posterior.safetensors")
        write_bytes(self.settings.folder / "results.json", json.dumps(self.learned.record(), indent=1).encode())
        for checkpoint in self.settings.folder.glob("checkpoint-*"):
            checkpoint.unlink()


def _check(task: Task, module: nn.Module, likelihood: Likelihood | None) -> None:
    """Refuse a task before anything is spent on it; inputs that do not fit the network are refused by ``fit``."""
    task.check()
    targets = task.train[1]
    last = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    likelihood = likelihood or likelihoods.infer(targets)
    if not likelihood.classifies or not last:
        return
    classes = range(last[-1].out_features) if task.head is None else task.head
    strange = sorted(set(targets.unique().tolist()) - set(classes))
    if strange:
        raise PosterityError(
            f"{task.name}: the network has no output for class {strange[0]}, only for {', '.join(map(str, classes))}"
        )


def _stds(posterior: WeightPosterior, unused: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Standard deviations, zero where no task has used the weight."""
    stds = {name: variance.sqrt() for name, variance in posterior.variance().items()}
    return {name: s.masked_fill(unused[name].to(s.device), 0.0) if name in unused else s for name, s in stds.items()}


def _keep(posterior: Posterior, file: Path | None) -> None:
    if file is not None:
        save(posterior, file)
