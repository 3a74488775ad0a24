"""What a posterior is: twenty methods end in these few distributions."""

from posterity.posteriors.base import Posterior, WeightPosterior
from posterity.posteriors.batchnorm import with_bank
from posterity.posteriors.conformal import Conformal, conformal
from posterity.posteriors.empirical import Empirical
from posterity.posteriors.files import load, save
from posterity.posteriors.gaussian import DiagonalGaussian, FullGaussian, LowRankGaussian
from posterity.posteriors.implicit import Implicit
from posterity.posteriors.kronecker import KroneckerGaussian
from posterity.posteriors.linearised import Linearised
from posterity.posteriors.mixture import Mixture
from posterity.posteriors.stochastic import Stochastic
from posterity.posteriors.tempered import temper, tempered

__all__ = [
    "Conformal",
    "DiagonalGaussian",
    "Empirical",
    "FullGaussian",
    "Implicit",
    "KroneckerGaussian",
    "Linearised",
    "LowRankGaussian",
    "Mixture",
    "Posterior",
    "Stochastic",
    "WeightPosterior",
    "conformal",
    "load",
    "save",
    "temper",
    "tempered",
    "with_bank",
]
