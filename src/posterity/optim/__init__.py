"""Optimizers, their pure update rules, and schedules."""

from posterity.optim import constant_sgd as constant_sgd
from posterity.optim.ivon import IVON as IVON
from posterity.optim.kfac import KFAC as KFAC
from posterity.optim.kfac import NoisyKFAC as NoisyKFAC
from posterity.optim.sgmcmc import PSGLD as PSGLD
from posterity.optim.sgmcmc import SGHMC as SGHMC
from posterity.optim.sgmcmc import SGLD as SGLD
from posterity.optim.vogn import OGN as OGN
from posterity.optim.vogn import VOGN as VOGN
