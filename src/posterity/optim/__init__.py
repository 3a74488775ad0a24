"""Optimizers that end in a posterior, their update rules, and schedules."""

from posterity.optim.ivon import IVON
from posterity.optim.vogn import OGN, VOGN

__all__ = ["IVON", "OGN", "VOGN"]
