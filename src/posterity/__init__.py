"""posterity: Bayesian deep learning for PyTorch. Any network, any posterior, one interface."""

from posterity import optim
from posterity.methods import MAP, METHODS, Dropout, Method
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
