"""Hybrid continual learning: one invertible network models every task and class, and knows when a task is new.

Classification is Bayes' rule over all tasks, so that nobody has to say which task an input is of:

    p(y | x) ∝ Σ_t p(x | t, y) p(y | t) p(t),   p(x | t, y) as in ``continual.conditional``.

Training maximises log p(x | t, y) on the data. When the task changes, f_old keeps the network as it is; from then on
x' = f_old⁻¹(z'), z' ~ N(μ_{t',y'}, I), are examples of the other tasks, and every step adds

    generative replay (HCL-GR)          weight · −log p(x' | t', y')
    functional regularisation (HCL-FR)  weight · ‖f(x') − f_old(x')‖²,   where f_old(x') = z'.

The second pins the whole map and not only its likelihood. Which task a batch is of is told (``detection=None``) or
found (``detection=Typicality()``, ``continual.detection``). Kirichenko et al. 2021, 2106.12772.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from posterity.calling import InputSpec
from posterity.continual.conditional import ClassConditionalFlow
from posterity.continual.detection import Typicality
from posterity.continual.flows import Flow
from posterity.continual.hcl_memory import Memory
from posterity.networks import duplicate
from posterity.posteriors import Empirical
from posterity.probability.likelihoods import Categorical
from posterity.random import RandomStreams, global_seed
from posterity.run import Run
from posterity.training.checkpoint import Checkpoint
from posterity.training.config import Training
from posterity.training.distributed import Ranks
from posterity.training.doctor import check_loss
from posterity.training.progress import Progress
from posterity.training.stream import Stream, open_stream
from posterity.types import Batch, Plan, PosterityError, check_positive

__all__ = ["HCL", "FunctionalRegularisation", "GenerativeReplay", "learn_hcl"]

_NOT_HERE = (
    *("schedule", "steps", "accumulate", "autocast", "compile", "validation", "patience", "augment", "num_data"),
    *("tensorboard", "checkpoint_every", "record", "ranks_per_draw"),
)


class AgainstForgetting(Protocol):
    """A penalty on replayed examples."""

    def penalty(self, model: ClassConditionalFlow, x: Tensor, z: Tensor, components: Tensor) -> Tensor:
        """From x' = f_old⁻¹(z'), z', and the components that z' was drawn from."""
        ...


@dataclass(frozen=True)
class GenerativeReplay:
    """HCL-GR: examples of other tasks are made up and learned again."""

    weight: float = 4.0

    def __post_init__(self) -> None:
        check_positive(weight=self.weight)

    def penalty(self, model: ClassConditionalFlow, x: Tensor, z: Tensor, components: Tensor) -> Tensor:
        """weight · −log p(x' | t', y')."""
        new, log_det = model.flow(x)
        return -self.weight * model.log_prob(new, log_det, components).mean()


@dataclass(frozen=True)
class FunctionalRegularisation:
    """HCL-FR: on made-up examples of other tasks the map stays what it was."""

    weight: float = 4.0

    def __post_init__(self) -> None:
        check_positive(weight=self.weight)

    def penalty(self, model: ClassConditionalFlow, x: Tensor, z: Tensor, components: Tensor) -> Tensor:
        """weight · ‖f(x') − z'‖²."""
        return self.weight * (model.flow(x)[0] - z).square().sum(1).mean()


@dataclass(frozen=True, kw_only=True)
class HCL:
    """How to learn a stream of tasks with one flow.

    Attributes:
        against: What keeps earlier tasks.
        detection: How a change of task is found; None: it is told.
        noise: Standard deviation of the noise that training adds to inputs, so that constant pixels have a density.
        mean_std: Standard deviation of the random class means.
    """

    against: AgainstForgetting = FunctionalRegularisation()
    detection: Typicality | None = Typicality()
    noise: float = 0.4
    mean_std: float = 1.0

    def __post_init__(self) -> None:
        check_positive(mean_std=self.mean_std)
        if not self.noise >= 0:
            raise PosterityError(f"noise must not be negative, got {self.noise!r}")


def learn_hcl(
    flow: Flow,
    tasks: Sequence[Any],
    config: HCL | None = None,
    *,
    epochs: int = 1,
    seed: int = 0,
    training: Training | None = None,
) -> Empirical:
    """Learn tasks one after the other; the posterior is one network, whose logits are log p(x, y).

    Its ``history`` has a row for every batch: the statistics of detection, and the task that the batch was taken for.

    Args:
        flow: Where the map starts; it is not changed.
        tasks: For each task what ``fit`` takes as data. Only ``detection=None`` is told where one ends.
        config: How to learn them.
        epochs: Passes over each task before the next.
        seed: All randomness.
        training: Batch size, learning rate, optimizer, clipping, device, checkpoint and progress.
    """
    if not isinstance(flow, Flow):
        raise PosterityError(f"HCL needs a flow, such as feature_flow(784), got {type(flow).__name__}")
    config, training = config or HCL(), training or Training()
    device = training.pick_device()
    with global_seed(seed, device):
        streams = [open_stream(task, training, seed + i, Ranks(), device) for i, task in enumerate(tasks)]
        _check(flow, epochs, training, streams)
        num_data, steps = sum(s.num_data for s in streams), epochs * sum(s.steps_per_epoch for s in streams)
        typical = -(-steps // (epochs * len(streams)))
        plan = Plan(num_data, steps, typical, streams[0].batch_size, training.algorithm, training.lr)
        model = ClassConditionalFlow(duplicate(flow)).to(device)
        optimizer = training.algorithm.build(model.parameters(), training.lr or 1e-3)
        memory = Memory(model, config.detection or Typicality())
        run = Run(model, optimizer, memory, plan, RandomStreams.from_seed(seed, 0, device))
        _train(run, config, streams, epochs, training)
        spec = InputSpec.of(next(iter(streams[0].once())).inputs)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    posterior = Empirical(model, Categorical(), [weights], [dict(model.named_buffers())], inputs=spec, seed=seed)
    posterior.history = run.history
    return posterior


def _train(run: Run, config: HCL, streams: list[Stream], epochs: int, training: Training) -> None:
    """All tasks, from the beginning or from the checkpoint, which is written after each pass over a task."""
    device = run.streams.local.device
    identity = {"method": repr(config), "steps": run.plan.steps, "seed": run.streams.shared.initial_seed()}
    checkpoint = Checkpoint(Path(training.checkpoint) if training.checkpoint else None, 1, identity, Ranks())
    if training.resume:
        checkpoint.restore(run, device)
    passes = [(told, stream, epoch) for told, stream in enumerate(streams) for epoch in range(epochs)]
    done = 0
    with Progress(training, len(passes), "HCL") as progress:
        for told, stream, epoch in passes:
            done += stream.steps_per_epoch
            if run.step >= done:
                continue
            begun = len(run.history)
            for batch, _ in stream.epoch(epoch):
                _step(run, config, batch, told, training.clip)
            _read_losses(run, begun, checkpoint.path)
            for callback in (progress, *training.callbacks):
                callback.on_epoch(run, run.history[-1])
            if checkpoint.path is not None:
                checkpoint.begin_epoch(device)
                checkpoint.save(run, device)


def _step(run: Run, config: HCL, batch: Batch, told: int, clip: float | None) -> None:
    """Judge a batch; learn it, unless it is set aside. The verdict is all that waits for the device."""
    model, memory = _parts(run)
    x, current = batch.inputs, memory.detector.current
    noise = torch.randn(x.shape, generator=run.streams.local, dtype=x.dtype, device=x.device)
    z, log_det = model.flow(x + config.noise * noise)
    seen, met = _look(model, z, log_det, batch.targets)
    task = memory.detector.judge(seen, len(x)) if config.detection else told
    row: dict[str, Any] = {"step": run.step, "told": told, "task": -1 if task is None else task}
    if current >= 0:
        row |= dict(zip(("log_likelihood", "latent", "log_det"), seen[current].tolist(), strict=True))
    run.history.append(row)
    run.step += 1
    if task is None:
        return
    if task != current:
        memory.keep(model, task)
    if task >= len(met) or not met[task]:
        known = model.components(task, batch.targets) >= 0
        model.meet(task, batch.targets[~known], config.mean_std, run.streams.local)
        seen, _ = _look(model, z, log_det, batch.targets)
    loss = -model.log_prob(z, log_det, model.components(task, batch.targets)).mean()
    row["loss"] = loss.detach()
    _update(run, config, loss, len(x), clip)
    memory.detector.observe(task, seen[task], len(x))


def _look(model: ClassConditionalFlow, z: Tensor, log_det: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """What is known of a batch under every task, [tasks, 3], and whether the task has met all its classes, [tasks]."""
    statistics = model.statistics(z.detach(), log_det.detach())
    seen = torch.cat([statistics, model.met(labels).to(statistics).unsqueeze(1)], 1).cpu()
    return seen[:, :3], seen[:, 3] > 0


def _read_losses(run: Run, begun: int, checkpoint: Path | None) -> None:
    """The losses of a pass, which stayed on the device until now, as numbers."""
    learned = [row for row in run.history[begun:] if "loss" in row]
    losses = torch.stack([row["loss"] for row in learned]).tolist() if learned else []  # type: ignore[misc]
    for row, loss in zip(learned, losses, strict=True):
        row["loss"] = loss
        check_loss(loss, run, checkpoint)


def _update(run: Run, config: HCL, loss: Tensor, count: int, clip: float | None) -> None:
    """One step of the optimizer, against forgetting the other tasks."""
    model, memory = _parts(run)
    replayed = memory.replay(count, run.streams.local)
    if replayed is not None:
        loss = loss + config.against.penalty(model, *replayed)
    run.optimizer.zero_grad()
    loss.backward()
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    run.optimizer.step()


def _parts(run: Run) -> tuple[ClassConditionalFlow, Memory]:
    return run.module, run.collector  # type: ignore[return-value]


def _check(flow: Flow, epochs: int, training: Training, streams: list[Stream]) -> None:
    """Refuse what can be refused before the first step."""
    check_positive(epochs=epochs)
    for name in _NOT_HERE:
        if getattr(training, name) != getattr(Training(), name):
            raise PosterityError(f"HCL has a loop of its own, in which Training({name}=...) means nothing")
    if not streams:
        raise PosterityError("there are no tasks to learn")
    for index, stream in enumerate(streams):
        batch = next(iter(stream.once()))
        x, y = batch.inputs, batch.targets
        if not isinstance(x, Tensor) or x[0].numel() != flow.size:
            raise PosterityError(f"task {index}: the flow takes {flow.size} numbers, got {InputSpec.of(x).shapes}")
        own = next(flow.parameters(), x).dtype
        if x.dtype != own or not x.is_floating_point():
            raise PosterityError(f"task {index}: the flow computes in {own}, got inputs of {x.dtype}")
        if batch.weights is not None:
            raise PosterityError(f"task {index}: HCL counts every example once, and takes no weights of examples")
        if y.ndim != 1 or y.is_floating_point():
            raise PosterityError(f"task {index}: HCL needs integer classes [N], got {y.dtype} {tuple(y.shape)}")
