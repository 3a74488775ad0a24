"""IVON, the improved variational online Newton method (Shen et al. 2402.17641): Gaussian weights at the cost of Adam.

    σ² = τ/(N (h + δ̃)),     w = m + σ ε
    ĥ = mean(ĝ ε)/σ         g ← β₁ g + (1 − β₁) ĝ
    h ← h + (1 − β₂)(ĥ − h) + ½ (1 − β₂)² (ĥ − h)²/(h + δ̃)
    m ← m − lr (h₀ + δ̃) (g/(1 − β₁ᵗ) + δ̃ (m − μ₀))/(h + δ̃)

with ĝ the minibatch gradient at the draw w, and δ̃ = τδ/N for a prior of precision δ. No per-example gradients are
needed. ``posterity.optim.IVON`` has the whole account and works in one's own training loop.

On many ranks each has its own noise; ĝ and ĝ ε are averaged together, so that K ranks are one process with K draws.
(Averaging ĝ first and multiplying by the rank's own noise, as plain data parallelism would, leaves 1/K of the Hessian.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

from torch import nn

from posterity import optim
from posterity.methods.natural import NaturalGradient
from posterity.random import RandomStreams
from posterity.run import Run
from posterity.types import Plan

__all__ = ["IVON"]

MANY = 0.1  # of the weights


@dataclass(frozen=True, kw_only=True, repr=False)
class IVON(NaturalGradient):
    """Gaussian weights by the improved variational online Newton method.

    Attributes:
        hess_init: h₀, the Hessian at the start: smaller samples more widely.
        beta1: Decay of the gradient.
        beta2: Decay of the Hessian.
        clip_radius: Largest step of a weight, before lr.
        rescale_lr: Multiply lr by h₀ + δ̃.
        hessian: ``"reparameterised"``, or ``"squared"`` gradients.
    """

    default_lr: ClassVar[float] = 0.2

    hess_init: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.99999
    clip_radius: float = math.inf
    rescale_lr: bool = True
    hessian: Literal["reparameterised", "squared"] = "reparameterised"

    def optimizer(self, module: nn.Module, plan: Plan, streams: RandomStreams) -> optim.IVON:
        """``posterity.optim.IVON``."""
        precision, mean = self.prior_terms(module)
        return optim.IVON(
            module.named_parameters(),
            self.base_lr(plan),
            plan.num_data,
            prior_precision=precision,
            prior_mean=mean,
            hess_init=self.hess_init,
            beta1=self.beta1,
            beta2=self.beta2,
            clip_radius=self.clip_radius,
            rescale_lr=self.rescale_lr,
            hessian=self.hessian,
            generator=streams.local,
        )

    def symptoms(self, run: Run) -> Iterator[str]:
        """Weights without curvature, which a Hessian that follows too fast ends in."""
        lost = cast(optim.IVON, run.optimizer).curvature_lost()
        if lost > MANY:
            yield (
                f"the Hessian of {lost:.0%} of the weights has fallen to nothing, and they are drawn from the prior: "
                "raise beta2 or hess_init"
            )
