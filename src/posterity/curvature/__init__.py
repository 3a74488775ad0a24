"""Curvature: squared per-example gradients, Kronecker factors, generalised Gauss-Newton matrices."""

from posterity.curvature import ggn as ggn
from posterity.curvature.squared import capture as capture
from posterity.curvature.squared import gradient_moments as gradient_moments
from posterity.curvature.squared import squared_gradients as squared_gradients
