"""MAP: the most probable weights, one point. The base of deep ensembles (``members=5``) and the yardstick of the rest.

    w* = argmin_w  −mean_i log p(y_i | f_w(x_i)) − log p(w)/N

A zero-mean Normal prior with one std is held by the optimizer as coupled weight decay 1/(N std²), which is exactly the
gradient of −log p(w)/N and costs nothing; any other prior enters the loss.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from posterity.methods.base import POINT, Method, ridge_precision
from posterity.posteriors import Empirical
from posterity.probability.likelihoods import Likelihood
from posterity.run import Run
from posterity.types import Batch

__all__ = ["MAP"]


@dataclass(frozen=True, kw_only=True, repr=False)
class MAP(Method):
    """The most probable weights."""

    uncarried: ClassVar[str] = POINT

    @property
    def vectorises(self) -> bool:
        """Members train as one stacked network when the prior is the optimizer's."""
        return ridge_precision(self.prior) > 0

    def posterior(self, run: Run, likelihood: Likelihood, batches: Iterable[Batch]) -> Empirical:
        """A posterior of one point."""
        return Empirical.at(run.module, likelihood)
