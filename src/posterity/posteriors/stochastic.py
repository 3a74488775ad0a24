"""A posterior whose randomness lives in the forward pass: Monte Carlo dropout.

The one case where a draw is not a fixed set of weights: masks are fresh for every example and every call. A draw is
seeded, so that the same question gets the same answer; torch's global generator, which dropout must use, is left as it
was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn

from posterity.calling import call
from posterity.posteriors.base import Posterior
from posterity.probability.likelihoods import Likelihood
from posterity.random import global_seed
from posterity.types import Inputs, PosterityError, Predictor

__all__ = ["Stochastic", "dropout_layers"]


def dropout_layers(module: nn.Module) -> list[nn.Module]:
    """The module's dropout layers of any dimension."""
    return [m for m in module.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]


class Stochastic(Posterior):
    """A network whose dropout layers stay on."""

    kind = "stochastic"

    def __init__(self, module: nn.Module, likelihood: Likelihood, **options: Any) -> None:
        super().__init__(module, likelihood, **options)
        if not dropout_layers(self.module):
            raise PosterityError("the network has no dropout layer, so its forward pass holds no randomness")
        for layer in dropout_layers(self.module):
            layer.train()

    def draws(self, n: int, generator: torch.Generator | None = None) -> Iterator[Predictor]:
        """n seeded forward passes."""
        generator = self._generator(generator)
        for _ in range(n):
            seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))

            def forward(inputs: Inputs, seed: int = seed) -> Tensor:
                with global_seed(seed, self.device):
                    return call(self.module, inputs)

            yield forward

    def state(self) -> dict[str, Any]:
        """The weights."""
        return {"module": self.module.state_dict()}

    @classmethod
    def rebuild(cls, module: nn.Module, likelihood: Likelihood, state: dict[str, Any]) -> Self:
        """The posterior that ``state`` was taken from."""
        posterior = cls(module, likelihood)
        posterior.module.load_state_dict(state["module"])
        return posterior
