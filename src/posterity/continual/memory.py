"""Examples kept of earlier tasks, and how they are chosen: at random, or so that every other example is near one.

Greedy k-centres (Gonzalez 1985, as in variational continual learning, Nguyen et al. 1710.10628): after the first, each
next is the example farthest from all chosen so far, which is at most twice as far as the best choice would leave any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.continual.tasks import Pair
from posterity.random import generator_for
from posterity.types import PosterityError, check_whole

__all__ = ["Memory", "k_centres", "random_rows"]


def random_rows(inputs: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Rows drawn without replacement."""
    return torch.randperm(len(inputs), generator=generator)[:size]


def k_centres(inputs: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Rows chosen greedily, each the farthest from those before; the first at random."""
    points = inputs.flatten(1).to(torch.promote_types(inputs.dtype, torch.float32))  # tokens have no infinity
    lengths = points.square().sum(1)
    chosen = [int(torch.randint(len(points), (), generator=generator))]
    nearest = torch.full((len(points),), torch.inf, dtype=points.dtype, device=points.device)
    while len(chosen) < min(size, len(points)):
        last = chosen[-1]
        nearest = torch.minimum(nearest, lengths - 2 * (points @ points[last]) + lengths[last])  # squared distances
        nearest[last] = -torch.inf  # not again, where others are no farther
        chosen.append(int(nearest.argmax()))
    return torch.tensor(chosen)


CHOICES: dict[str, Callable[[Tensor, int, torch.Generator], Tensor]] = {"random": random_rows, "k-centre": k_centres}


@dataclass(frozen=True)
class Memory:
    """How many examples of each task are kept, and which.

    Attributes:
        size: Examples of each task; None keeps all.
        choose: ``"random"`` or ``"k-centre"``.
    """

    size: int | None = 200
    choose: str = "random"

    def __post_init__(self) -> None:
        if self.choose not in CHOICES:
            raise PosterityError(f"examples are chosen by one of {', '.join(CHOICES)}, got {self.choose!r}")
        check_whole(size=self.size)
        if self.size is not None and self.size < 1:
            raise PosterityError(f"a memory holds at least one example of each task, got {self.size}")

    def cut(self, train: Pair, seed: int) -> tuple[Pair, Pair]:
        """The examples that are kept, and the others."""
        inputs, targets = train
        if self.size is None or self.size >= len(targets):
            return train, (inputs[:0], targets[:0])
        rows = CHOICES[self.choose](inputs, self.size, generator_for(seed)).to(targets.device)
        others = torch.ones(len(targets), dtype=torch.bool, device=targets.device)
        others[rows] = False
        return (inputs[rows], targets[rows]), (inputs[others], targets[others])


def joined(pairs: Sequence[Pair]) -> Pair:
    """All examples together, on the device of the first."""
    device = pairs[0][1].device
    return torch.cat([x.to(device) for x, _ in pairs]), torch.cat([y.to(device) for _, y in pairs])
