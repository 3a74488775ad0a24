"""How to get a posterior: one method, one file. ``METHODS`` is the list that the shell and the contract tests read."""

from posterity.methods.base import Method
from posterity.methods.cyclical import Cyclical, FastGeometric, Snapshot
from posterity.methods.dropout import Dropout
from posterity.methods.map import MAP
from posterity.methods.sgld import PSGLD, SGHMC, SGLD
from posterity.methods.swa import SWA
from posterity.methods.swag import SWAG, SWAGCollector

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
}
"""Every method by its name in the shell."""

__all__ = [
    "MAP",
    "METHODS",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SWA",
    "SWAG",
    "Cyclical",
    "Dropout",
    "FastGeometric",
    "Method",
    "SWAGCollector",
    "Snapshot",
]
