"""Torch optimizers that end in a posterior."""

from posterity.optim.ivon import IVON as IVON
from posterity.optim.vogn import OGN as OGN
from posterity.optim.vogn import VOGN as VOGN
