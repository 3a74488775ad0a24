"""What HCL keeps of its past: the network as the task last changed, which makes up examples of the other tasks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posterity.continual.conditional import ClassConditionalFlow
from posterity.continual.detection import Detector, Typicality
from posterity.networks import duplicate
from posterity.run import Run

__all__ = ["Memory"]


class Memory:
    """What a run keeps besides its network.

    Args:
        model: The network at the start.
        detection: What counts as another task.

    Attributes:
        old: f_old, with the components that it knew.
        others: Its components that are not of the current task.
        detector: Which task the stream is at.
    """

    old: ClassConditionalFlow
    others: Tensor

    def __init__(self, model: ClassConditionalFlow, detection: Typicality) -> None:
        self.detector = Detector(detection)
        self.keep(model, -1)

    def keep(self, model: ClassConditionalFlow, task: int) -> None:
        """Remember the network as it is: this task begins."""
        self.old = duplicate(model).requires_grad_(False)
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

    def observe(self, run: Run) -> None:
        """Nothing after a step: batches are judged before it."""

    def state_dict(self) -> dict[str, Any]:
        """The old network and the detector."""
        return {"old": self.old.state_dict(), "detector": self.detector.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take both up again."""
        self.old.load_state_dict(state["old"])
        self.detector.load_state_dict(state["detector"])
        self._set_aside(self.detector.current)
