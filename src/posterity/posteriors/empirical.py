"""A posterior that is a handful of weights: one point (MAP), snapshots, the states of a chain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from torch import nn

from posterity.posteriors.base import WeightPosterior
from posterity.prediction.passes import Weights
from posterity.probability.likelihoods import Likelihood
from posterity.types import Params, PosterityError

__all__ = ["Empirical", "evenly"]


def evenly(count: int, total: int) -> list[int]:
    """``count`` of the numbers below ``total``, evenly from first to last: a chain's first states are all early."""
    if count >= total:
        return list(range(total))
    return [round(i * (total - 1) / max(1, count - 1)) for i in range(count)]


class Empirical(WeightPosterior):
    """Equal weight on each of some sets of weights.

    ``draws(n)`` gives n of them evenly spaced along their order (a chain's states next to each other are alike), and
    all of them once where n is larger.

    Args:
        module: The plain network.
        likelihood: How targets arise from its outputs.
        points: Sets of weights, every parameter by name.
        buffers: The buffers of each point, where the network has any that depend on the weights.
        owned: The points are nobody else's and need not be copied; they may then lie in a file mapped into memory.
    """

    kind = "empirical"
    needs_bank = False

    def __init__(
        self,
        module: nn.Module,
        likelihood: Likelihood,
        points: Sequence[Params],
        buffers: Sequence[Params] | None = None,
        *,
        owned: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(module, likelihood, **options)
        if not points:
            raise PosterityError("an empirical posterior needs at least one set of weights")
        self.points = list(points) if owned else [{n: w.detach().clone() for n, w in p.items()} for p in points]
        self.buffers = [dict(b) for b in buffers] if buffers is not None else [{} for _ in self.points]
        self.module.load_state_dict({**self.points[-1], **self.buffers[-1]}, strict=False)

    @classmethod
    def at(cls, module: nn.Module, likelihood: Likelihood) -> Self:
        """One point: the weights that the network has."""
        return cls(module, likelihood, [dict(module.named_parameters())])

    @property
    def distinct(self) -> int:
        """How many points there are."""
        return len(self.points)

    def sample(self, generator: torch.Generator | None = None) -> Params:
        """One of the points, at random."""
        generator = self._generator(generator)
        chosen = int(torch.randint(len(self.points), (), generator=generator, device=generator.device))
        return self._here(self.points[chosen])

    def samples(self, n: int, generator: torch.Generator | None = None) -> Iterator[Weights]:
        """Points evenly spaced along their order; no randomness in it."""
        chosen = evenly(n, len(self.points))
        return ((self._here(self.points[i]), self._here(self.buffers[i])) for i in chosen)

    def _here(self, tensors: Params) -> Params:
        """The tensors on the network's device; points may be kept elsewhere."""
        return {name: tensor.to(self.device) for name, tensor in tensors.items()}

    def mean(self) -> Params:
        """The average of the points."""
        return {name: torch.stack([p[name] for p in self.points]).mean(0) for name in self.points[0]}

    def variance(self) -> Params:
        """The population variance of the points."""
        return {name: torch.stack([p[name] for p in self.points]).var(0, correction=0) for name in self.points[0]}

    def state(self) -> dict[str, Any]:
        """All points and their buffers."""
        return {"points": self.points, "point_buffers": self.buffers}

    @classmethod
    def rebuild(cls, module: nn.Module, likelihood: Likelihood, state: dict[str, Any]) -> Self:
        """The posterior that ``state`` was taken from."""
        return cls(module, likelihood, state["points"], state["point_buffers"])
