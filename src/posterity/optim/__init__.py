"""Optimizers that end in a posterior, their update rules, and schedules."""

from posterity.optim import constant_sgd
from posterity.optim.ivon import IVON
from posterity.optim.sgmcmc import PSGLD, SGHMC, SGLD
from posterity.optim.vogn import OGN, VOGN

__all__ = ["IVON", "OGN", "PSGLD", "SGHMC", "SGLD", "VOGN", "constant_sgd"]
