"""Pruning without a posterior: by magnitude or at random, the baselines of every Bayesian sparsification.

A run ends with the fraction ``keep`` of the weights, and with none at or below ``threshold``. A ramp says what share of
that way is gone when a part t ∈ [0, 1] of the run is over, with u from 0 at ``start`` to 1 at ``stop``:

    one-shot    0 before ``start``, then 1: train, prune, and retrain for the rest of the run
    gradual     1 − (1 − u)³ (Zhu & Gupta, https://arxiv.org/abs/1710.01878)
    iterative   k/rounds after the k-th of equally spaced prunings: train, prune, retrain, again and again
                (Han et al., https://arxiv.org/abs/1506.02626)

    keep(t) = 1 − (1 − keep) · share(t)          threshold(t) = threshold · share(t)

Pruned weights are held at zero; with ``regrow`` they go on receiving gradients between two prunings, and those that
have grown stay at the next. L1 regularisation is ``prior=Laplace(scale)``: it pushes weights to where magnitude pruning
finds them. The posterior is the one pruned network, whose zeros ``compress`` takes out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, cast

import torch
from torch import nn

from posterity import masks
from posterity.masks import Masks
from posterity.methods.base import POINT, Method, trainable
from posterity.posteriors import Empirical
from posterity.probability.likelihoods import Likelihood
from posterity.run import Run
from posterity.types import Batch, Params, Plan, PosterityError, check_whole

__all__ = ["Pruning"]

_CRITERIA = ("magnitude", "random")


def one_shot(progress: float, start: float, stop: float, rounds: int) -> float:
    """All at once."""
    return float(progress >= start)


def gradual(progress: float, start: float, stop: float, rounds: int) -> float:
    """Fast at first, when many weights are superfluous, then slower and slower."""
    done = min(1.0, max(0.0, (progress - start) / (stop - start)))
    return 1 - (1 - done) ** 3


def iterative(progress: float, start: float, stop: float, rounds: int) -> float:
    """In ``rounds`` equal parts, the first at ``start`` and the last at ``stop``."""
    if progress < start:
        return 0.0
    if progress >= stop or rounds == 1:
        return 1.0
    pause = (stop - start) / (rounds - 1)
    return (1 + math.floor((progress - start) / pause + 1e-9)) / rounds


_RAMPS: dict[str, Callable[[float, float, float, int], float]] = {
    "one-shot": one_shot,
    "gradual": gradual,
    "iterative": iterative,
}


@dataclass(frozen=True, kw_only=True, repr=False)
class Pruning(Method):
    """Train, and prune on the way.

    Attributes:
        keep: The fraction of weights at the end.
        threshold: Weights of at most this magnitude go, whatever ``keep`` would leave.
        criterion: ``magnitude``, or ``random``, which magnitude has to beat.
        ramp: ``one-shot``, ``gradual`` or ``iterative``.
        start: When pruning begins, as a fraction of the run.
        stop: When it is complete.
        rounds: Prunings of the iterative ramp.
        every: Steps between two looks at the ramp, or ``"epoch"``.
        per_layer: Keep the fraction of each layer, rather than of the network.
        whole_units: Prune neurons and filters by their mean score, so that the network gets smaller, not just sparser;
            the last weight of the network, whose units are its outputs, stays whole. Mean scores differ more between
            layers than within one: without ``per_layer`` a layer may lose all of its units.
        regrow: Let gradients move pruned weights until the next pruning.
        zeros_stay: Weights that are zero at the start stay zero: with ``keep=1`` this retrains a network that something
            else has pruned, a SparseVD posterior's mean for one.
    """

    uncarried: ClassVar[str] = POINT

    keep: float = 0.1
    threshold: float = 0.0
    criterion: str = "magnitude"
    ramp: str = "gradual"
    start: float = 0.2
    stop: float = 0.7
    rounds: int = 4
    every: int | str = "epoch"
    per_layer: bool = False
    whole_units: bool = False
    regrow: bool = False
    zeros_stay: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.keep, Real) or not 0 < self.keep <= 1:
            raise PosterityError(f"keep must lie in (0, 1], got {self.keep!r}")
        if not self.threshold >= 0:
            raise PosterityError(f"threshold must not be negative, got {self.threshold!r}")
        if self.criterion not in _CRITERIA:
            raise PosterityError(f"unknown criterion {self.criterion!r}; there are {', '.join(_CRITERIA)}")
        if self.ramp not in _RAMPS:
            raise PosterityError(f"unknown ramp {self.ramp!r}; there are {', '.join(_RAMPS)}")
        if not 0 <= self.start < self.stop <= 1:
            raise PosterityError(f"expected 0 ≤ start < stop ≤ 1, got start={self.start!r} and stop={self.stop!r}")
        check_whole(rounds=self.rounds)
        if self.rounds < 1:
            raise PosterityError(f"rounds must be at least 1, got {self.rounds!r}")
        if self.regrow and self.zeros_stay:
            raise PosterityError("regrow lets zeros grow and zeros_stay keeps them: choose one")

    def share(self, progress: float) -> float:
        """What part of the pruning is done when this part of the run is over."""
        return _RAMPS[self.ramp](progress, self.start, self.stop, self.rounds)

    def masks(self, scores: Params, progress: float) -> Masks:
        """Which weights stay at this point of the run."""
        share = self.share(progress)
        chosen = masks.top_fraction(scores, 1 - (1 - self.keep) * share, self.per_layer)
        if share and self.threshold:
            large = masks.above(scores, self.threshold * share)
            chosen = {name: value & large[name] for name, value in chosen.items()}
        return chosen

    def collector(self, module: nn.Module, plan: Plan) -> Pruner:
        """What prunes after the optimizer's steps."""
        masks.check_own_weights(module)
        if self.whole_units and len(masks.magnitude(trainable(module))) < 2:
            raise PosterityError("whole_units spares the outputs, and this network has no units before them to prune")
        pruner = Pruner(self, plan.count(self.every))
        if self.zeros_stay:
            pruner.masks = {name: w != 0 for name, w in masks.weights(dict(module.named_parameters())).items()}
        return pruner

    def posterior(self, run: Run, likelihood: Likelihood, batches: Iterable[Batch]) -> Empirical:
        """The pruned network, one point."""
        pruner = cast(Pruner, run.collector)
        pruner.prune(run, progress=1.0)  # early stopping may have gone back to before the last pruning
        return Empirical.at(run.module, likelihood)

    def measures(self, run: Run) -> dict[str, float]:
        """The fraction of weights at zero."""
        weights = masks.weights(dict(run.module.named_parameters())).values()
        return {"sparsity": float(sum((w == 0).sum() for w in weights)) / sum(w.numel() for w in weights)}

    def symptoms(self, run: Run) -> Iterator[str]:
        """Weights that are still to go, and a layer of which nothing is left, unless its zeros were asked for."""
        params, kept = trainable(run.module), cast(Pruner, run.collector).chosen(run, 1.0)
        if any(bool(params[name][~mask].any()) for name, mask in kept.items()):
            yield (
                "early stopping went back to before the last pruning: what was left to prune goes now, and nothing is "
                "trained after it; leave patience out"
            )
        if self.zeros_stay:
            return
        for name, zeros in masks.sparsity(params).items():
            if zeros == 1:
                yield (
                    f"every weight of {name!r} is gone, so that nothing gets through it: keep more, or the same share "
                    "of each layer (per_layer=True)"
                )


class Pruner:
    """Holds the masks of a run, and the weights to them."""

    def __init__(self, method: Pruning, every: int) -> None:
        self.method, self.every = method, every
        self.masks: Masks = {}
        self.chance: Params = {}

    def observe(self, run: Run) -> None:
        """Prune when it is due; otherwise keep what was pruned at zero."""
        if run.step % self.every == 0 or run.step == run.plan.steps:
            self.prune(run, run.step / run.plan.steps)
        elif not self.method.regrow:
            self._hold(run.module)

    def prune(self, run: Run, progress: float) -> None:
        """Choose the masks of this point, and set everything else to zero."""
        if self.method.regrow:
            self.masks = {}
        self._hold(run.module)
        chosen = self.chosen(run, progress)
        self.masks |= {name: mask & self.masks.get(name, mask) for name, mask in chosen.items()}
        self._hold(run.module)

    def chosen(self, run: Run, progress: float) -> Masks:
        """Which weights stay at this point of the run, whole units of them where asked for."""
        chosen = self.method.masks(self._scores(run), progress)
        return masks.whole_units(chosen, masks.unit_axes(run.module)) if self.method.whole_units else chosen

    def _scores(self, run: Run) -> Params:
        """Higher where a weight should stay; what is gone stays gone, below every other."""
        params = trainable(run.module)
        if self.method.criterion == "random":
            # One draw for the whole run: another at every pruning would spare nobody in the end.
            self.chance = self.chance or masks.random(params, run.streams.shared)
            scores = self.chance
        else:
            scores = masks.magnitude(params)
        if self.method.whole_units:
            *hidden, _ = scores
            scores = masks.by_unit({name: scores[name] for name in hidden}, masks.unit_axes(run.module))
        gone = {name: ~mask for name, mask in self.masks.items()}
        return {n: s.masked_fill(gone[n], -torch.inf) if n in gone else s for n, s in scores.items()}

    @torch.no_grad()
    def _hold(self, module: nn.Module) -> None:
        if self.masks:
            params = dict(module.named_parameters())
            torch._foreach_mul_([params[name] for name in self.masks], list(self.masks.values()))

    def state_dict(self) -> dict[str, Any]:
        """The masks, and the random scores where there are any."""
        return {"masks": dict(self.masks), "chance": dict(self.chance)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the masks again."""
        self.masks, self.chance = dict(state["masks"]), dict(state["chance"])
