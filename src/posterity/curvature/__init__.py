"""Curvature: squared per-example gradients, Kronecker factors, generalised Gauss-Newton matrices."""

from posterity.curvature.squared import capture, gradient_moments, squared_gradients

__all__ = ["capture", "gradient_moments", "squared_gradients"]
