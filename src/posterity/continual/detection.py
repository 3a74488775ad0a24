"""Seeing when a stream of batches turns to another task, by how typical a density model finds each batch.

Every batch has, under every task t that is known, the statistics (means over the batch)

    S_t = ( log p(x | t),  log p_Z(f(x) | t),  log |det ∂f/∂x| ).

The latest values of a task give what to expect next, m_t, and a standard deviation s_t: a line is laid through them,
since a model that is being trained gets better. A batch is typical of t if |S_t − m_t| ≤ ``threshold``·s_t for all
three. Both sides count: data can also be too likely, as the flat pictures of one set are under a model of another
(Nalisnick et al. 2019, 1906.02994). A stream is taken to stay with its task while batches are typical of it. When they
are not, it has turned to the closest known task, if they are typical of that, and otherwise to a new one (Kirichenko et
al. 2021, 2106.12772). Labels are not looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.types import PosterityError, check_positive

__all__ = ["Detector", "Typicality"]


@dataclass(frozen=True, kw_only=True)
class Typicality:
    """What counts as another task.

    Attributes:
        threshold: Standard deviations that a typical batch stays within.
        window: How many batches of a task are remembered.
        warm_up: Batches of a task that are taken as given before any is judged by them.
        confirm: Atypical batches in a row that make another task; those before the last are set aside, not learned.
    """

    threshold: float = 5.0
    window: int = 30
    warm_up: int = 20
    confirm: int = 2

    def __post_init__(self) -> None:
        check_positive(threshold=self.threshold, confirm=self.confirm)
        if not 3 <= self.warm_up <= self.window:
            raise PosterityError(f"3 ≤ warm_up ≤ window must hold, got {self.warm_up} and {self.window}")


class Detector:
    """Follows a stream: which task is it at?

    Attributes:
        current: The task that the stream is at; there is none before the first batch.
        windows: The latest statistics of each task, [batches, 3].
    """

    def __init__(self, config: Typicality) -> None:
        self.config = config
        self.current = -1
        self.windows: list[Tensor] = []
        self.atypical, self.batch_size = 0, 0

    def judge(self, statistics: Tensor, size: int) -> int | None:
        """The task of a batch: a known one, the number after the last for a new one, or None for now.

        Args:
            statistics: S_t of this batch under every known task, [tasks, 3].
            size: Examples in the batch; the mean of a smaller one spreads more.
        """
        if self.current < 0:
            return 0
        if len(self.windows[self.current]) < self.config.warm_up:
            return self.current
        distances = self.distances(statistics, size)
        if distances[self.current] <= self.config.threshold:
            self.atypical = 0
            return self.current
        self.atypical += 1
        if self.atypical < self.config.confirm:
            return None
        self.atypical = 0
        closest = min(range(len(distances)), key=distances.__getitem__)
        return closest if distances[closest] <= self.config.threshold else len(self.windows)

    def distances(self, statistics: Tensor, size: int) -> list[float]:
        """For each known task, the largest of |S_t − m_t|/s_t."""
        wider = math.sqrt(max(1.0, self.batch_size / size))
        expected, std = zip(*(_next(window) for window in self.windows), strict=True)
        deviations = (statistics.cpu().double() - torch.stack(expected)).abs() / (wider * torch.stack(std))
        return deviations.amax(1).tolist()

    def observe(self, task: int, statistics: Tensor, size: int) -> None:
        """Remember a batch of this task, S_t [3]; the stream is at this task now."""
        if task == len(self.windows):
            self.windows.append(torch.empty(0, 3, dtype=torch.float64))
        self.current, self.batch_size = task, max(self.batch_size, size)
        if size == self.batch_size:
            row = statistics.detach().cpu().double()[None]
            self.windows[task] = torch.cat([self.windows[task], row])[-self.config.window :]

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next verdict depends on."""
        own = ("current", "windows", "atypical", "batch_size")
        return {name: getattr(self, name) for name in own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Follow the stream from where ``state`` was taken."""
        for name, value in state.items():
            setattr(self, name, value)


def _next(window: Tensor) -> tuple[Tensor, Tensor]:
    """Where the line through the rows of a window points next, and the standard deviation around it."""
    count = len(window)
    times = (torch.arange(count, dtype=window.dtype) - (count - 1) / 2).unsqueeze(1)
    mean, slope = window.mean(0), (times * window).sum(0) / times.square().sum()
    rest = window - mean - slope * times
    return mean + slope * (count + 1) / 2, (rest.square().sum(0) / (count - 2)).sqrt().clamp_min(1e-12)
