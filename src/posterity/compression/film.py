"""What happens to the weights while a network gets sparse, kept epoch by epoch for the pictures of ``report``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from posterity import masks
from posterity.run import Run
from posterity.types import PosterityError

__all__ = ["WeightFilm"]


def _parameters(run: Run) -> Mapping[str, Tensor]:
    return dict(run.module.named_parameters())


class WeightFilm:
    """A callback for ``Training(callbacks=(film,))``.

    Args:
        name: The weight whose frames are kept.
        every: Epochs between two frames; the sparsity is kept at every epoch.
        weights: How the plain weights are read off a run; methods that train other parameters bring their own.

    Attributes:
        frames: A copy of the weight by epoch.
        epochs: When the sparsity was taken.
        sparsity: The fraction of zeros of every weight, epoch by epoch.
    """

    def __init__(self, name: str, every: int = 1, weights: Callable[[Run], Mapping[str, Tensor]] = _parameters) -> None:
        if every < 1:
            raise PosterityError(f"every must be at least one epoch, got {every!r}")
        self.name, self.every, self.weights = name, every, weights
        self.frames: dict[int, Tensor] = {}
        self.epochs: list[int] = []
        self.sparsity: dict[str, list[float]] = {}

    @torch.no_grad()
    def on_epoch(self, run: Run, figures: dict[str, float]) -> None:
        """Take the sparsity of all weights, and a frame when it is time."""
        now = self.weights(run)
        if self.name not in now:
            raise PosterityError(f"there is no weight {self.name!r} to film; there are {', '.join(now)}")
        epoch = len(self.epochs) + 1
        self.epochs.append(epoch)
        for name, value in masks.sparsity(now).items():
            self.sparsity.setdefault(name, []).append(value)
        last = run.step == run.plan.steps
        if epoch % self.every == 0 or epoch == 1 or last:
            self.frames[epoch] = now[self.name].detach().cpu().clone()
