"""A posterior whose randomness lives in the forward pass: Monte Carlo dropout.

The one case where a draw is not a fixed set of weights: masks are fresh for every example and every call. A draw is
seeded, so that the same question gets the same answer; torch's global generator, which dropout must use, is left as it
was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from posterity.calling import call
from posterity.networks import duplicate
from posterity.posteriors.base import Posterior
from posterity.probability.likelihoods import Likelihood
from posterity.random import global_seed
from posterity.types import Inputs, PosterityError, Predictor

__all__ = ["Stochastic", "dropout_rates", "with_dropout"]

_INSERTED = "input_dropout"
_LEFT_ON = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase, nn.TransformerEncoderLayer)
"""Layers that training mode changes by dropout alone; torch's fused encoder layer would skip it in eval mode."""


def dropout_rates(module: nn.Module) -> dict[str, float]:
    """The rate of every dropout layer by its name; an inserted one goes by the name of the layer it stands before."""
    layers = {name: m for name, m in module.named_modules() if isinstance(m, nn.modules.dropout._DropoutNd)}
    return {name.removesuffix(f".{_INSERTED}"): float(layer.p) for name, layer in layers.items()}


def with_dropout(module: nn.Module, rates: Mapping[str, float]) -> nn.Module:
    """A copy whose dropout layers have these rates; other layers named get dropout on their input.

    Parameter names stay as they are: an inserted layer is a child of the layer whose input it drops.
    """
    network = duplicate(module)
    for name, rate in rates.items():
        layer = network.get_submodule(name)
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.p = rate
        elif hasattr(layer, _INSERTED):
            layer.get_submodule(_INSERTED).p = rate  # type: ignore[assignment]
        else:
            layer.add_module(_INSERTED, nn.Dropout(rate))
            layer.register_forward_pre_hook(_drop_input)
    return network


def _drop_input(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if not args or not isinstance(args[0], Tensor) or not args[0].is_floating_point():
        raise PosterityError(
            f"dropout was inserted before a layer, {type(layer).__name__}, whose first input is no tensor of real "
            "numbers, or goes by keyword: insert it before another layer"
        )
    return (layer.get_submodule(_INSERTED)(args[0]), *args[1:])


class Stochastic(Posterior):
    """A network whose dropout stays on: in layers of its own, in attention, and between recurrent layers."""

    kind = "stochastic"

    def __init__(self, module: nn.Module, likelihood: Likelihood, **options: Any) -> None:
        super().__init__(module, likelihood, **options)
        if not dropout_rates(self.module):
            raise PosterityError("the network has no dropout layer, so its forward pass holds no randomness")
        for layer in self.module.modules():
            layer.training = isinstance(layer, _LEFT_ON)

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
        """The weights and where dropout stands."""
        return {"module": self.module.state_dict(), "rates": dropout_rates(self.module)}

    @classmethod
    def rebuild(cls, module: nn.Module, likelihood: Likelihood, state: dict[str, Any]) -> Self:
        """The posterior that ``state`` was taken from."""
        posterior = cls(with_dropout(module, state["rates"]), likelihood)
        posterior.module.load_state_dict(state["module"])
        return posterior
