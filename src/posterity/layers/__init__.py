"""Networks whose weights are random while they are trained: estimators, distributions over weights, conversion."""

from posterity.layers.adapters import Adapted, adapters, adapters_off
from posterity.layers.convert import variational
from posterity.layers.start import Moped
from posterity.layers.variational import Variational, elbo, kl, plain_moments

__all__ = ["Adapted", "Moped", "Variational", "adapters", "adapters_off", "elbo", "kl", "plain_moments", "variational"]
