"""A param group in the units of a mean loss: the size of its noise, and what its prior N(μ₀, 1/δ) adds to a step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from posterity.optim.flat_group import FlatGroup

Group = dict[str, Any]


def noise_scale(group: Group) -> float:
    """√(τ / N): the std of q where the precision is 1 in the units of a mean loss."""
    return math.sqrt(group["temperature"] / group["num_data"])


def scaled_precision(group: Group, flat: FlatGroup) -> float | Tensor:
    """δ̃ = τ δ / N of a group: a number, or a vector where it differs by weight."""
    scale = float(group["temperature"] / group["num_data"])  # numpy's float32 is no float
    if group["prior_precision"] is not None:
        return group["prior_precision"] * scale
    if flat.prior_scale != scale:
        torch.mul(flat["prior_precision"], scale, out=flat["scaled_precision"])
        flat.prior_scale = scale
    return flat["scaled_precision"]


def with_prior_gradient(
    group: Group, flat: FlatGroup, gradient: Tensor, delta: float | Tensor, out: Tensor, share: float = 1.0
) -> Tensor:
    """g + share·δ̃ (m - μ₀), written to ``out``."""
    if group["prior_mean"] == 0 and isinstance(delta, float):
        return torch.add(gradient, flat["mean"], alpha=share * delta, out=out)
    prior_mean = flat["prior_mean"] if group["prior_mean"] is None else group["prior_mean"]
    offset = torch.sub(flat["mean"], prior_mean, out=flat["offset"])
    if isinstance(delta, float):
        return torch.add(gradient, offset, alpha=share * delta, out=out)
    return torch.addcmul(gradient, offset, delta, value=share, out=out)
