"""The state of a stream of tasks, and how one more is learned; ``learn`` is the way in.

For a task: its memory is cut, it is fitted with the prior, the start and the examples that the strategy asks for, and
it becomes the past of the next. The past is a pure function of the tasks' posteriors and data, so that it can be
rebuilt from what is on disk.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from posterity.continual.heads import ending, next_network, unused_rows
from posterity.continual.judge import judged
from posterity.continual.memory import joined
from posterity.continual.online import SEED_STRIDE, weights_of
from posterity.continual.result import Figure, Learned
from posterity.continual.strategy import Past, Strategy
from posterity.continual.tasks import Pair, Task
from posterity.files import write_bytes
from posterity.methods import Method
from posterity.networks import duplicate
from posterity.posteriors import Empirical, Posterior, WeightPosterior, load, save
from posterity.probability import likelihoods
from posterity.probability.likelihoods import Likelihood, MultiHead
from posterity.training.config import Training
from posterity.training.fit import fit_next
from posterity.types import Params, PosterityError

__all__ = ["Settings", "Stream"]


@dataclass(frozen=True)
class Settings:
    """What stays the same over the stream; see ``learn``."""

    strategy: Strategy
    likelihood: Likelihood | None
    epochs: int | None
    seed: int
    training: Training
    draws: int
    folder: Path | None

    def identity(self) -> dict[str, Any]:
        """What must agree between the run that began and the run that goes on."""
        loop = self.training
        settings = {"epochs": self.epochs, "steps": loop.steps, "lr": loop.lr, "batch size": loop.batch_size}
        return {**settings, "seed": self.seed, "draws": self.draws}

    def file(self, name: str, index: int) -> Path | None:
        """A task's file, where there is a folder."""
        return None if self.folder is None else self.folder / f"{name}-{index + 1:02}.safetensors"


class Stream:
    """The tasks learned so far.

    Args:
        module: The network before the first task.
        settings: What stays the same.

    Attributes:
        learned: The outcome so far.
        past: What the next task will know.
        tests: Test examples and head of every task that is known.
        head_layer: The layer with a row for every class, where tasks have heads of their own.
    """

    def __init__(self, module: nn.Module, settings: Settings) -> None:
        self.module, self.settings = duplicate(module), settings
        self.past = Past(settings.strategy.base)
        self.learned = Learned(repr(settings.strategy), settings.identity())
        self.tests: list[tuple[Pair | None, tuple[int, ...] | None]] = []
        self.head_layer: str | None = None
        self.done: dict[str, Any] = {"tasks": []}

    def expect(self, task: Task) -> None:
        """Judge on this task from now on, also before it is learned."""
        if self.tests and (task.head is None) != (self.tests[0][1] is None):
            raise PosterityError(f"{task.name}: either every task has a head of its own, or none has")
        if task.head is not None and self.head_layer is None:
            self.head_layer = ending(self.module, task.train[0]).head_layer()
        self.tests.append((task.test, task.head))

    def open(self, folder: Path, resume: bool) -> None:
        """Read what an earlier run has left, or refuse to write over it."""
        file = folder / "results.json"
        if not file.exists():
            return
        if not resume:
            raise PosterityError(f"{folder} already holds learned tasks: resume, or choose another folder")
        try:
            self.done = json.loads(file.read_text())
            was = {"strategy": self.done["strategy"], **self.done["settings"]}
        except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError) as error:
            raise PosterityError(f"{file} holds no results of learned tasks: {error!r}") from error
        for key, value in {"strategy": self.learned.strategy, **self.learned.settings}.items():
            if was.get(key) != value:
                raise PosterityError(
                    f"{folder} belongs to another run: its {key} is {was.get(key)}, this run's {value}"
                )
        self.learned.start = self.done["start"]

    def next(self, task: Task) -> None:
        """Learn one more task, or take it up from disk."""
        index, strategy = len(self.learned.tasks), self.settings.strategy
        likelihood, began = self._likelihood(task), time.perf_counter()
        if not self.learned.start and likelihood.trainable() is None:  # else nothing is judged yet
            self.learned.start = self._judge(self._untrained(likelihood))
        kept, train = strategy.cut(task.train, self._seed(index))
        if index < len(self.done["tasks"]):
            self._remember(task, self._from_disk(task, index), kept)
            return
        method, lessons = strategy.method_for(self.past, likelihood), strategy.lessons(train, self.past.memory)
        posterior = self._fit(method, lessons, likelihood, index, "task")
        file = self.settings.file("task", index)
        if file is not None:
            save(posterior, file)
        self._remember(task, posterior, kept)
        predictive = self._refined(likelihood, index) if strategy.refines else strategy.predictive(posterior)
        self._add(task.name, predictive, time.perf_counter() - began, self._judge(predictive))
        self._write()

    @property
    def _heads(self) -> tuple[tuple[int, ...], ...]:
        """The classes of every known task, where each has a head of its own."""
        return tuple(head for _, head in self.tests if head is not None)

    def _seed(self, index: int) -> int:
        return self.settings.seed + SEED_STRIDE * index

    def _likelihood(self, task: Task) -> Likelihood:
        """The likelihood of this task's head, or of all heads where examples of several tasks are learned together."""
        if task.head is None:
            return self.settings.likelihood or likelihoods.infer(task.train[1])
        together = self.settings.strategy.rehearse or self.settings.strategy.afresh
        return MultiHead(heads=self._heads, head=None if together else len(self.past.heads))

    def _fit(self, method: Method, data: Pair, likelihood: Likelihood, index: int, stage: str) -> WeightPosterior:
        """One fit from where the past left the weights, with a checkpoint of its own."""
        training, known = self.settings.training, self.past.posterior
        afresh = known is None or self.settings.strategy.afresh
        network = self.module
        if known is not None and not afresh:
            network = next_network(self.module, known, unused_rows(self.module, self.head_layer, self.past.heads))
        checkpoint = self.settings.file(f"checkpoint-{stage}", index)
        if checkpoint is not None:
            training = replace(training, checkpoint=checkpoint, resume=True)
        epochs = None if training.steps else self.settings.epochs
        return weights_of(
            fit_next(
                network, method, data, likelihood=likelihood, epochs=epochs, seed=self._seed(index), training=training
            )
        )

    def _refined(self, likelihood: Likelihood, index: int) -> Posterior:
        """The carried posterior after learning the remembered examples, too; only predictions are made with it."""
        several = replace(likelihood, head=None) if isinstance(likelihood, MultiHead) else likelihood
        method = self.settings.strategy.method_for(self.past, several)
        return self._fit(method, joined(self.past.memory), several, index, "memory")

    def _remember(self, task: Task, posterior: WeightPosterior, kept: Pair | None) -> None:
        """What the next task will know."""
        past, strategy = self.past, self.settings.strategy
        past.heads.append(task.head)
        past.sizes.append(len(task.train[1]))
        unused = unused_rows(self.module, self.head_layer, past.heads)
        prior = strategy.prior_after(posterior, past.prior)
        past.prior = prior.renewed(unused, strategy.base) if unused and prior is not strategy.base else prior
        past.posterior = self.learned.posterior = posterior
        past.stds = None if strategy.afresh else _stds(posterior, unused)
        if kept is not None:
            past.memory.append(kept)

    def _add(self, name: str, predictive: Posterior, seconds: float, row: dict[str, list[Figure]]) -> None:
        self.learned.predictive = predictive
        self.learned.tasks.append(name)
        self.learned.seconds.append(seconds)
        self.learned.rows.append(row)

    def _untrained(self, likelihood: Likelihood) -> Posterior:
        return Empirical.at(self.module, likelihood).to(self.settings.training.pick_device())

    def _judge(self, posterior: Posterior) -> dict[str, list[Figure]]:
        """Every figure on every known task; a head for each task is asked by itself."""
        each: list[dict[str, float]] = []
        for number, (test, head) in enumerate(self.tests):
            asked = None if head is None else MultiHead(heads=self._heads, head=number)
            each.append({} if test is None else judged(posterior, test, self.settings.draws, asked))
        names = next((list(figures) for figures in each if figures), [])
        return {name: [figures.get(name) for figures in each] for name in names}

    def _from_disk(self, task: Task, index: int) -> WeightPosterior:
        """A task that was learned before."""
        if self.done["tasks"][index] != task.name:
            raise PosterityError(f"the folder has {self.done['tasks'][index]!r} in its place")
        device, last = self.settings.training.pick_device(), index == len(self.done["tasks"]) - 1
        posterior = weights_of(load(self.settings.file("task", index), self.module, device))  # type: ignore[arg-type]
        predictive: Posterior = posterior
        if last and self.settings.folder is not None:
            predictive = load(self.settings.folder / "posterior.safetensors", self.module, device)
        self._add(task.name, predictive, self.done["seconds"][index], self.done["rows"][index])
        return posterior

    def _write(self) -> None:
        """A task is done when the results say so; its checkpoints are no longer needed."""
        folder, predictive = self.settings.folder, self.learned.predictive
        if folder is None or predictive is None:
            return
        save(predictive, folder / "posterior.safetensors")
        write_bytes(folder / "results.json", json.dumps(self.learned.record(), indent=1).encode())
        for checkpoint in folder.glob("checkpoint-*"):
            checkpoint.unlink()


def _stds(posterior: WeightPosterior, unused: Params) -> Params:
    """Standard deviations, zero where no task has used the weight."""
    stds: dict[str, Tensor] = {name: variance.sqrt() for name, variance in posterior.variance().items()}
    return {name: s.masked_fill(unused[name].to(s.device), 0.0) if name in unused else s for name, s in stds.items()}
