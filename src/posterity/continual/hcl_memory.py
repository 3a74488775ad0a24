"""What HCL keeps of its past: the network as it was when the task last changed, to make up examples of others from.

The running mean of the weights is kept beside it. A step of a flow is noisy, and a learning rate that falls to zero,
which would take that noise away, would have to know when a task ends.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from posterity.continual.conditional import ClassConditionalFlow
from posterity.continual.detection import Detector, Typicality
from posterity.run import Run

__all__ = ["Memory"]


class Memory:
    """What a run keeps besides its network.

    Args:
        model: The network at the start.
        detection: What counts as another task.
        decay: A step's, of the running mean of the weights.

    Attributes:
        old: f_old, with the components that it knew.
        others: Its components that are not of the current task.
        average: The running mean of the weights.
        detector: Which task the stream is at.
    """

    old: ClassConditionalFlow
    others: Tensor

    def __init__(self, model: ClassConditionalFlow, detection: Typicality, decay: float) -> None:
        self.detector, self.decay = Detector(detection), decay
        self.average = [p.detach().clone() for p in model.parameters()]
        self.keep(model, -1)

    @torch.no_grad()
    def settle(self, model: ClassConditionalFlow) -> None:
        """Put the mean weights into the network."""
        torch._foreach_copy_(list(model.parameters()), self.average)

    def keep(self, model: ClassConditionalFlow, task: int) -> None:
        """Remember the network as it is: this task begins."""
        self.settle(model)
        self.old = copy.deepcopy(model).requires_grad_(False)
        self._set_aside(task)

    def _set_aside(self, task: int) -> None:
        self.others = (self.old.tasks != task).nonzero()[:, 0]

    @torch.no_grad()
    def replay(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor] | None:
        """Made-up examples of all other tasks: x', z' and components; None while there are no others."""
        if len(self.others) == 0:
            return None
        chosen = torch.randint(len(self.others), (count,), generator=generator, device=self.others.device)
        components = self.others[chosen]
        return *self.old.sample(components, generator), components

    @torch.no_grad()
    def observe(self, run: Run) -> None:
        """The running mean, after a step; batches are judged before it."""
        torch._foreach_lerp_(self.average, list(run.module.parameters()), 1 - self.decay)

    def state_dict(self) -> dict[str, Any]:
        """The old network, the mean weights and the detector."""
        return {"old": self.old.state_dict(), "average": self.average, "detector": self.detector.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take all up again."""
        self.old.load_state_dict(state["old"])
        torch._foreach_copy_(self.average, state["average"])
        self.detector.load_state_dict(state["detector"])
        self._set_aside(self.detector.current)
