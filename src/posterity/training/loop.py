"""The one loop: every method is trained by these lines.

For each draw and micro-batch

    loss = −mean log p(y | f(x)) + penalty/num_data,

backward, dividing nothing; then one average of the method's statistics over ranks; step; observe. A penalty is a sum
over weights, and this is the one place where a fit divides it by ``num_data``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path

import torch
from torch import Tensor, nn

from posterity.calling import call, check_finite, map_batch, map_inputs, num_examples
from posterity.devices import number
from posterity.methods.base import Method
from posterity.networks import train_mode
from posterity.optim.schedules import ByStep, schedule
from posterity.probability.likelihoods import Likelihood
from posterity.run import Run
from posterity.training.checkpoint import Checkpoint, set_global_generators
from posterity.training.config import Callback, Training
from posterity.training.distributed import Ranks
from posterity.training.doctor import check_loss, check_method, check_weights
from posterity.training.recording import Found, RecordedGradients
from posterity.training.stream import Stream
from posterity.training.watch import Watch, settled
from posterity.types import Batch, Plan, PosterityError

__all__ = ["Job", "train"]

_LOOK_EVERY = 50  # steps between looks at the loss on a GPU, where each look waits for the device


@dataclass(frozen=True)
class Job:
    """All that one fit is given."""

    method: Method
    likelihood: Likelihood
    stream: Stream
    training: Training
    plan: Plan
    ranks: Ranks
    device: torch.device
    seed: int
    order: Callable[[Tensor], Tensor]
    held: Stream | None = None


def train(run: Run, job: Job, callbacks: tuple[Callback, ...] = ()) -> None:
    """Bring a run to its last step, from its beginning or from its checkpoint."""
    checkpoint = _checkpoint(job)
    rates = [group["lr"] for group in run.optimizer.param_groups]  # as asked for now, whatever a checkpoint has
    resumed = checkpoint.restore(run, job.device) if job.training.resume else None
    pace, patience = _pace(job), job.training.patience
    judged_from = 0 if patience is None else settled(pace[1], job.plan)  # which looks at every epoch
    watch = Watch(job.likelihood, job.held, patience, judged_from)
    # Resident data have few sizes of batch; a graph for any size would be slower, and would serve the whole ones too.
    fixed = False if job.stream.checked else None
    forward = torch.compile(run.module, dynamic=fixed) if job.training.compile else run.module
    launched: Callable[[Batch, float], Found] = partial(_gradients, run, job, forward)
    recorded = RecordedGradients(run, launched) if job.training.record and job.device.type == "cuda" else launched
    train_mode(run.module)
    while run.step < job.plan.steps and not watch.stopped(run):
        batches, position = job.stream.epoch(run.epoch), run.step % job.plan.steps_per_epoch
        gradients = recorded if run.epoch > 0 or job.stream.checked else launched  # checking waits for the device
        checkpoint.begin_epoch(job.device)
        _skip(batches, position)
        if resumed is not None:
            set_global_generators(resumed, job.device)
            resumed = None
        for batch, size in batches:
            _set_pace(run, pace, rates)
            watch.add(run, gradients(batch, size), size)
            del batch  # so that the next one can take its memory
            _update(run, job)
            if run.step % (1 if job.device.type == "cpu" else _LOOK_EVERY) == 0 or run.step == job.plan.steps:
                check_loss(watch.last, run, checkpoint.path)
            if run.step % job.plan.steps_per_epoch == 0 or run.step == job.plan.steps:
                _end_epoch(run, job, watch, callbacks)
            if checkpoint.due(run.step):
                check_loss(watch.last, run, checkpoint.path)
                check_weights(run, checkpoint.path)
                checkpoint.save(run, job.device)
            if run.step == job.plan.steps or watch.stopped(run):
                break
    watch.restore_best(run)
    check_weights(run, checkpoint.path)
    check_method(job.method, run)


def _gradients(run: Run, job: Job, forward: Callable[..., Tensor], batch: Batch, size: float) -> Found:
    """Sum the gradients of all draws and micro-batches."""
    method, training = job.method, job.training
    likelihood: Likelihood = run.noise or job.likelihood  # type: ignore[assignment]
    if training.augment is not None:
        batch = batch._replace(inputs=training.augment(batch.inputs, run.streams.local))
    batch = batch._replace(inputs=map_inputs(batch.inputs, job.order))
    micros = _split(batch, int(training.accumulate))
    run.entries = method.mc_samples * len(micros)
    losses: list[Tensor] = []
    right: Tensor | int = 0
    judged = 0
    for _ in range(method.mc_samples):
        for micro in micros:
            # The weight, 1 except for ragged pieces, makes the mean over entries and ranks the mean over the batch.
            weight = len(micro.targets) * len(micros) * job.ranks.world / size
            with method.perturb(run.optimizer, weight):
                for row in run.padding:
                    row.put_back()
                with _autocast(training, job.device):
                    outputs = call(forward, micro.inputs)
                if run.epoch == 0 and not job.stream.checked:
                    check_finite(micro.inputs)
                    job.likelihood.check(outputs, micro.targets)
                nll = _mean_loss(likelihood, outputs.float() if training.autocast else outputs, micro)
                penalty = method.penalty(run.module, run.temperature) / job.plan.num_data
                loss = nll + penalty if isinstance(penalty, Tensor) else nll  # a number has no gradient
                (loss if weight == 1 else loss * weight).backward()
            losses.append(nll.detach() if weight == 1 else nll.detach() * weight)
            if job.likelihood.classifies:
                labels = job.likelihood.label(outputs.detach())
                right += number((labels == micro.targets.view_as(labels)).sum())
                judged += labels.numel()
    return losses[0] if len(losses) == 1 else torch.stack(losses).mean(), right, judged


def _mean_loss(likelihood: Likelihood, outputs: Tensor, batch: Batch) -> Tensor:
    """−mean log p(y | f(x)), each example with its weight where it has one."""
    if batch.weights is None:
        return likelihood.loss(outputs, batch.targets)
    return -batch.weighted(likelihood.log_prob(outputs, batch.targets)).mean()


def _update(run: Run, job: Job) -> None:
    """Average over ranks, clip, step, observe."""
    with _of_the_same_weights(run, job.ranks) as shares:
        statistics = job.method.statistics(run)
        if run.noise is not None:
            noise = [p.grad for p in run.noise.parameters() if p.grad is not None]
            torch._foreach_div_(noise, run.entries)
            statistics = [*statistics, *noise]
        job.ranks.average_([*statistics, *shares])
    if job.training.clip is not None:
        _clip(run, job.training.clip)
    run.optimizer.step()
    run.optimizer.zero_grad()
    if run.noise_optimizer is not None:
        run.noise_optimizer.step()
        run.noise_optimizer.zero_grad()
    run.step += 1
    run.collector.observe(run)


@contextmanager
def _of_the_same_weights(run: Run, ranks: Ranks) -> Iterator[list[Tensor]]:
    """Let all ranks average the gradients of the same weights, though a batch may reach a weight on some of them only.

    Inside, a weight without a gradient on this rank has one of zeros. Gives what is to be averaged beside gradients:
    for each weight the share of ranks that had one. Where that is 0, the weight has none again afterwards.
    """
    weights = [p for p in run.trained if p.requires_grad] if ranks.world > 1 else []
    idle = [i for i, p in enumerate(weights) if p.grad is None]
    if len(idle) == len(weights):  # one process; or all, where the optimizer gathers gradients itself
        yield []
        return
    shares = torch.ones(len(weights), device=weights[0].device)
    for i in idle:
        shares[i], weights[i].grad = 0, torch.zeros_like(weights[i])
    yield [shares]
    for i in idle:
        if not shares[i]:
            weights[i].grad = None


def _end_epoch(run: Run, job: Job, watch: Watch, callbacks: tuple[Callback, ...]) -> None:
    """Figures of the epoch, for the history, the callbacks and early stopping."""
    job.ranks.average_([b for b in run.module.buffers() if b.is_floating_point()])
    figures = watch.figures(run, job.ranks) | job.method.measures(run)
    run.history.append({"epoch": run.step / run.plan.steps_per_epoch, **figures})
    for callback in callbacks if job.ranks.writes else ():
        callback.on_epoch(run, figures)


def _pace(job: Job) -> ByStep:
    """Learning-rate factor and temperature by step: the method's own, or what was asked for; both is an error."""
    own, asked = job.method.schedule(job.plan), job.training.schedule
    if own.lr is not None and asked is not None:
        raise PosterityError(f"{type(job.method).__name__} has a schedule of its own: leave Training(schedule=...) out")
    return own.by_step(schedule(asked or "cosine"), job.plan)


def _set_pace(run: Run, pace: ByStep, rates: list[float]) -> None:
    factor, run.temperature = pace[0](run.step), pace[1](run.step)
    for group, rate in zip(run.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor
        group["temperature"] = run.temperature


def _clip(run: Run, norm: float) -> None:
    """Scale the gradient to at most this norm, for each of the members that are trained together."""
    gradients = [p.grad for p in run.module.parameters() if p.grad is not None]
    if not gradients:
        raise PosterityError("this method keeps its own statistics, so clip does not apply: leave it out")
    if run.members == 1:
        nn.utils.clip_grad_norm_(run.module.parameters(), norm)
        return
    squares = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in gradients]).sum(0)
    factors = (norm / (squares.sqrt() + 1e-6)).clamp_max(1.0)
    for g in gradients:
        g.mul_(factors.view(-1, *[1] * (g.ndim - 1)))


def _split(batch: Batch, pieces: int) -> list[Batch]:
    """The batch in consecutive micro-batches."""
    if pieces == 1:
        return [batch]
    size = -(-num_examples(batch.inputs) // pieces)
    starts = range(0, len(batch.targets), size)
    return [map_batch(batch, itemgetter(slice(start, start + size))) for start in starts]


def _skip(batches: Iterator[tuple[Batch, float]], count: int) -> None:
    for _ in range(count):
        next(batches)


def _autocast(training: Training, device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, torch.bfloat16) if training.autocast else nullcontext()


def _checkpoint(job: Job) -> Checkpoint:
    path = Path(job.training.checkpoint) if job.training.checkpoint else None
    every = job.plan.count(job.training.checkpoint_every, "checkpoint_every")
    identity = {
        "method": repr(job.method),
        "likelihood": repr(job.likelihood),
        "num_data": job.plan.num_data,
        "steps": job.plan.steps,
        "batch size": job.plan.batch_size,
        "seed": job.seed,
        "optimizer": repr(job.training.algorithm),
    }
    return Checkpoint(path, every, identity, job.ranks)
