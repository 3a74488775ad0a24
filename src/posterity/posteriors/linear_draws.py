"""Draws of a network made linear in its weights, x ↦ f(x) + J(x) δ, one by one or several that share f(x).

J(x) δ is a Jacobian-vector product by forward-mode differentiation, at about the price of a pass through the network.
Under ``vmap`` over δ the network's own pass f(x) is not repeated, and the products of eight draws go together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import jvp, vjp, vmap

from posterity.calling import arguments, functional_call
from posterity.types import Inputs, Params
from posterity.unrolled import transformable

__all__ = ["LinearDraw", "LinearDraws"]


@dataclass(frozen=True, eq=False)
class LinearDraw:
    """x ↦ f(x) + J(x) δ, with a δ for those parameters that have one."""

    module: nn.Module
    mean: Params
    shift: Params

    def __call__(self, inputs: Inputs) -> Tensor:
        """The outputs of this draw."""
        with transformable(self.module):
            out, change = along(self.module, self.mean, inputs, self.shift)
        return out + change


@dataclass(frozen=True, eq=False)
class LinearDraws:
    """Several such draws, which differ in δ alone; ``shifts`` has it for each parameter, [draws, ...]."""

    module: nn.Module
    mean: Params
    shifts: Params

    def __call__(self, inputs: Inputs) -> Tensor:
        """The outputs of all, [draws, batch, ...]."""
        each = partial(along, self.module, self.mean, inputs)
        with transformable(self.module):
            out, change = vmap(each, out_dims=(None, 0))(self.shifts)  # type: ignore[arg-type]
        return out + change

    def one_by_one(self, inputs: Inputs) -> Tensor:
        """The same, for networks that vmap cannot follow."""
        each = [{name: s[i] for name, s in self.shifts.items()} for i in range(len(next(iter(self.shifts.values()))))]
        return torch.stack([LinearDraw(self.module, self.mean, shift)(inputs) for shift in each])


def along(module: nn.Module, mean: Params, inputs: Inputs, shift: Params) -> tuple[Tensor, Tensor]:
    """f(x) and J(x) δ."""
    args, kwargs = arguments(inputs)

    def network(params: Params) -> Tensor:
        return functional_call(module, {**mean, **params}, args, kwargs)

    return pushed(network, {name: mean[name] for name in shift}, shift)


def pushed(function: Callable[[Params], Tensor], at: Params, shift: Params) -> tuple[Tensor, Tensor]:
    """f(w) and J(w) δ, which is the derivative of uᵀJ δ by u where an operation has no forward-mode rule."""
    try:
        return jvp(function, (at,), (shift,))  # type: ignore[return-value]
    except NotImplementedError:
        out, pull = vjp(function, at)  # type: ignore[misc]
        return out, vjp(lambda u: pull(u)[0], torch.zeros_like(out))[1](shift)[0]  # type: ignore[misc]
