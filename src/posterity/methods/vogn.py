"""VOGN, variational online Gauss-Newton, and OGN, the same at the mean weights (Osawa et al. 1906.02506).

VOGN learns q(w) = N(μ, σ²), elementwise, by natural-gradient variational inference with the mean square of per-example
gradients as curvature:

    m ← β₁ m + ĝ + δ̃ (μ − μ₀)       s ← β₂ s + (1 − β₂) ĥ       μ ← μ − lr m/(s + δ̃ + γ)       σ² = τ/(Nρ (s + δ̃ + γ))

with ĝ and ĥ the mean gradient and mean squared gradient of an example at draws from q, δ the prior's precision and
δ̃ = τδ/(Nρ). ``posterity.optim.VOGN`` has the whole account and works in one's own training loop. OGN leaves out the
noise; its posterior is a point.

What differs from the reference code (torchsso):

- The curvature of convolution biases and of BatchNorm is the mean of squared per-example gradients, as for all other
  parameters. The reference takes sums of squares over positions (up to 49% off for biases) and, for BatchNorm's scale,
  a product of two sums, an upper bound that can be ten times too large.
- Tempering has the fixed point N h/τ + δ for the precision, as the reference has it; the paper's pseudo-code does not.
- β₂ is the share of the old curvature that is kept. The paper's β₂ and the reference's ``ema_decay`` are 1 − β₂.
- Noise comes from a generator of the optimizer's own; the reference reseeds torch's global one at every step.
- ρ is only used if it is given. Two of the published configs have ρ = 10 or 5 with augmentation switched off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from posterity import optim
from posterity.curvature.squared import SquareCapture
from posterity.methods.base import POINT
from posterity.methods.natural import NaturalGradient, watch_two
from posterity.probability.likelihoods import Likelihood
from posterity.random import RandomStreams
from posterity.types import Batch, Plan

__all__ = ["OGN", "VOGN"]


@dataclass(frozen=True, kw_only=True, repr=False)
class VOGN(NaturalGradient):
    """Natural-gradient variational inference with squared per-example gradients.

    Attributes:
        damping: γ, added to the curvature in the step and in the variance.
        augmentation_factor: ρ: how many examples each one counts for under data augmentation.
        init_precision: The curvature at the start: larger begins with less noise and smaller steps. None takes that of
            the first minibatch.
        beta1: Decay of the momentum.
        beta2: Decay of the curvature.
        momentum_correction: Scale the momentum with the learning rate.
        stochastic_batchnorm: Give BatchNorm's scale and shift noise and prior, too.
    """

    algorithm: ClassVar[type[optim.VOGN]] = optim.VOGN
    default_lr: ClassVar[float] = 0.03
    squares: ClassVar[bool] = True

    damping: float = 1e-3
    augmentation_factor: float = 1.0
    init_precision: float | None = 1.0
    beta1: float = 0.9
    beta2: float = 0.999
    momentum_correction: bool = False
    stochastic_batchnorm: bool = False

    def check(self, module: nn.Module, likelihood: Likelihood, batch: Batch) -> None:
        """The squared gradients of two examples."""
        watch_two(SquareCapture, module, likelihood, batch)

    def optimizer(self, module: nn.Module, plan: Plan, streams: RandomStreams) -> optim.VOGN:
        """``posterity.optim.VOGN``, or ``OGN``."""
        precision, mean = self.prior_terms(module)
        return self.algorithm(
            module,
            self.base_lr(plan),
            plan.num_data,
            prior_precision=precision,
            prior_mean=mean,
            damping=self.damping,
            augmentation_factor=self.augmentation_factor,
            init_precision=self.init_precision,
            beta1=self.beta1,
            beta2=self.beta2,
            momentum_correction=self.momentum_correction,
            stochastic_batchnorm=self.stochastic_batchnorm,
            generator=streams.local,
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class OGN(VOGN):
    """VOGN without the noise: online Gauss-Newton, a point at the end."""

    algorithm: ClassVar[type[optim.VOGN]] = optim.OGN
    uncarried: ClassVar[str] = POINT
