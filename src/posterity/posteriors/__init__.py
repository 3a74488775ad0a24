"""What a posterior is: twenty methods end in these few distributions."""

from posterity.posteriors.base import Posterior, WeightPosterior
from posterity.posteriors.batchnorm import with_bank
from posterity.posteriors.empirical import Empirical
from posterity.posteriors.files import load, save
from posterity.posteriors.gaussian import DiagonalGaussian, FullGaussian, LowRankGaussian
from posterity.posteriors.mixture import Mixture
from posterity.posteriors.stochastic import Stochastic

__all__ = [
    "DiagonalGaussian",
    "Empirical",
    "FullGaussian",
    "LowRankGaussian",
    "Mixture",
    "Posterior",
    "Stochastic",
    "WeightPosterior",
    "load",
    "save",
    "with_bank",
]
