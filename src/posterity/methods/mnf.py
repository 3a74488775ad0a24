"""Multiplicative normalizing flows (Louizos & Welling 2017, 1703.01961): weights that move together.

Mean-field weights are independent; here those of a unit share a random scale z whose distribution is learned by a small
normalizing flow (``posterity.layers.flows``), so that q(w) can be correlated, skewed and of several modes:

    z = flow(z₀),  z₀ ~ N(mean_z, std_z²)          w | z ~ N(z ⊙ mean, std²)
    KL(q(w)‖p(w)) ≤ E_{q(z)} [ KL(q(w | z)‖p(w)) + log q(z) − E_{q(w | z)} log r(z | w) ]

Training maximises the ELBO with this bound, where r is a second, auxiliary flow. Linear and convolutional layers have
scales; other weights are mean-field. In training every example of a batch has scales and noise of its own, which makes
gradients quieter; a draw of the posterior is one set of weights for all.

The posterior has draws and moments, but no density.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

from posterity.layers.convert import Scheme
from posterity.layers.start import Moped
from posterity.layers.variational import Variational
from posterity.methods.mean_field import MeanField
from posterity.posteriors.implicit import FAMILIES, Implicit
from posterity.probability.likelihoods import Likelihood
from posterity.run import Run
from posterity.types import Batch, PosterityError, check_positive, check_whole

__all__ = ["MNF"]


@dataclass(frozen=True, kw_only=True, repr=False)
class MNF(MeanField):
    """Mean-field weights under scales that follow a flow.

    Attributes:
        hidden: Hidden units of a coupling step of q(z); r(z | w) has twice as many.
        flow_steps: Coupling steps.
    """

    init_std: float | Moped = 0.011
    hidden: int = 50
    flow_steps: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(hidden=self.hidden, flow_steps=self.flow_steps)
        check_positive(hidden=self.hidden, flow_steps=self.flow_steps)
        if self.estimator != "auto" or self.family != "diagonal" or self.free_bits:
            raise PosterityError("MNF brings its own estimator and family and has no free bits: leave them out")

    def scheme(self) -> Scheme:
        """Scales by flows where a layer can, mean-field weights elsewhere."""
        return FAMILIES["mnf"](**self._options())

    def posterior(self, run: Run, likelihood: Likelihood, batches: Iterable[Batch]) -> Implicit:
        """The trained sampler."""
        module = cast(Variational, run.module)
        return Implicit(module.plain(), likelihood, module, "mnf", self._options())

    def symptoms(self, run: Run) -> Iterator[str]:
        """None of mean-field's: a std says little about a weight whose scale is random."""
        return iter(())

    def _options(self) -> dict[str, int]:
        return {"hidden": self.hidden, "steps": self.flow_steps}
