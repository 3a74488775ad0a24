"""posterity: Bayesian deep learning for PyTorch. Any network, any posterior, one interface."""

from posterity import compression, optim
from posterity.compression import compress
from posterity.methods import MAP, METHODS, Dropout, Method, Pruning
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
    "Compute",
    "Dropout",
    "Method",
    "Mixture",
    "Posterior",
    "PosterityError",
    "PosterityWarning",
    "Prediction",
    "Pruning",
    "Training",
    "WeightPosterior",
    "compress",
    "compression",
    "fit",
    "likelihoods",
    "load",
    "optim",
    "predict",
    "priors",
    "save",
]
