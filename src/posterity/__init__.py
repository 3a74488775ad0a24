"""posterity: Bayesian deep learning for PyTorch. Any network, any posterior, one interface."""

from posterity import compression as compression
from posterity import optim as optim
from posterity.compression import compress as compress
from posterity.evaluation import Scores as Scores
from posterity.evaluation import evaluate as evaluate
from posterity.methods import MAP as MAP
from posterity.methods import METHODS as METHODS
from posterity.methods import PSGLD as PSGLD
from posterity.methods import SGHMC as SGHMC
from posterity.methods import SGLD as SGLD
from posterity.methods import SWA as SWA
from posterity.methods import SWAG as SWAG
from posterity.methods import Cyclical as Cyclical
from posterity.methods import Dropout as Dropout
from posterity.methods import FastGeometric as FastGeometric
from posterity.methods import Method as Method
from posterity.methods import Pruning as Pruning
from posterity.methods import Snapshot as Snapshot
from posterity.methods import SWAGCollector as SWAGCollector
from posterity.posteriors import Mixture as Mixture
from posterity.posteriors import Posterior as Posterior
from posterity.posteriors import WeightPosterior as WeightPosterior
from posterity.posteriors import load as load
from posterity.posteriors import save as save
from posterity.prediction import Compute as Compute
from posterity.prediction import Prediction as Prediction
from posterity.prediction import predict as predict
from posterity.probability import likelihoods as likelihoods
from posterity.probability import priors as priors
from posterity.training.config import Training as Training
from posterity.training.fit import fit as fit
from posterity.types import PosterityError as PosterityError
from posterity.types import PosterityWarning as PosterityWarning

__version__ = "0.1.0"
from posterity import optim
from posterity.layers import Moped, elbo, kl, plain_moments, variational
from posterity.methods import MAP, METHODS, Dropout, MeanField, Method
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
    "MeanField",
    "Method",
    "Mixture",
    "Moped",
    "Posterior",
    "PosterityError",
    "PosterityWarning",
    "Prediction",
    "Training",
    "WeightPosterior",
    "elbo",
    "fit",
    "kl",
    "likelihoods",
    "load",
    "optim",
    "plain_moments",
    "predict",
    "priors",
    "save",
    "variational",
]
