"""A flow with one Gaussian for each task and class: a density of inputs that is also a classifier.

    z = f(x),   p(z | t, y) = N(μ_{t,y}, I),   p(x | t, y) = N(f(x); μ_{t,y}, I) |det ∂f/∂x|

with means μ_{t,y} ~ N(0, std² I) that are drawn when task and class first appear and stay fixed. Tasks are equally
probable, and so are the classes within a task: p(t, y) = p(t) p(y | t).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from posterity.continual.flows import Flow
from posterity.types import PosterityError

__all__ = ["ClassConditionalFlow"]

_BUFFERS = ("means", "tasks", "labels", "log_classes", "log_within")


class ClassConditionalFlow(nn.Module):
    """p(x | t, y) for every task and class met so far; called as a network it gives the logits log p(x, y).

    Attributes:
        flow: f.
        means: μ_{t,y} of each component (a task with a class), [components, size].
        tasks: t of each component.
        labels: y of each component.
        log_classes: log p(t, y) where the component is of the class, else −∞, [components, classes].
        log_within: log p(y | t) where the component is of the task, else −∞, [components, tasks].
    """

    means: Tensor
    tasks: Tensor
    labels: Tensor
    log_classes: Tensor
    log_within: Tensor

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self.flow = flow
        own = next((p.dtype for p in flow.parameters()), torch.get_default_dtype())
        self.register_buffer("means", torch.empty(0, flow.size, dtype=own))
        self.register_buffer("tasks", torch.empty(0, dtype=torch.int64))
        self.register_buffer("labels", torch.empty(0, dtype=torch.int64))
        self.register_buffer("log_classes", torch.empty(0, 0, dtype=own))
        self.register_buffer("log_within", torch.empty(0, 0, dtype=own))

    @property
    def num_tasks(self) -> int:
        """Tasks met so far."""
        return self.log_within.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """log p(x, y) = log Σ_t p(x | t, y) p(t, y), [batch, classes]; −∞ for a class that was never met."""
        z, log_det = self.flow(x)
        return self._joined(z, self.log_classes) + log_det.unsqueeze(1)

    def log_prob(self, z: Tensor, log_det: Tensor, components: Tensor) -> Tensor:
        """log p(x | t, y) of each example, [batch], with the component that it belongs to."""
        squares = (z - self.means[components]).square().sum(1)
        return log_det - 0.5 * (squares + self.flow.size * math.log(2 * math.pi))

    def statistics(self, z: Tensor, log_det: Tensor) -> Tensor:
        """Batch means of log p(x | t), log p_Z(f(x) | t) and log |det| under every task, [tasks, 3]."""
        latent = self._joined(z, self.log_within).mean(0)
        change = log_det.mean().expand_as(latent)
        return torch.stack([latent + change, latent, change], 1)

    def _joined(self, z: Tensor, log_weights: Tensor) -> Tensor:
        """log Σ_k weight_kj N(z; μ_k, I), [batch, j]."""
        squares = z.square().sum(1, keepdim=True) - 2 * z @ self.means.T + self.means.square().sum(1)
        log_normal = -0.5 * (squares + self.flow.size * math.log(2 * math.pi))
        return (log_normal.unsqueeze(-1) + log_weights).logsumexp(1)

    def components(self, task: int, labels: Tensor) -> Tensor:
        """Which component each example of this task belongs to, [batch]; −1 where there is none yet."""
        same = (self.tasks == task) & (self.labels == labels.unsqueeze(1))
        numbers = torch.arange(1, len(self.tasks) + 1, device=labels.device)
        return (same * numbers).sum(1) - 1

    def met(self, labels: Tensor) -> Tensor:
        """Whether each task has a component for all of these labels, [tasks]."""
        own = self.log_within.isfinite()  # [components, tasks]
        same = self.labels == labels.unsqueeze(1)  # [batch, components]
        return (same.to(self.means) @ own.to(self.means) > 0).all(0)

    def sample(self, components: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """An input drawn from each of these components, and its z."""
        means = self.means[components]
        z = means + torch.randn(means.shape, generator=generator, dtype=means.dtype, device=means.device)
        return self.flow.inverse(z), z

    def meet(self, task: int, labels: Tensor, std: float, generator: torch.Generator) -> None:
        """Draw a mean for each of these classes of a task."""
        for label in labels.unique().tolist():
            if label < 0:
                raise PosterityError(f"classes are numbers from 0, got {label}")
            mean = std * torch.randn(1, self.flow.size, generator=generator, device=generator.device)
            self.means = torch.cat([self.means, mean.to(self.means)])
            self.tasks = torch.cat([self.tasks, self.tasks.new_tensor([task])])
            self.labels = torch.cat([self.labels, self.labels.new_tensor([label])])
        num_tasks, num_classes = int(self.tasks.max()) + 1, int(self.labels.max()) + 1
        log_share = -self.tasks.bincount()[self.tasks].to(self.means).log().unsqueeze(1)
        self.log_within = _where_equal(self.tasks, num_tasks, log_share)
        self.log_classes = _where_equal(self.labels, num_classes, log_share - math.log(num_tasks))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """A network that has met nothing yet can take up the state of one that has."""
        for name in _BUFFERS:
            if prefix + name in state:
                setattr(self, name, torch.empty_like(state[prefix + name], device=self.means.device))
        super()._load_from_state_dict(state, prefix, *rest)


def _where_equal(values: Tensor, count: int, log_weights: Tensor) -> Tensor:
    """Weights [n, 1] in the column that ``values`` [n] name, −∞ elsewhere, [n, count]."""
    own = values.unsqueeze(1) == torch.arange(count, device=values.device)
    return torch.where(own, log_weights, -torch.inf)
