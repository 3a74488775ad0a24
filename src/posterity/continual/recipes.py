"""Strategies by name, with settings that suit small networks: for the shell and for benchmarks.

VOGN's were chosen on validation images (benchmarks/quality/continual.py --tune); the others are starting points from a
few short runs on such images. None was chosen on test data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from posterity.continual.functional import Functional
from posterity.continual.memory import Memory
from posterity.continual.strategy import EWC, Carry, FineTuning, Joint, Replay, Strategy
from posterity.methods import HWA, IVON, METHODS, SWAG, VOGN, Laplace, MeanField, Method
from posterity.probability.priors import Normal
from posterity.types import PosterityError

__all__ = ["BASELINES", "Recipe", "names", "recipe"]


@dataclass(frozen=True)
class Recipe:
    """A strategy and what its training needs.

    Attributes:
        strategy: How tasks are learned.
        lr: Learning rate; None takes the method's own.
    """

    strategy: Strategy
    lr: float | None = None


# No damping and a quick curvature: what is added to a variance beyond the data's part adds up over tasks.
_VOGN = VOGN(prior=Normal(0.3), damping=0.0, beta2=0.99, init_precision=0.1)
_METHODS: Mapping[str, tuple[Method, float | None]] = {
    "vogn": (_VOGN, 0.003),
    "ivon": (IVON(prior=Normal(0.3), hess_init=0.05, beta2=0.999), 0.1),
    "mean-field": (MeanField(prior=Normal(0.3), init_std=0.03), 2e-3),
    "hwa": (HWA(of=MeanField(prior=Normal(0.3), init_std=0.03)), 2e-3),
    "laplace": (Laplace(structure="diagonal"), None),
    "swag": (SWAG(rank=0), None),
}
"""Methods whose defaults are for one task alone, with a learning rate for a stream."""

BASELINES: Mapping[str, Callable[[], Strategy]] = {
    "fine-tuning": FineTuning,
    "joint": Joint,
    "ewc": EWC,
    "replay": Replay,
    "functional": Functional,
}
"""What methods are compared with."""


def names() -> list[str]:
    """The names ``recipe`` knows."""
    return [*METHODS, *BASELINES]


def recipe(name: str, method: Method | None = None, memory: Memory | None = None, **options: Any) -> Recipe:
    """A strategy by its name in the shell.

    Args:
        name: A baseline, or a method whose posterior is carried on.
        method: The method with other settings than the recipe's.
        memory: What is kept of each task; None keeps what the strategy does by itself.
        **options: Fields of the strategy, such as ``rehearse``, ``temperature`` or ``strength``.
    """
    if name not in names():
        raise PosterityError(f"there is no way of learning called {name!r}; there are {', '.join(names())}")
    if memory is not None:
        options["memory"] = memory
    if name in BASELINES:
        return Recipe(replace(BASELINES[name](), **options))
    usual, lr = _METHODS.get(name, (None, None))
    return Recipe(Carry(method=method or usual or METHODS[name](), **options), lr)
