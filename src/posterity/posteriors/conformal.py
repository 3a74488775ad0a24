"""Split conformal prediction: sets and intervals that hold the truth with a guaranteed probability.

On n calibration examples that the posterior was not fitted on, take a score of strangeness

    classes   s = 1 − p_y                          (Sadinle et al. 2019)
    numbers   s = |y − E[y]| / std[y]

(the largest over an example's words, pixels or columns, so that all are held together), and let q be its
⌈(n + 1)·level⌉-th smallest value. For a new example drawn like them,

    P(s_new ≤ q) ≥ level        and, without ties, ≤ level + 1/(n + 1),

whatever the network, the posterior or the data (Vovk et al. 2005): {k : 1 − p_k ≤ q}, or E[y] ± q·std[y], holds y. The
probability is over calibration and new examples together; it says nothing about one given class or region.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from posterity.calling import map_inputs
from posterity.data.pieces import counted_once, to_choose_by
from posterity.posteriors.base import Posterior
from posterity.prediction import Classification, Prediction, Regression
from posterity.prediction.passes import Weights
from posterity.prediction.targets import labelled, real_targets
from posterity.probability.likelihoods import Likelihood
from posterity.types import Inputs, PosterityError, Predictor, check_level

__all__ = ["Conformal", "conformal"]


def conformal(posterior: Posterior, calibration: Any, level: float = 0.9, draws: int = 32) -> Conformal:
    """A posterior with prediction sets or intervals that hold the truth with probability ``level``.

    Args:
        posterior: A classifier or a regression of any kind.
        calibration: Data that it was not fitted on: a pair of tensors, a Dataset, a loader, or a DataSet (its
            validation part).
        level: The probability guaranteed.
        draws: Networks averaged, here and in every set or interval.
    """
    check_level(level, "a level of coverage")
    scores = []
    for batch in counted_once(to_choose_by(calibration)):
        inputs = map_inputs(batch.inputs, lambda t: t.to(posterior.device))
        scores.append(strangeness(posterior.predict(inputs, draws), batch.targets))
    n = sum(len(part) for part in scores)
    rank = math.ceil((n + 1) * level - 1e-9)  # 0.9 · 10 is 9, whatever rounding says
    if rank > n:
        needed = math.ceil(level / (1 - level) - 1e-9)
        raise PosterityError(f"a level of {level} needs at least {needed} calibration examples, got {n}")
    return Conformal(posterior, level, float(torch.cat(scores).sort().values[rank - 1]), draws)


def strangeness(prediction: Prediction, targets: Tensor) -> Tensor:
    """How badly each target fits its prediction."""
    if isinstance(prediction, Regression):
        known = real_targets(targets, prediction.mean).to(prediction.mean.device)
        distance = (known - prediction.mean).abs() / prediction.std
    else:
        assert isinstance(prediction, Classification)
        distance = 1 - _at(prediction.probs, targets)
    return distance.flatten(1).amax(1) if distance.ndim > 1 else distance


def _at(values: Tensor, targets: Tensor) -> Tensor:
    """What stands at the target's class, of [..., classes]."""
    return values.gather(-1, labelled(targets, values).to(values.device).unsqueeze(-1))[..., 0]


class Conformal(Posterior):
    """A posterior that also gives sets (``sets``) or intervals (``intervals``) with guaranteed coverage.

    Attributes:
        level: The probability guaranteed.
        threshold: The largest strangeness that is still let in.
        count: Networks averaged.
    """

    kind = "conformal"

    def __init__(self, posterior: Posterior, level: float, threshold: float, draws: int) -> None:
        super().__init__(posterior.module, posterior.likelihood, inputs=posterior.inputs, seed=posterior.seed)
        self.parts = [posterior]
        self.level, self.threshold, self.count = level, threshold, draws

    def sets(self, inputs: Inputs) -> Tensor:
        """Which classes are in the set of each input, [batch, ..., classes]; the most probable one always is."""
        if not self.likelihood.classifies:
            raise PosterityError("only classes have sets: use intervals")
        prediction: Any = self.parts[0].predict(inputs, self.count)
        probs = prediction.probs
        return (1 - probs <= self.threshold) | (probs == probs.amax(-1, keepdim=True))

    def intervals(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The ends of each input's interval."""
        if self.likelihood.classifies:
            raise PosterityError("only numbers have intervals: use sets")
        prediction: Any = self.parts[0].predict(inputs, self.count)
        reach = self.threshold * prediction.std
        return prediction.mean - reach, prediction.mean + reach

    def covered(self, data: Any) -> Tensor:
        """For each example whether its set or interval holds the truth: the mean shows the guarantee at work."""
        hits = []
        for batch in counted_once(data):
            inputs = map_inputs(batch.inputs, lambda t: t.to(self.device))
            if self.likelihood.classifies:
                inside = _at(self.sets(inputs), batch.targets)
            else:
                low, high = self.intervals(inputs)
                targets = real_targets(batch.targets, low).to(low.device)
                inside = (low <= targets) & (targets <= high)
            hits.append(inside.flatten(1).all(1) if inside.ndim > 1 else inside)
        if not hits:
            raise PosterityError("there are no examples to measure coverage on")
        return torch.cat(hits)

    @property
    def distinct(self) -> int | None:
        """As many as the posterior inside has."""
        return self.parts[0].distinct

    @property
    def most_draws(self) -> int | None:
        """As many as the posterior inside."""
        return self.parts[0].most_draws

    def draws(self, n: int, generator: torch.Generator | None = None) -> Iterator[Predictor]:
        """The draws of the posterior inside."""
        return self.parts[0].draws(n, generator)

    def drawn_outputs(
        self, inputs: Inputs, n: int, generator: torch.Generator | None = None, block: int | None = None
    ) -> Iterator[Tensor]:
        """The outputs of those draws."""
        return self.parts[0].drawn_outputs(inputs, n, generator, block)

    def samples(self, n: int, generator: torch.Generator | None = None) -> Iterator[Weights] | None:
        """The weights of those draws."""
        return self.parts[0].samples(n, generator)

    def state(self) -> dict[str, Any]:
        """Level, threshold and number of draws; the posterior inside is stored as a part."""
        return {"level": self.level, "threshold": self.threshold, "draws": self.count}

    @classmethod
    def rebuild(cls, module: nn.Module, likelihood: Likelihood, state: dict[str, Any]) -> Conformal:
        """The posterior that ``state`` was taken from."""
        return cls(state["parts"][0], state["level"], state["threshold"], state["draws"])

    def __repr__(self) -> str:
        return f"Conformal({self.parts[0]!r}, level={self.level}, threshold={self.threshold:.4g})"
