"""Optimizers that end in a posterior, their update rules, and schedules."""

from posterity.optim.ivon import IVON
from posterity.optim.kfac import KFAC, NoisyKFAC
from posterity.optim.vogn import OGN, VOGN

__all__ = ["IVON", "KFAC", "OGN", "VOGN", "NoisyKFAC"]
