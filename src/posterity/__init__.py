"""posterity: Bayesian deep learning for PyTorch. Any network, any posterior, one interface.

Names are imported when they are first asked for: ``import posterity`` itself costs milliseconds. Type checkers and
editors read the block under ``TYPE_CHECKING``; a test holds it and ``_HOMES`` equal.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posterity import compression as compression
    from posterity import continual as continual
    from posterity import curvature as curvature
    from posterity import data as data
    from posterity import evaluation as evaluation
    from posterity import layers as layers
    from posterity import methods as methods
    from posterity import models as models
    from posterity import optim as optim
    from posterity import posteriors as posteriors
    from posterity import prediction as prediction
    from posterity import probability as probability
    from posterity import report as report
    from posterity import training as training
    from posterity.compression import compress as compress
    from posterity.compression.graph import export as export
    from posterity.evaluation import Scores as Scores
    from posterity.evaluation import by_class as by_class
    from posterity.evaluation import connect as connect
    from posterity.evaluation import diagnose as diagnose
    from posterity.evaluation import diversity as diversity
    from posterity.evaluation import evaluate as evaluate
    from posterity.evaluation import landscape as landscape
    from posterity.evaluation import to_arviz as to_arviz
    from posterity.layers import Moped as Moped
    from posterity.layers import adapters as adapters
    from posterity.layers import adapters_off as adapters_off
    from posterity.layers import elbo as elbo
    from posterity.layers import kl as kl
    from posterity.layers import plain_moments as plain_moments
    from posterity.layers import variational as variational
    from posterity.methods import ARD as ARD
    from posterity.methods import HWA as HWA
    from posterity.methods import IVON as IVON
    from posterity.methods import KFAC as KFAC
    from posterity.methods import MAP as MAP
    from posterity.methods import METHODS as METHODS
    from posterity.methods import MNF as MNF
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
    from posterity.methods import GroupSparse as GroupSparse
    from posterity.methods import Laplace as Laplace
    from posterity.methods import MeanField as MeanField
    from posterity.methods import Method as Method
    from posterity.methods import NoisyKFAC as NoisyKFAC
    from posterity.methods import Pruning as Pruning
    from posterity.methods import Snapshot as Snapshot
    from posterity.methods import SparseVD as SparseVD
    from posterity.methods import SWAGCollector as SWAGCollector
    from posterity.posteriors import Mixture as Mixture
    from posterity.posteriors import Posterior as Posterior
    from posterity.posteriors import WeightPosterior as WeightPosterior
    from posterity.posteriors import conformal as conformal
    from posterity.posteriors import load as load
    from posterity.posteriors import save as save
    from posterity.posteriors import temper as temper
    from posterity.posteriors import tempered as tempered
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

_FOLDERS = (
    "compression continual curvature data evaluation layers methods models "
    "optim posteriors prediction probability report training"
)
_MODULES = {name: f"posterity.{name}" for name in _FOLDERS.split()} | {
    "likelihoods": "posterity.probability.likelihoods",
    "priors": "posterity.probability.priors",
}
_NAMES = {
    "posterity.compression": "compress",
    "posterity.compression.graph": "export",
    "posterity.evaluation": "Scores by_class connect diagnose diversity evaluate landscape to_arviz",
    "posterity.layers": "Moped adapters adapters_off elbo kl plain_moments variational",
    "posterity.methods": (
        "ARD Cyclical Dropout FastGeometric GroupSparse HWA IVON KFAC Laplace MAP METHODS MNF MeanField "
        "Method NoisyKFAC OGN PSGLD Pruning SGHMC SGLD SWA SWAG SWAGCollector Snapshot SparseVD VOGN"
    ),
    "posterity.posteriors": "Mixture Posterior WeightPosterior conformal load save temper tempered",
    "posterity.prediction": "Compute Prediction predict",
    "posterity.training.config": "Training",
    "posterity.training.fit": "fit",
    "posterity.types": "PosterityError PosterityWarning",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = [*_MODULES, *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'posterity' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # so that the next look-up is an ordinary one
    return value


def __dir__() -> list[str]:
    return sorted(["__version__", *__all__])
