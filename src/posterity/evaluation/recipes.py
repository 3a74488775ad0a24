"""What a fair comparison trains each method with: sizes by the amount of data, and a few settings to choose among.

The settings of a method are tried on the training part and chosen by the NLL on the validation part, the first unless
another is clearly better; nothing here ever sees test data. Methods without an entry run with their own defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from posterity.data import DataSet
from posterity.methods import METHODS, Method
from posterity.probability.priors import Normal
from posterity.types import PosterityError, hint

__all__ = ["CORE", "Recipe", "Sizes", "recipes", "sizes"]

CORE = ("map", "dropout", "ensemble", "mean-field", "swag", "ivon", "vogn", "laplace", "sghmc")
"""What ``core`` stands for, as far as the methods are there."""

_PLAIN = ("map", "dropout", "swa", "swag", "mean-field", "hwa", "laplace")
"""Methods that leave training to the plain optimizer."""

_MADE_OF = {"ensemble": ("map", 5), "multi-swag": ("swag", 3), "multi-sghmc": ("sghmc", 3)}
"""Names for several restarts of a method."""

Options = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How much training suits an amount of data; ``lr`` is for methods that train with the plain optimizer."""

    epochs: int
    batch_size: int
    validation: int
    lr: float


@dataclass(frozen=True)
class Recipe:
    """One entry of a comparison.

    Attributes:
        name: What the table calls it.
        method: The method's name in the shell.
        members: Independent restarts.
        settings: Options of the method to choose among.
        plain: Whether the plain optimizer trains it, at the learning rate that suits the data.
    """

    name: str
    method: str
    members: int
    settings: tuple[Options, ...]
    plain: bool = False

    def make(self, options: Options) -> Method:
        """The method with these options."""
        return METHODS[self.method](**options)


def sizes(examples: int) -> Sizes:
    """About 800 steps for a small set, and no fewer than 10 epochs of a large one; fewer steps want larger ones."""
    batch_size = min(128, max(16, examples // 16))
    steps = max(1, examples // batch_size)
    epochs = max(10, min(150, round(800 / steps)))
    return Sizes(epochs, batch_size, min(5000, max(1, examples // 6)), 3e-3 if epochs * steps < 3000 else 1e-3)


def recipes(names: Sequence[str], module: nn.Module, dataset: DataSet) -> list[Recipe]:
    """The entries that names stand for; ``core`` and ``all`` are lists of them. MAP, the yardstick, comes first."""
    everything = [*METHODS, *(name for name, (method, _) in _MADE_OF.items() if method in METHODS)]
    groups = {"core": [name for name in CORE if name in everything], "all": everything}
    wanted = [name for given in names for name in groups.get(given, [given])]
    for name in wanted:
        if name not in everything:
            raise PosterityError(f"there is no method called {name!r}: {hint(name, [*groups, *everything])}")
    ordered = ["map", *(name for name in dict.fromkeys(wanted) if name != "map")]
    return [_recipe(name, module, dataset) for name in ordered]


def _recipe(name: str, module: nn.Module, dataset: DataSet) -> Recipe:
    method, members = _MADE_OF.get(name, (name, 1))
    settings = _SETTINGS.get(method)
    chosen = tuple(settings(module, dataset)) if settings else ({},)
    return Recipe(name, method, members, chosen, method in _PLAIN)


def _priors(*stds: float) -> Callable[[nn.Module, DataSet], list[Options]]:
    return lambda module, dataset: [{"prior": Normal(std)} for std in stds]


def _dropout(module: nn.Module, dataset: DataSet) -> list[Options]:
    """The network's own dropout layers, or new ones before every linear layer but the first layer of all."""
    if any(isinstance(part, nn.modules.dropout._DropoutNd) for part in module.modules()):
        return [{}, {"rate": 0.2}]
    layers = [(name, part) for name, part in module.named_modules() if list(part.parameters(recurse=False))]
    linear = tuple(name for name, part in layers[1:] if isinstance(part, nn.Linear)) or (layers[-1][0],)
    return [{"rate": rate, "insert": linear} for rate in (0.05, 0.2)]


def _sampler(name: str) -> Callable[[nn.Module, DataSet], list[Options]]:
    """Steps of the sampler's own size, and a tenth of it for losses that are steeper."""
    return lambda module, dataset: [
        {"prior": Normal(0.3)},
        {"prior": Normal(1.0)},
        {"prior": Normal(1.0), "lr": METHODS[name]().default_lr / 10},
    ]


def _small_or_large(small: list[Options], large: list[Options]) -> Callable[[nn.Module, DataSet], list[Options]]:
    """Other settings for less and for more than 10,000 examples: few steps must be larger, and damped more."""
    return lambda module, dataset: small if len(dataset.training()[1]) < 10_000 else large


_SETTINGS: dict[str, Callable[[nn.Module, DataSet], list[Options]]] = {
    "map": _priors(1.0, 0.3),
    "dropout": _dropout,
    "swag": _priors(1.0, 0.3),
    "mean-field": _priors(1.0, 0.3),
    "ivon": _small_or_large(
        [{"lr": 1.0, "hess_init": 0.5, "beta2": 0.9995}, {"lr": 0.3}], [{}, {"lr": 0.2, "hess_init": 0.5}]
    ),
    "vogn": _small_or_large([{"lr": 0.03, "damping": 0.2}, {"lr": 0.01, "damping": 0.1}], [{}, {"damping": 0.01}]),
    "laplace": lambda module, dataset: [{"structure": "last-layer", "prior": Normal(std)} for std in (0.3, 1.0)],
    "sgld": _sampler("sgld"),
    "psgld": _sampler("psgld"),
    "sghmc": _sampler("sghmc"),
}
