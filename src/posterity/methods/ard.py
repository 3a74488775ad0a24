"""Automatic relevance determination: every weight has a prior scale of its own, learned by empirical Bayes.

Prior w ~ N(0, 1/τ) with the τ of each weight at its optimum, 1/τ = mean² + std². There

    KL(q‖p) = +½ log(1 + mean²/std²) = ½ log(1 + 1/α)

(the lecture prints it with the wrong sign), which is the KL of sparse variational dropout without its second term
(Kharitonov et al. 2018, 1811.00596). Layers, thresholds and phases are those of ``posterity.methods.sparse_vd``.
"""

from __future__ import annotations

from dataclasses import dataclass

from posterity.methods.sparse_vd import SparseVD
from posterity.probability.priors import EmpiricalNormal, Prior

__all__ = ["ARD"]


@dataclass(frozen=True, kw_only=True, repr=False)
class ARD(SparseVD):
    """Pruning by automatic relevance determination."""

    prior: Prior = EmpiricalNormal(per="weight")
