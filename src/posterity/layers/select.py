"""Which parameters of a network become Bayesian, and which networks cannot be converted.

By default all weights: every floating-point parameter that is trained, but for biases, normalisation layers and
parameters without a number in them. A selection narrows that to modules, by a pattern on their names
(``"features.*"``), by their type, or to ``"last"``: the last module that has such a weight. A module that is selected
brings everything inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from posterity.layers.slots import Place
from posterity.layers.variational import Variational
from posterity.networks import is_spread
from posterity.types import PosterityError

__all__ = ["Bayesian", "Which", "select"]

Which = str | type[nn.Module] | Sequence[str | type[nn.Module]] | None
"""A pattern on module names, a module type, several of them, ``"last"``, or None for all."""


@dataclass(frozen=True, eq=False)
class Bayesian:
    """A parameter that becomes random, and every place that uses it."""

    parameter: nn.Parameter
    places: tuple[Place, ...]

    @property
    def tied(self) -> bool:
        """Whether several modules share it."""
        return len(self.places) > 1


def select(net: nn.Module, which: Which, bias: bool = False, norm: bool = False) -> dict[str, Bayesian]:
    """The parameters to convert, by their first name in the network.

    Args:
        net: A network; it is not changed.
        which: Which modules; all if None.
        bias: Biases, too.
        norm: Normalisation layers, too.
    """
    _check_convertible(net)
    modules = dict(net.named_modules(remove_duplicate=False))
    parameters = dict(net.named_parameters(remove_duplicate=False))

    def eligible(name: str) -> bool:
        owner, parameter = modules[name.rpartition(".")[0]], parameters[name]
        trained = parameter.requires_grad and parameter.numel() > 0
        return trained and (norm or not _is_norm(owner)) and (bias or not _is_bias(name))

    wanted = {id(parameters[name]) for name in _chosen(modules, list(filter(eligible, parameters)), which)}
    names: dict[int, list[str]] = {}
    for name, parameter in parameters.items():
        if id(parameter) in wanted:
            names.setdefault(id(parameter), []).append(name)
    found = {}
    for own in names.values():
        places = [(modules[path], attribute) for path, _, attribute in (name.rpartition(".") for name in own)]
        found[own[0]] = Bayesian(parameters[own[0]], tuple(places))
    _check_alike(found)
    return found


def _chosen(modules: dict[str, nn.Module], names: list[str], which: Which) -> list[str]:
    """The names that a selection covers."""
    if which is None:
        chosen = names
    elif which == "last":
        last = [name for name in names if not _is_bias(name)][-1:]
        chosen = [name for name in names if last and name.rpartition(".")[0] == last[0].rpartition(".")[0]]
    else:
        rules = (which,) if isinstance(which, str | type) else tuple(which)
        hits = [path for path, m in modules.items() if path and any(_fits(path, m, rule) for rule in rules)]
        hits += [""] if any(isinstance(rule, type) and isinstance(modules[""], rule) for rule in rules) else []
        chosen = [name for name in names if any(_inside(name, path) for path in hits)]
    if not chosen:
        known = ", ".join(dict.fromkeys(name.rpartition(".")[0] or "the network itself" for name in names))
        raise PosterityError(f"which={which!r} selects no weights; there are weights in {known or 'no module'}")
    return chosen


def _fits(path: str, module: nn.Module, rule: str | type[nn.Module]) -> bool:
    return fnmatchcase(path, rule) if isinstance(rule, str) else isinstance(module, rule)


def _inside(name: str, path: str) -> bool:
    return not path or name.startswith(path + ".")


def _is_norm(module: nn.Module) -> bool:
    """Torch's normalisation layers and those that others wrote: they are all called so."""
    return "norm" in type(module).__name__.lower()


def _is_bias(name: str) -> bool:
    """``bias``, ``bias_ih_l0``, ``in_proj_bias``, and the bias of a parametrised module."""
    return any(part == "bias" or part.startswith("bias_") or part.endswith("_bias") for part in name.split("."))


def _check_convertible(net: nn.Module) -> None:
    """Refuse what cannot keep its function, with the module's path and the reason."""
    for path, module in net.named_modules():
        where = f"{type(module).__name__} at {path!r}" if path else type(module).__name__
        if isinstance(module, Variational):
            raise PosterityError(f"{where} is converted already")
        if isinstance(module, torch.jit.ScriptModule):
            raise PosterityError(f"{where} is a compiled script with fixed weights: convert the original")
        if is_spread(module):
            raise PosterityError(f"{where} wraps a network over devices: convert the network, then wrap it")
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(parameter, UninitializedParameter):
                raise PosterityError(
                    f"{where} is lazy and has no {name} yet: call the network once, or pass example=inputs"
                )
            if parameter.requires_grad and parameter.is_complex():
                raise PosterityError(f"{where} has a complex {name}; weights must be real")


def _check_alike(found: dict[str, Bayesian]) -> None:
    """One flat vector needs one type and one device."""
    kinds = {(b.parameter.dtype, b.parameter.device) for b in found.values()}
    if len(kinds) > 1:
        listed = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise PosterityError(f"Bayesian weights must share one type and device, got {listed}")
