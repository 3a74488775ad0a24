"""How to get a posterior: one method, one file. ``METHODS`` is the list that the shell and the contract tests read."""

from posterity.methods.base import Method
from posterity.methods.dropout import Dropout
from posterity.methods.map import MAP

METHODS: dict[str, type[Method]] = {
    "map": MAP,
    "dropout": Dropout,
}
"""Every method by its name in the shell."""

__all__ = ["MAP", "METHODS", "Dropout", "Method"]
