"""The one mutable thing: a fit in progress, and the whole of its state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from posterity.networks import load_buffers
from posterity.padding import PaddingRow
from posterity.random import RandomStreams
from posterity.types import Plan

__all__ = ["Collector", "NoCollector", "Run", "Sums"]


class Collector(Protocol):
    """Watches the path of the optimizer: snapshots, moments, chains."""

    def observe(self, run: Run) -> None:
        """Called after every optimizer step, when ``run.step`` has been counted up."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that ``observe`` has gathered."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up again what was gathered."""
        ...


class NoCollector:
    """For methods that only need where the run ends."""

    def observe(self, run: Run) -> None:
        """Nothing to gather."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing gathered."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to take up."""


@dataclass
class Sums:
    """Sums over the current epoch, on this rank.

    Attributes:
        loss: The loss of every example.
        examples: How many examples there were.
        right: Labels that were predicted correctly.
        judged: Labels that were predicted: one for each example, position, draw and member.
    """

    loss: Tensor | float = 0.0
    examples: float = 0
    right: Tensor | int = 0
    judged: int = 0


@dataclass
class Run:
    """A fit in progress.

    Attributes:
        module: The network being trained: the method's prepared copy, never the user's own.
        optimizer: Updates ``module``.
        collector: Watches it.
        plan: What was known before the start.
        streams: The run's randomness.
        noise: The likelihood's own parameters, where it learns any.
        noise_optimizer: Updates ``noise``.
        step: Optimizer steps done.
        entries: Backward passes (draws × micro-batches) whose gradients are summed in the current step.
        temperature: The temperature of the current step, 1 for the Bayes posterior.
        phase: Raised by whoever changes what a step computes (clipping begins, say), so that it is recorded anew.
        sums: The sums from which the current epoch's figures are worked out.
        padding: Rows of embeddings that are not trained, and are put back before every pass.
        members: Networks trained together as one stacked module, each parameter with a member dimension in front.
        history: Figures by epoch: what training curves are drawn from.
        best: For early stopping: the lowest validation loss, the epochs waited since, and the state then.
    """

    module: nn.Module
    optimizer: Optimizer
    collector: Collector
    plan: Plan
    streams: RandomStreams
    noise: nn.Module | None = None
    noise_optimizer: Optimizer | None = None
    step: int = 0
    entries: int = 1
    temperature: float = 1.0
    phase: int = 0
    sums: Sums = field(default_factory=Sums)
    padding: list[PaddingRow] = field(default_factory=list)
    members: int = 1
    history: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """Epochs begun."""
        return self.step // self.plan.steps_per_epoch

    @property
    def trained(self) -> list[Tensor]:
        """The parameters that the optimizer updates."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on."""
        state: dict[str, Any] = {
            "module": self.module.state_dict(),
            "buffers": dict(self.module.named_buffers()),
            "optimizer": self.optimizer.state_dict(),
            "collector": self.collector.state_dict(),
            "streams": self.streams.state_dict(),
            "step": self.step,
            "history": self.history,
            "best": self.best,
        }
        if self.noise is not None and self.noise_optimizer is not None:
            state["noise"] = self.noise.state_dict()
            state["noise_optimizer"] = self.noise_optimizer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` was taken, to the same bits."""
        self.module.load_state_dict(state["module"])
        load_buffers(self.module, state.get("buffers", {}))  # files of before they were kept have none
        self.optimizer.load_state_dict(state["optimizer"])
        self.collector.load_state_dict(state["collector"])
        self.streams.load_state_dict(state["streams"])
        self.step, self.history, self.best = state["step"], state["history"], state.get("best", {})
        if self.noise is not None and self.noise_optimizer is not None:
            self.noise.load_state_dict(state["noise"])
            self.noise_optimizer.load_state_dict(state["noise_optimizer"])
