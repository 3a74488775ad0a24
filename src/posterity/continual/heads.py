"""Which weights belong to which task: the rows of the last layer, where every task has a head of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from posterity.posteriors import WeightPosterior
from posterity.types import Params, PosterityError

__all__ = ["next_network", "unused_rows"]


def unused_rows(module: nn.Module, used: Iterable[Sequence[int] | None]) -> Params:
    """Marks the last layer's weights that no task has used yet; nothing where tasks share one head.

    Args:
        module: The network; its last Linear layer has a row for every class.
        used: The classes of the tasks so far; None for a task without a head of its own.
    """
    known = list(used)
    if any(classes is None for classes in known):
        return {}
    name, layer = _last_linear(module)
    marks = torch.ones(layer.out_features, dtype=torch.bool)
    marks[[c for classes in known for c in classes or ()]] = False
    if not marks.any():
        return {}
    rows: dict[str, Tensor] = {f"{name}.weight": marks[:, None].expand_as(layer.weight)}
    return {**rows, f"{name}.bias": marks} if layer.bias is not None else rows


def _last_linear(module: nn.Module) -> tuple[str, nn.Linear]:
    found = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not found:
        raise PosterityError(f"a head for every task needs a last Linear layer, and {type(module).__name__} has none")
    return found[-1]


@torch.no_grad()
def next_network(module: nn.Module, posterior: WeightPosterior, unused: Params) -> nn.Module:
    """A copy of the network at the posterior's mean, with its own weights where no task has used them yet."""
    network = copy.deepcopy(module)
    check_same(network, posterior)
    means = posterior.mean()
    for name, p in network.named_parameters():
        mean = means[name].to(p)
        p.copy_(torch.where(unused[name].to(p.device), p, mean) if name in unused else mean)
    network.load_state_dict(dict(posterior.module.named_buffers()), strict=False)
    return network


def check_same(module: nn.Module, posterior: WeightPosterior) -> None:
    """Refuse a posterior over the weights of another network."""
    own = {name: tuple(p.shape) for name, p in module.named_parameters()}
    carried = {name: tuple(p.shape) for name, p in posterior.module.named_parameters()}
    for name in [*carried, *own]:
        if carried.get(name) != own.get(name):
            was, got = carried.get(name, "absent"), own.get(name, "absent")
            raise PosterityError(
                f"the carried posterior belongs to another network: parameter {name!r} is {was} there and {got} here"
            )
