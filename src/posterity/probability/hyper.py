"""Hyper-parameters of priors: a number or tensor for all weights, or one for each parameter by name or pattern.

Here is how one is looked up for a parameter, laid out for a flat vector of weights, brought beside them, and shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from posterity.flat import Layout
from posterity.types import PosterityError

__all__ = ["Hyper", "beside", "described", "fitting", "hyper_at", "hyper_flat", "like", "log"]

Hyper = Any
"""A hyper-parameter: a number or tensor for all weights, or a mapping from parameter names to those."""


def hyper_at(value: Hyper, name: str) -> float | Tensor:
    """The hyper-parameter of one parameter: by its exact name, else by the first pattern that fits."""
    if not isinstance(value, Mapping):
        return value
    if name in value:
        return value[name]
    for pattern, number in value.items():
        if fnmatchcase(name, pattern):
            return number
    known = ", ".join(map(repr, [*value][:3])) + (", …" if len(value) > 3 else "")
    raise PosterityError(f"what is given for {known} says nothing about parameter {name!r}")


def hyper_flat(value: Hyper, layout: Layout) -> float | Tensor:
    """The hyper-parameter of every weight of a flat vector; a number stays a number.

    A tensor of several numbers is broadcast against every parameter in turn, so its shape must fit all of them.
    """
    if not isinstance(value, Mapping) and not (isinstance(value, Tensor) and value.ndim):
        return value
    parts = [
        fitting(hyper_at(value, name), name, shape).reshape(-1)
        for name, shape in zip(layout.names, layout.shapes, strict=True)
    ]
    return torch.cat([part.to(parts[0]) for part in parts])


def fitting(value: float | Tensor, name: str, shape: Sequence[int]) -> Tensor:
    """The hyper-parameter of every weight of one parameter; one whose shape does not fit is refused."""
    own = torch.as_tensor(value)
    own = own if own.is_floating_point() else own.float()  # in a vector of integers what is given as 0.5 would be 0
    try:
        return own.expand(tuple(shape))
    except RuntimeError:
        message = f"the prior of parameter {name!r} has shape {tuple(own.shape)}, but the network's is {tuple(shape)}"
        raise PosterityError(message) from None


def like(value: Hyper, weights: Tensor) -> Tensor:
    """A number or tensor in the type and on the device of ``weights``; a number in its full precision."""
    return torch.as_tensor(value, dtype=weights.dtype, device=weights.device)


def beside(value: Hyper, weights: Tensor) -> Any:
    """A tensor beside the weights; a number as it is."""
    return value.to(weights) if isinstance(value, Tensor) else value


def described(value: Hyper) -> str:
    """A hyper-parameter in a few words; tensors by their size and mean, which also tells two of them apart."""
    parts = value.values() if isinstance(value, Mapping) else (value,)
    if not any(isinstance(part, Tensor) for part in parts):
        return repr(value)
    numbers = torch.cat([torch.as_tensor(part).detach().double().cpu().reshape(-1) for part in parts])
    return f"<{len(numbers)} numbers, mean {float(numbers.mean()):.9g}>"


def log(value: Any) -> Any:
    """The logarithm of a number or of a tensor."""
    return value.log() if isinstance(value, Tensor) else math.log(value)
