"""How to get a posterior: one method, one file. ``METHODS`` is the list that the shell and the contract tests read."""

from posterity.methods.ard import ARD as ARD
from posterity.methods.base import Method as Method
from posterity.methods.cyclical import Cyclical as Cyclical
from posterity.methods.cyclical import FastGeometric as FastGeometric
from posterity.methods.cyclical import Snapshot as Snapshot
from posterity.methods.dropout import Dropout as Dropout
from posterity.methods.group_sparse import GroupSparse as GroupSparse
from posterity.methods.hwa import HWA as HWA
from posterity.methods.ivon import IVON as IVON
from posterity.methods.kfac import KFAC as KFAC
from posterity.methods.kfac import NoisyKFAC as NoisyKFAC
from posterity.methods.laplace import Laplace as Laplace
from posterity.methods.map import MAP as MAP
from posterity.methods.mean_field import MeanField as MeanField
from posterity.methods.mnf import MNF as MNF
from posterity.methods.pruning import Pruning as Pruning
from posterity.methods.sgld import PSGLD as PSGLD
from posterity.methods.sgld import SGHMC as SGHMC
from posterity.methods.sgld import SGLD as SGLD
from posterity.methods.sparse_vd import SparseVD as SparseVD
from posterity.methods.swa import SWA as SWA
from posterity.methods.swag import SWAG as SWAG
from posterity.methods.swag import SWAGCollector as SWAGCollector
from posterity.methods.vogn import OGN as OGN
from posterity.methods.vogn import VOGN as VOGN

METHODS: dict[str, type[Method]] = {
    "map": MAP,
    "dropout": Dropout,
    "swa": SWA,
    "swag": SWAG,
    "sgld": SGLD,
    "psgld": PSGLD,
    "sghmc": SGHMC,
    "cyclical": Cyclical,
    "snapshot": Snapshot,
    "fast-geometric": FastGeometric,
    "pruning": Pruning,
    "mean-field": MeanField,
    "hwa": HWA,
    "mnf": MNF,
    "sparse-vd": SparseVD,
    "ard": ARD,
    "group-sparse": GroupSparse,
    "vogn": VOGN,
    "ogn": OGN,
    "ivon": IVON,
    "kfac": KFAC,
    "noisy-kfac": NoisyKFAC,
    "laplace": Laplace,
}
"""Every method by its name in the shell."""
