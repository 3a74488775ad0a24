"""Everything about the loop that is not the method: one frozen config that can be written to TOML and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from posterity.devices import find_device
from posterity.optim.config import OptimizerConfig
from posterity.optim.schedules import Schedule, schedule
from posterity.run import Run
from posterity.types import PosterityError, check_positive, check_positive_if_given, check_whole

__all__ = ["Callback", "Training"]


@runtime_checkable
class Callback(Protocol):
    """Something to do after each epoch."""

    def on_epoch(self, run: Run, figures: dict[str, float]) -> None:
        """Called with the epoch's figures: loss, accuracy, lr, and what the method measures."""
        ...


@dataclass(frozen=True, kw_only=True)
class Training:
    """How to train.

    Attributes:
        batch_size: Examples a step, over all ranks; a DataLoader brings its own.
        lr: Learning rate; None takes the method's own good default.
        schedule: ``constant``, ``linear``, ``cosine``, ``one-cycle``, ``multi-step``, ``cyclical``, or a ``Schedule``;
            None is a cosine, or the method's own where it has one.
        optimizer: ``adam``, ``sgd``, or an ``OptimizerConfig``, for methods that do not bring their own.
        steps: Optimizer steps, instead of ``epochs``.
        clip: Largest norm of the gradient; refused by methods that gather it themselves (IVON, VOGN, OGN, K-FAC).
        accumulate: Micro-batches that a batch is cut into.
        ranks_per_draw: How many ranks share one draw of the weights (VOGN, IVON, Noisy K-FAC) and divide its examples.
        autocast: Forward passes in bfloat16.
        compile: Compile the network.
        record: On a GPU, replay the work of a step instead of launching it piece by piece: several times faster for
            small networks. The network and the augmentation must do the same at every step.
        device: Where to train; None takes a GPU if there is one.
        validation: A fraction to hold out, of tensors or a Dataset; or a pair of tensors or a loader of its own.
        patience: Stop after this many epochs without a better validation loss, and keep the best. Epochs count once the
            temperature is what it stays to the end: after the KL's warm-up, in the last cycle, in fine-tuning.
        checkpoint: A file to save the whole run in.
        checkpoint_every: Steps between saves, or ``"epoch"``.
        resume: Continue from ``checkpoint`` if it is there.
        progress: A bar on a terminal, plain lines elsewhere (True); nothing (False); a bar on a terminal only (None).
        tensorboard: A folder for TensorBoard scalars, if it is installed.
        balance: Show every class equally often, drawing examples of rare classes again and again; N stays what it is.
        augment: ``(inputs, generator) -> inputs``, applied to each batch on its device.
        num_data: N, where it cannot be read off the data; checked against it where it can.
        callbacks: What to do after each epoch.
    """

    batch_size: int = 128
    lr: float | None = None
    schedule: str | Schedule | None = None
    optimizer: str | OptimizerConfig = "adam"
    steps: int | None = None
    clip: float | None = None
    accumulate: int = 1
    ranks_per_draw: int = 1
    autocast: bool = False
    compile: bool = False
    record: bool = False
    device: str | None = None
    validation: Any = None
    patience: int | None = None
    checkpoint: str | Path | None = None
    checkpoint_every: int | str = "epoch"
    resume: bool = False
    progress: bool | None = None
    tensorboard: str | Path | None = None
    balance: bool = False
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    num_data: int | None = None
    callbacks: tuple[Callback, ...] = ()

    def __post_init__(self) -> None:
        check_positive(batch_size=self.batch_size, accumulate=self.accumulate, ranks_per_draw=self.ranks_per_draw)
        check_whole(batch_size=self.batch_size, accumulate=self.accumulate, ranks_per_draw=self.ranks_per_draw)
        check_whole(steps=self.steps, patience=self.patience)
        check_positive_if_given(lr=self.lr, clip=self.clip, steps=self.steps)
        check_positive_if_given(patience=self.patience, num_data=self.num_data)
        if self.schedule is not None:
            schedule(self.schedule)
        self.algorithm  # noqa: B018 (refuses an unknown name)
        if not all(isinstance(callback, Callback) for callback in self.callbacks):
            raise PosterityError(f"callbacks must be objects with on_epoch(run, figures), got {self.callbacks!r}")
        if self.patience is not None and self.validation is None:
            raise PosterityError("patience needs validation data: give validation=0.1 or a pair of tensors")
        if self.resume and self.checkpoint is None:
            raise PosterityError("resume needs the checkpoint's file name")
        if isinstance(self.validation, Real) and not 0 < float(self.validation) < 1:
            raise PosterityError(f"the validation fraction must lie in (0, 1), got {self.validation}")

    @property
    def algorithm(self) -> OptimizerConfig:
        """The plain optimizer."""
        return self.optimizer if isinstance(self.optimizer, OptimizerConfig) else OptimizerConfig(self.optimizer)

    def pick_device(self) -> torch.device:
        """The device asked for, or a GPU if there is one."""
        return find_device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
