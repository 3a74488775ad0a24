"""Optimizers, their pure update rules, and schedules."""

from posterity.optim import constant_sgd as constant_sgd
from posterity.optim.sgmcmc import PSGLD as PSGLD
from posterity.optim.sgmcmc import SGHMC as SGHMC
from posterity.optim.sgmcmc import SGLD as SGLD

"""Optimizers that end in a posterior, their update rules, and schedules."""

from posterity.optim.ivon import IVON
from posterity.optim.kfac import KFAC, NoisyKFAC
from posterity.optim.vogn import OGN, VOGN

__all__ = ["IVON", "KFAC", "OGN", "VOGN", "NoisyKFAC"]
