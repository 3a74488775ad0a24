"""posterity: Bayesian deep learning for PyTorch. Any network, any posterior, one interface."""

from posterity import compression as compression
from posterity import curvature as curvature
from posterity import optim as optim
from posterity.compression import compress as compress
from posterity.evaluation import Scores as Scores
from posterity.evaluation import connect as connect
from posterity.evaluation import diagnose as diagnose
from posterity.evaluation import diversity as diversity
from posterity.evaluation import evaluate as evaluate
from posterity.evaluation import landscape as landscape
from posterity.layers import Moped as Moped
from posterity.layers import elbo as elbo
from posterity.layers import kl as kl
from posterity.layers import plain_moments as plain_moments
from posterity.layers import variational as variational
from posterity.methods import HWA as HWA
from posterity.methods import IVON as IVON
from posterity.methods import KFAC as KFAC
from posterity.methods import MAP as MAP
from posterity.methods import METHODS as METHODS
from posterity.methods import OGN as OGN
from posterity.methods import PSGLD as PSGLD
from posterity.methods import SGHMC as SGHMC
from posterity.methods import SGLD as SGLD
from posterity.methods import SWA as SWA
from posterity.methods import SWAG as SWAG
from posterity.methods import VOGN as VOGN
from posterity.methods import Cyclical as Cyclical
from posterity.methods import Dropout as Dropout
from posterity.methods import FastGeometric as FastGeometric
from posterity.methods import Laplace as Laplace
from posterity.methods import MeanField as MeanField
from posterity.methods import Method as Method
from posterity.methods import NoisyKFAC as NoisyKFAC
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

__version__ = "0.1.0"
