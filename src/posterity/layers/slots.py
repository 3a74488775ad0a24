"""Where drawn weights go: the places in a network that once held its Bayesian parameters.

A converted network keeps its modules, but those parameters are taken out (``None`` in their place, so that order and
names stay). For one forward pass the places are filled with tensors that depend on the variational parameters, and
emptied again whatever happens. A parameter that several modules share has several places and one value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from posterity.devices import aligned
from posterity.flat import Layout
from posterity.types import Params

__all__ = ["Place", "Slots"]

Place = tuple[nn.Module, str]
"""A module and the name of its attribute."""


@dataclass(frozen=True, eq=False)
class Slots:
    """The places of some parameters, in the order of a flat vector.

    Attributes:
        layout: Names and shapes of the parameters.
        places: Where each of them is used.
    """

    layout: Layout
    places: tuple[tuple[Place, ...], ...]

    @classmethod
    def taken_out(cls, params: Params, places: Mapping[str, tuple[Place, ...]]) -> Slots:
        """Empty the places of these parameters."""
        slots = cls(Layout.of(params), tuple(places[name] for name in params))
        slots.clear()
        return slots

    def fill(self, vectors: Mapping[str, Tensor]) -> None:
        """Put flat vectors into the places: under ``""`` as the parameters, under ``"_mean"`` and so on beside them."""
        for suffix, vector in vectors.items():
            for places, value in zip(self.places, self.layout.unflatten(vector).values(), strict=True):
                for module, attribute in places:
                    if suffix:
                        setattr(module, attribute + suffix, value)
                    else:
                        module._parameters[attribute] = aligned(value)  # type: ignore[assignment]  # as in functional_call
        self._refresh_recurrent()

    def clear(self, suffixes: tuple[str, ...] = ()) -> None:
        """Empty the places, and what stands beside them."""
        for places in self.places:
            for module, attribute in places:
                module._parameters[attribute] = None
                for suffix in suffixes:
                    setattr(module, attribute + suffix, None)
        self._refresh_recurrent()

    def restore(self, params: Params) -> None:
        """Make the network plain again, with these values as its parameters."""
        for name, places in zip(self.layout.names, self.places, strict=True):
            parameter = nn.Parameter(params[name].detach().clone())
            for module, attribute in places:
                module._parameters[attribute] = parameter
        self._refresh_recurrent()

    def _refresh_recurrent(self) -> None:
        """Recurrent layers compute with a list of their weights, which must follow."""
        for places in self.places:
            for module, _ in places:
                if isinstance(module, nn.RNNBase):
                    module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]
