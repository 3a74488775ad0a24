"""Placeholder."""
from __future__ import annotations
from torch import Tensor
from posterity.curvature.patches import Windows


def fused_moments(out: Tensor, windows: Windows, d: Tensor, x: Tensor, scale: float) -> Tensor | None:
    return None
