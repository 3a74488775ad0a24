"""K-FAC (Martens & Grosse 1503.05671) and Noisy K-FAC (Zhang et al. 1712.02390).

K-FAC preconditions the gradient of a layer's weight matrix W [O, I] by the Kronecker factors of the Fisher matrix,
W ← W − lr G_d⁻¹ M A_d⁻¹, with A the second moment of the layer's inputs and G that of its output gradients, both
damped. Noisy K-FAC takes the same step at draws from

    q(W) = MN(mean, τ/N, G_d⁻¹, A_d⁻¹):     rows correlated by G_d⁻¹, columns by A_d⁻¹,

and ends in a ``KroneckerGaussian``. In the loop both use the empirical Fisher matrix. ``posterity.optim.KFAC`` has the
whole account.

What differs from the reference code (torchsso): the noise is R_G E R_Aᵀ with R Rᵀ the inverse factor on both sides.
The reference multiplies by upper Cholesky factors on the left, too, whose covariance is not G_d⁻¹.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from posterity import optim
from posterity.curvature.kfac import KroneckerCapture, Sharing
from posterity.methods.natural import NaturalGradient, watch_two
from posterity.probability.likelihoods import Likelihood
from posterity.random import RandomStreams
from posterity.types import Batch, Plan

__all__ = ["KFAC", "NoisyKFAC"]


@dataclass(frozen=True, kw_only=True, repr=False)
class KFAC(NaturalGradient):
    """Natural gradients by Kronecker factors; a point at the end.

    Attributes:
        damping: γ, added to the factors.
        beta1: Decay of the momentum.
        beta2: Decay of the factors.
        refresh: Steps between inversions of the factors; q is that of the latest.
        sharing: Positions that share a weight count as examples (``"expand"``) or are summed first (``"reduce"``).
    """

    algorithm: ClassVar[type[optim.KFAC]] = optim.KFAC
    default_lr: ClassVar[float] = 3e-3
    squares: ClassVar[bool] = True
    uncarried: ClassVar[str] = "it needs a prior of one precision for all weights"

    damping: float = 1e-2
    beta1: float = 0.9
    beta2: float = 0.99
    refresh: int = 10
    sharing: Sharing = "expand"

    def check(self, module: nn.Module, likelihood: Likelihood, batch: Batch) -> None:
        """The factors of two examples."""
        watch_two(KroneckerCapture, module, likelihood, batch)

    def optimizer(self, module: nn.Module, plan: Plan, streams: RandomStreams) -> optim.KFAC:
        """``posterity.optim.KFAC``, or ``NoisyKFAC``."""
        precision, mean = self.prior_terms(module)
        return self.algorithm(
            module,
            self.base_lr(plan),
            plan.num_data,
            prior_precision=precision,
            prior_mean=mean,
            damping=self.damping,
            beta1=self.beta1,
            beta2=self.beta2,
            refresh=self.refresh,
            sharing=self.sharing,
            generator=streams.local,
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class NoisyKFAC(KFAC):
    """Matrix-normal weights by natural-gradient variational inference."""

    algorithm: ClassVar[type[optim.KFAC]] = optim.NoisyKFAC
