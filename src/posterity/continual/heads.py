"""What a network ends in, and which of its rows belong to which task, where every task has a head of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posterity.networks import check_same_network, duplicate
from posterity.posteriors import WeightPosterior
from posterity.types import Params, PosterityError

__all__ = ["Ending", "ending", "next_network", "unused_rows"]


@dataclass(frozen=True)
class Ending:
    """What a network ends in.

    Attributes:
        outputs: How many outputs it has.
        layer: The name of the Linear layer that was called last, if it has as many outputs; else None.
    """

    outputs: int
    layer: str | None

    def head_layer(self) -> str:
        """The layer with a row for every class."""
        if self.layer is None:
            raise PosterityError("a head for every task needs a network that ends in a Linear layer, and this does not")
        return self.layer


@torch.no_grad()
def ending(module: nn.Module, inputs: Tensor) -> Ending:
    """What the network ends in, seen when it is called: layers need not be registered in the order of their use."""
    network, called = duplicate(module).eval(), [""]
    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Linear)}
    for name, layer in layers.items():
        layer.register_forward_hook(lambda *_, name=name: called.append(name))
    device = next((p.device for p in network.parameters()), inputs.device)
    try:
        outputs = network(inputs[:2].to(device)).shape[-1]
    except Exception as error:  # whatever the user's forward raises
        reason = str(error).partition("\n")[0]
        raise PosterityError(f"the network cannot take inputs of shape {tuple(inputs.shape)}: {reason}") from error
    last = layers.get(called[-1])
    return Ending(outputs, called[-1] if last is not None and last.out_features == outputs else None)


def unused_rows(module: nn.Module, name: str | None, used: Iterable[Sequence[int] | None]) -> Params:
    """Marks the weights of the output layer that no task has used yet; nothing where tasks share one head.

    Args:
        module: The network.
        name: Its Linear layer with a row for every class; None where tasks share one head.
        used: The classes of the tasks so far; None for a task without a head of its own.
    """
    known = list(used)
    if name is None or any(classes is None for classes in known):
        return {}
    layer = module.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    marks = torch.ones(layer.out_features, dtype=torch.bool)
    marks[[c for classes in known for c in classes or ()]] = False
    if not marks.any():
        return {}
    return {
        f"{name}.{own}".lstrip("."): marks.view(-1, *[1] * (p.dim() - 1)).expand_as(p)
        for own, p in layer.named_parameters()
    }


@torch.no_grad()
def next_network(module: nn.Module, posterior: WeightPosterior, unused: Params) -> nn.Module:
    """A copy of the network at the posterior's mean, with its own weights where no task has used them yet."""
    network = duplicate(module)
    shapes = ({name: tuple(p.shape) for name, p in m.named_parameters()} for m in (posterior.module, network))
    check_same_network("the carried posterior", *shapes)
    means = posterior.mean()
    for name, p in network.named_parameters():
        mean = means[name].to(p)
        p.copy_(torch.where(unused[name].to(p.device), p, mean) if name in unused else mean)
    network.load_state_dict(dict(posterior.module.named_buffers()), strict=False)
    return network
