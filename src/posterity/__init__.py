"""posterity: Bayesian deep learning for PyTorch. Any network, any posterior, one interface."""

from posterity import optim
from posterity.methods import (
    MAP,
    METHODS,
    PSGLD,
    SGHMC,
    SGLD,
    SWA,
    SWAG,
    Cyclical,
    Dropout,
    FastGeometric,
    Method,
    Snapshot,
    SWAGCollector,
)
from posterity.posteriors import Mixture, Posterior, WeightPosterior, load, save
from posterity.prediction import Compute, Prediction, predict
from posterity.probability import likelihoods, priors
from posterity.training.config import Training
from posterity.training.fit import fit
from posterity.types import PosterityError, PosterityWarning

__version__ = "0.1.0"

__all__ = [
    "MAP",
    "METHODS",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SWA",
    "SWAG",
    "Compute",
    "Cyclical",
    "Dropout",
    "FastGeometric",
    "Method",
    "Mixture",
    "Posterior",
    "PosterityError",
    "PosterityWarning",
    "Prediction",
    "SWAGCollector",
    "Snapshot",
    "Training",
    "WeightPosterior",
    "fit",
    "likelihoods",
    "load",
    "optim",
    "predict",
    "priors",
    "save",
]
