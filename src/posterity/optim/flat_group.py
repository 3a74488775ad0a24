"""The vectors of one param group: one number per weight, laid end to end, seen parameter by parameter as views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from posterity.flat import Layout
from posterity.types import Params, PosterityError

PerWeight = float | Mapping[str, float | Tensor]
"""One number for all weights, or a number or a tensor for each parameter by name."""


class FlatGroup:
    """Named vectors as long as all parameters of a group together; each is allocated when first asked for.

    Elementwise work runs on whole vectors, without fresh allocations. The parameters keep their own storage, so that
    nothing in the user's module changes; they are read and written through lists of views.

    Attributes:
        prior_scale: What the prior's precision was multiplied by when its scaled vector was made; None before.
    """

    def __init__(self, params: Sequence[Tensor], names: Sequence[str]) -> None:
        kinds = {(p.dtype, p.device) for p in params}
        if len(kinds) != 1 or params[0].dtype not in (torch.float32, torch.float64):
            found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise PosterityError(f"a group's parameters must all be float32 or all float64 on one device, got {found}")
        self.params = list(params)
        self.layout = Layout(tuple(names), tuple(p.shape for p in params))
        self.prior_scale: float | None = None
        self._vectors: Params = {}
        self._views: dict[str, list[Tensor]] = {}

    def __getitem__(self, name: str) -> Tensor:
        """The vector of this name; zeros at first."""
        if name not in self._vectors:
            first = self.params[0]
            self.put(name, torch.zeros(self.layout.total, dtype=first.dtype, device=first.device))
        return self._vectors[name]

    def put(self, name: str, vector: Tensor) -> None:
        """Use this tensor as the vector of that name."""
        self._vectors[name] = vector
        self._views[name] = list(self.layout.unflatten(vector).values())

    def put_pair(self, name: str, first: str, second: str) -> None:
        """Two new vectors of zeros, as the rows of one tensor [2, weights], which has a name of its own."""
        both = self.params[0].new_zeros(2, self.layout.total, requires_grad=False)
        self.put(name, both)
        self.put(first, both[0])
        self.put(second, both[1])

    def views(self, name: str) -> list[Tensor]:
        """The vector of this name cut into the shapes of the parameters, without copying."""
        self[name]
        return self._views[name]

    def read(self, name: str) -> Tensor:
        """Copy the parameters into the vector of this name."""
        torch._foreach_copy_(self.views(name), self.params)
        return self[name]

    def write(self, name: str) -> None:
        """Copy the vector of this name into the parameters."""
        torch._foreach_copy_(self.params, self.views(name))

    def fill(self, name: str, values: Mapping[str, float | Tensor]) -> None:
        """Fill the vector of this name from numbers or tensors by parameter name."""
        for key, view in zip(self.layout.names, self.views(name), strict=True):
            if key not in values:
                raise PosterityError(f"{name} has no entry for parameter {key!r}, only for {list(values)}")
            value = values[key]
            if isinstance(value, Tensor) and value.shape not in (view.shape, torch.Size()):
                raise PosterityError(f"{name}[{key!r}] has shape {tuple(value.shape)}, expected {tuple(view.shape)}")
            view.copy_(torch.as_tensor(value, dtype=view.dtype, device=view.device))
