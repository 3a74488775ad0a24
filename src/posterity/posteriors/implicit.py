"""A distribution over weights that can be drawn from, but has no density: radial noise, multiplicative flows.

It keeps the trained sampler itself (``posterity.layers``). Means and variances are the sampler's: exact for radial
noise, by Monte Carlo over the few flow variables for MNF.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch import nn

from posterity.layers.blocks import Radial
from posterity.layers.convert import Scheme, convert
from posterity.layers.flows import FlowBlock
from posterity.layers.noisy import SCALED
from posterity.layers.select import select
from posterity.layers.variational import Variational
from posterity.networks import duplicate
from posterity.posteriors.base import WeightPosterior
from posterity.probability.likelihoods import Likelihood
from posterity.probability.priors import Normal
from posterity.random import global_seed
from posterity.types import Params, PosterityError

__all__ = ["FAMILIES", "Implicit"]

FAMILIES: dict[str, Callable[..., Scheme]] = {
    "radial": lambda: Scheme(drawn=Radial),
    "mnf": lambda hidden, steps: Scheme(noisy=partial(FlowBlock, hidden=hidden, steps=steps), layers=SCALED),
}
"""Families without a density by the name that a file gives them; called with the options that it stores."""


class Implicit(WeightPosterior):
    """Draws of a trained sampler.

    Args:
        module: The plain network.
        likelihood: How targets arise from its outputs.
        sampler: The converted network with its trained distributions.
        family: Which of ``FAMILIES`` it was made by.
        family_options: What that family was made with.
    """

    kind = "implicit"

    def __init__(
        self,
        module: nn.Module,
        likelihood: Likelihood,
        sampler: Variational,
        family: str,
        family_options: dict[str, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(module, likelihood, **options)
        if family not in FAMILIES:
            raise PosterityError(f"unknown family {family!r}; there are {', '.join(FAMILIES)}")
        self.sampler = duplicate(sampler).requires_grad_(False)
        self.family, self.family_options = family, dict(family_options or {})

    @torch.no_grad()
    def sample(self, generator: torch.Generator | None = None) -> Params:
        """One set of weights."""
        generator = self._generator(generator)
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        with global_seed(seed, self.device):
            return self._in_order(self.sampler.draw())

    def mean(self) -> Params:
        """The mean of every parameter."""
        return self._in_order(self.sampler.mean())

    def variance(self) -> Params:
        """Marginal variances; zero for the deterministic parameters."""
        zeros = {name: torch.zeros_like(p) for name, p in self.module.named_parameters()}
        return zeros | {name: std.square() for name, std in self.sampler.std().items()}

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """A copy on another device or in another precision."""
        moved = super().to(device, dtype)
        moved.sampler = duplicate(self.sampler).to(device=device, dtype=dtype)
        return moved

    def state(self) -> dict[str, Any]:
        """The sampler's tensors, and how to build it again."""
        return {
            "family": self.family,
            "options": self.family_options,
            "bayesian": list(self.sampler.std()),
            "tensors": dict(self.sampler.state_dict()),
        }

    @classmethod
    def rebuild(cls, module: nn.Module, likelihood: Likelihood, state: dict[str, Any]) -> Self:
        """The posterior that ``state`` was taken from."""
        net = duplicate(module).requires_grad_(True)
        names = set(state["bayesian"])
        found = {name: b for name, b in select(net, None, bias=True, norm=True).items() if name in names}
        scheme = FAMILIES[state["family"]](**state["options"])
        sampler = convert(net, found, scheme, Normal(), 0.01)
        sampler.load_state_dict(state["tensors"])
        return cls(module, likelihood, sampler, state["family"], state["options"])
