"""An optimizer that keeps one vector per quantity and param group, a prior for the weights, and a complete state.

``state[p]`` are views into the vectors (``FlatGroup``), so that ``state_dict`` is torch's own. A prior is a precision δ
and a mean μ₀, shared or by parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from posterity.optim.flat_group import FlatGroup, PerWeight
from posterity.optim.prior import Group
from posterity.random import generator_for
from posterity.types import Params, PosterityError


class FlatOptimizer(torch.optim.Optimizer):
    """Param groups laid out flat, with their priors and a generator of noise; the subclass makes the steps.

    Args:
        params: Parameters, named parameters, or param groups; those that need no gradient are left out.
        defaults: Hyper-parameters of a param group: numbers only, ``lr`` and ``temperature`` among them.
        num_data: N, the number of training examples.
        prior_precision: δ.
        prior_mean: μ₀.
        generator: Where noise comes from. By default one of the optimizer's own with the same seed everywhere, so that
            the ranks of a DistributedDataParallel loop share their draws; its position is saved with the state.
    """

    state_vectors: tuple[str, ...] = ()

    def __init__(
        self,
        params: Iterable[Any],
        defaults: Group,
        *,
        num_data: float,
        prior_precision: PerWeight,
        prior_mean: PerWeight | None,
        generator: torch.Generator | None,
    ) -> None:
        if not num_data or not 0 < num_data < math.inf:  # NaN lies nowhere
            raise PosterityError(f"num_data must be the number of training examples, got {num_data!r}")
        self._flat: list[FlatGroup] = []
        self._left_out: list[Tensor] = []
        self._priors = {"prior_precision": prior_precision, "prior_mean": 0.0 if prior_mean is None else prior_mean}
        super().__init__(params, {**defaults, "num_data": num_data, "step": 0})
        self._owns_generator = generator is None
        self._generator = generator or generator_for(0, self._flat[0].params[0].device)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group as torch does, and lay out its vectors."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        names = group.get("param_names", [f"{len(self._flat)}.{i}" for i in range(len(group["params"]))])
        kept = [(name, p) for name, p in zip(names, group["params"], strict=True) if p.requires_grad]
        if not kept:
            raise PosterityError("a param group has no parameters that need gradients")
        self._left_out += [p for p in group["params"] if not p.requires_grad]
        group["params"] = [p for _, p in kept]
        if "param_names" in group:
            group["param_names"] = [name for name, _ in kept]
        flat = FlatGroup(group["params"], [name for name, _ in kept])
        self._flat.append(flat)
        for key, value in self._priors.items():
            self._set_prior(group, flat, key, group.get(key, value))
        self._prepare(group, flat)
        self._publish(group, flat)

    def _set_prior(self, group: Group, flat: FlatGroup, key: str, value: PerWeight) -> None:
        """A number stays in the group; what differs by weight becomes a vector, and the group says so by None."""
        if not isinstance(value, Mapping):
            group[key] = float(value)
            return
        if "param_names" not in group:
            raise PosterityError(f"{key} by name needs named parameters: pass module.named_parameters()")
        flat.fill(key, value)
        group[key] = None

    def _publish(self, group: Group, flat: FlatGroup) -> None:
        """Make ``state[p]`` views into the vectors, so that ``state_dict`` is torch's own."""
        names = [*self.state_vectors, *(key for key in self._priors if group[key] is None)]
        for i, p in enumerate(flat.params):
            self.state[p].update({name: flat.views(name)[i] for name in names})

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be copied: torch would leave out the vectors, and nobody would watch the copy of a module."""
        name = type(self).__name__
        raise PosterityError(f"{name} is copied by making another for the copied weights, and load_state_dict")

    def state_dict(self) -> dict[str, Any]:
        """Torch's own, and the position of the generator where the optimizer owns it."""
        state = super().state_dict()
        return {**state, "generator": self._generator.get_state()} if self._owns_generator else state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state: torch puts new tensors into ``state``, and their values are copied into our own."""
        own = {p: dict(self.state[p]) for p in self._trained()}
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        for p, tensors in own.items():
            theirs, ours = _shapes(self.state[p]), _shapes(tensors)
            if theirs != ours:
                raise PosterityError(f"the state holds {theirs} of a parameter, this optimizer {ours}")
            for name, tensor in tensors.items():
                tensor.copy_(self.state[p][name])
            self.state[p] = tensors
        for flat in self._flat:
            flat.prior_scale = None  # the prior's vector is another
        if self._owns_generator and "generator" in state_dict:
            self._generator.set_state(state_dict["generator"].cpu())

    def _groups(self) -> Iterator[tuple[Group, FlatGroup]]:
        """Each param group with its vectors."""
        return zip(self.param_groups, self._flat, strict=True)

    def _trained(self) -> Iterator[Tensor]:
        """The parameters of all groups."""
        return (p for flat in self._flat for p in flat.params)

    def _by_name(self, name: str) -> Params:
        """A vector's views of all groups, by parameter name."""
        return {key: v for flat in self._flat for key, v in zip(flat.layout.names, flat.views(name), strict=True)}

    def _prepare(self, group: Group, flat: FlatGroup) -> None:
        """Set up the vectors of a new group."""
        raise NotImplementedError


def _shapes(tensors: Params) -> dict[str, list[int]]:
    return {name: list(torch.as_tensor(tensors[name]).shape) for name in sorted(tensors)}
