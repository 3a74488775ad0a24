"""Pruning without a posterior: what every Bayesian sparsification has to be compared with.

A run ends with a fraction ``keep`` of the weights, or with all those above a ``threshold``; a schedule says how much of
that way has been gone at each point t ∈ [0, 1] of training, as a share from 0 (dense) to 1 (final):

    OneShot     0 before ``at``, then 1: train, prune, and retrain for what is left of the run
    Gradual     1 − (1 − u)³ with u from 0 at ``start`` to 1 at ``stop`` (Zhu & Gupta, https://arxiv.org/abs/1710.01878)
    Iterative   k/rounds after the k-th of equally spaced prunings: train–prune–retrain again and again
                (Han et al., https://arxiv.org/abs/1506.02626)

    sparsity(t) = (1 − keep) · share(t)      or      threshold(t) = threshold · share(t)

Criteria are those of ``score.py``: magnitude, random, or their mean over whole units. L1 regularisation is a Laplace
prior on the weights, which pushes many of them to where magnitude pruning finds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.compression import mask, score
from posterity.compression.mask import Masks
from posterity.types import Params, PosterityError

__all__ = ["Gradual", "Iterative", "OneShot", "Pruning", "Schedule"]


@dataclass(frozen=True)
class Schedule:
    """How much of the final sparsity is reached at each point of a run."""

    def share(self, progress: float) -> float:
        """From 0 (dense) to 1 (final), for a progress in [0, 1]."""
        raise NotImplementedError


@dataclass(frozen=True)
class OneShot(Schedule):
    """All at once; training after it is the retraining of the survivors."""

    at: float = 0.5

    def share(self, progress: float) -> float:
        """0, then 1."""
        return float(progress >= self.at)


@dataclass(frozen=True)
class Gradual(Schedule):
    """Fast at first, when many weights are superfluous, then slower and slower."""

    start: float = 0.1
    stop: float = 0.75

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop <= 1:
            raise PosterityError(f"start and stop must satisfy 0 ≤ start < stop ≤ 1, got {self.start!r}, {self.stop!r}")

    def share(self, progress: float) -> float:
        """1 − (1 − u)³."""
        done = min(1.0, max(0.0, (progress - self.start) / (self.stop - self.start)))
        return 1 - (1 - done) ** 3


@dataclass(frozen=True)
class Iterative(Schedule):
    """Train, prune a part, retrain, prune the next."""

    rounds: int = 4
    start: float = 0.3
    stop: float = 0.8

    def __post_init__(self) -> None:
        if self.rounds < 1 or not 0 <= self.start <= self.stop <= 1:
            raise PosterityError(f"expected at least one round and 0 ≤ start ≤ stop ≤ 1, got {self!r}")

    def share(self, progress: float) -> float:
        """k / rounds after k prunings, the first at ``start`` and the last at ``stop``."""
        if progress < self.start:
            return 0.0
        if progress >= self.stop or self.rounds == 1:
            return 1.0
        pause = (self.stop - self.start) / (self.rounds - 1)
        return (1 + math.floor((progress - self.start) / pause + 1e-9)) / self.rounds


Criterion = Callable[[Mapping[str, Tensor]], Params]
"""Scores by parameter name, higher kept."""


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """What to prune, and when.

    Attributes:
        keep: The fraction of weights at the end; or
        threshold: the score above which a weight stays.
        schedule: How the run gets there.
        per_layer: Take ``keep`` of each layer rather than of all weights together.
        regrow: Let gradients move zeroed weights, which may then come back at the next pruning.
    """

    keep: float | None = None
    threshold: float | None = None
    schedule: Schedule = Gradual()
    per_layer: bool = False
    regrow: bool = False

    def __post_init__(self) -> None:
        if (self.keep is None) == (self.threshold is None):
            raise PosterityError(f"give one of keep and threshold, got {self.keep!r} and {self.threshold!r}")
        if self.keep is not None and not 0 < self.keep <= 1:
            raise PosterityError(f"keep must lie in (0, 1], got {self.keep!r}")
        if self.threshold is not None and not self.threshold > 0:
            raise PosterityError(f"threshold must be positive, got {self.threshold!r}")

    def masks(
        self,
        params: Mapping[str, Tensor],
        progress: float,
        before: Masks | None = None,
        criterion: Criterion = score.magnitude,
    ) -> Masks:
        """Which weights stay at this point of the run; without ``regrow`` only some of those that stayed before."""
        share = self.schedule.share(progress)
        scores = criterion(params)
        if before is not None and not self.regrow:
            # Gone is gone: below every score there is, so that ``keep`` counts the survivors.
            scores = {name: value.masked_fill(~before[name], -torch.inf) for name, value in scores.items()}
        if self.threshold is not None:
            chosen = mask.above(scores, self.threshold * share if share else -math.inf)
        else:
            chosen = mask.top_fraction(scores, 1 - (1 - self.keep) * share, self.per_layer)  # type: ignore[operator]
        if before is not None and not self.regrow:
            chosen = {name: value & before[name] for name, value in chosen.items()}
        return chosen
