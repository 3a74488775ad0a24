"""Layers that add their weights' noise to activations, in the place of the plain ones while a network is trained.

A layer of a converted network changes its class and nothing else: its settings, hooks and name stay. For a training
pass it is given ``weight_mean``, and with it

    local     ``weight_variance``
    scaled    ``weight_variance`` and ``weight_scales``, a function that draws scales for a number of examples
    flipout   ``weight_deviation``

Without them it is the plain layer. The ``CONSISTENT`` layers give each example the noise of one draw of the weights, as
a posterior's predictions have it: they draw weights where rows are tokens, and where a pass calls them more than once
(``shared``).

Code that reads ``layer.weight`` itself while training sees its shape, type and device alone. Whoever computes with it
is refused: such a layer needs the reparameterised estimator. So is a checkpoint inside the network, which runs a layer
again when the pass is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from posterity.layers.estimators import (
    Geometry,
    drawn,
    flipout_convolution,
    flipout_linear,
    local_convolution,
    local_linear,
    noised,
)
from posterity.types import PosterityError

__all__ = ["CONSISTENT", "FLIPOUT", "LOCAL", "SCALED"]


_PROPERTIES: tuple[Any, ...] = (Tensor.shape, Tensor.dtype, Tensor.device, Tensor.ndim, Tensor.requires_grad)
_OUTSIDE = {
    *(found.__get__ for found in _PROPERTIES),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__, Tensor.is_floating_point),
}
"""What code outside a layer may ask of its weight."""


class _Seen(Tensor):
    """A weight from the outside, as networks look at it to bring inputs to its type or device: without its values."""

    refuse: Callable[[], NoReturn]

    @classmethod
    def standing_for(cls, mean: Tensor, name: str, layer: _Noisy) -> _Seen:
        """What is seen of a layer's weight or bias."""
        seen = mean.as_subclass(cls)
        seen.refuse = lambda: layer.refuse(name)
        return seen

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _OUTSIDE:
            return super().__torch_function__(func, types, args, kwargs)
        next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls)).refuse()


class _Noisy(nn.Module):
    """What a training pass hands to a layer; None outside of one."""

    weight_mean: Tensor | None = None
    weight_variance: Tensor | None = None
    weight_deviation: Tensor | None = None
    bias_mean: Tensor | None = None
    bias_variance: Tensor | None = None
    bias_deviation: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """The weight, outside a noisy pass."""
        if self.weight_mean is not None:
            return _Seen.standing_for(self.weight_mean, "weight", self)
        return cast(Tensor, self._parameters["weight"])

    @property
    def bias(self) -> Tensor | None:
        """The bias, where it is not Bayesian or outside a noisy pass."""
        if self.bias_mean is not None:
            return _Seen.standing_for(self.bias_mean, "bias", self)
        return self._parameters["bias"]

    def check_filled(self) -> None:
        """Refuse a call when the pass is over and the places are empty."""
        if self._parameters["weight"] is None:
            self.refuse("weight")

    def refuse(self, name: str) -> NoReturn:
        """Refuse that code outside the layer computes with its weight or bias."""
        kind = next(base for base in type(self).__mro__ if base.__module__.startswith("torch.nn"))
        raise PosterityError(
            f"the {name} of a {kind.__name__} layer, whose noise is in its activations, was read outside its forward, "
            "or by a checkpoint inside the network: leave the layer out (which=...), or, without checkpoints, use "
            "estimator='reparameterised'"
        )

    @property
    def center(self) -> Tensor | None:
        """The bias, or its mean where it is Bayesian."""
        return self._parameters["bias"] if self.bias_mean is None else self.bias_mean


class _LocalLinear(_Noisy, nn.Linear):  # type: ignore[misc,override]
    def forward(self, input: Tensor) -> Tensor:
        if self.weight_mean is None or self.weight_variance is None:
            self.check_filled()
            return super().forward(input)
        return local_linear(input, self.weight_mean, self.weight_variance, self.center, self.bias_variance)


class _ConsistentLinear(_LocalLinear):
    """Local noise differs from token to token and from call to call, where a draw of the weights shares it."""

    shared = False
    weight_drawn: Tensor | None = None
    bias_drawn: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        if self.weight_mean is None or self.weight_variance is None or (input.ndim < 3 and not self.shared):
            return super().forward(input)
        if self.weight_drawn is None:
            self.weight_drawn = drawn(self.weight_mean, self.weight_variance)
            if self.bias_mean is not None and self.bias_variance is not None:
                self.bias_drawn = drawn(self.bias_mean, self.bias_variance)
        return F.linear(input, self.weight_drawn, self.center if self.bias_drawn is None else self.bias_drawn)


class _Scaled(_Noisy):
    """Local noise about means that are multiplied by random scales; every example has scales of its own."""

    weight_scales: Callable[[int], Tensor] | None = None
    bias_scales: Callable[[int], Tensor] | None = None

    def center_for(self, examples: int) -> Tensor | None:
        """The bias, each example's [examples, out] where it is Bayesian."""
        if self.bias_mean is None or self.bias_scales is None:
            return self._parameters["bias"]
        return self.bias_scales(examples) * self.bias_mean


class _ScaledLinear(_Scaled, nn.Linear):  # type: ignore[misc,override]
    """x ⊙ z ↦ (x ⊙ z) ∗ mean + √(x² ∗ variance) ⊙ ε: an input's scale is that of its weights."""

    def forward(self, input: Tensor) -> Tensor:
        if self.weight_mean is None or self.weight_variance is None or self.weight_scales is None:
            self.check_filled()
            return super().forward(input)
        x = input[None] if input.ndim == 1 else input
        between = [1] * (x.ndim - 2)  # tokens of a sentence share their scales
        center = F.linear(x * self.weight_scales(len(x)).view(len(x), *between, -1), self.weight_mean)
        bias = self.center_for(len(x))
        if bias is not None:
            center = center + (bias if bias.ndim == 1 else bias.view(len(x), *between, -1))
        variance = F.linear(x * x, self.weight_variance, self.bias_variance)
        return noised(center, variance.to(center)).view(*input.shape[:-1], -1)


class _FlipoutLinear(_Noisy, nn.Linear):  # type: ignore[misc,override]
    def forward(self, input: Tensor) -> Tensor:
        if self.weight_mean is None or self.weight_deviation is None:
            self.check_filled()
            return super().forward(input)
        return flipout_linear(input, self.weight_mean, self.weight_deviation, self.center, self.bias_deviation)


class _NoisyConvolution(_Noisy):
    """A convolution of any dimension; what noise a pass has is the subclass's matter."""

    def forward(self, input: Tensor, *output_size: Any, **named: Any) -> Tensor:
        if self.weight_mean is None:
            self.check_filled()
            return super().forward(input, *output_size, **named)  # type: ignore[misc]
        x, geometry = _prepared(cast(_AnyConvolution, self), input, *output_size, **named)
        out = self.noisy(x, self.weight_mean, geometry)
        return out if x.ndim == input.ndim else out.squeeze(0)

    def noisy(self, x: Tensor, mean: Tensor, geometry: Geometry) -> Tensor:
        """The outputs of a batch whose padding is done."""
        raise NotImplementedError


class _LocalConvolution(_NoisyConvolution):
    def noisy(self, x: Tensor, mean: Tensor, geometry: Geometry) -> Tensor:
        assert self.weight_variance is not None
        return local_convolution(x, mean, self.weight_variance, self.center, self.bias_variance, geometry)


class _ScaledConvolution(_Scaled, _NoisyConvolution):
    """z ⊙ (x ∗ mean) + √(x² ∗ variance) ⊙ ε, a scale for each filter."""

    def noisy(self, x: Tensor, mean: Tensor, geometry: Geometry) -> Tensor:
        assert self.weight_variance is not None and self.weight_scales is not None
        center = torch.convolution(x, mean, None, *geometry)
        over = [1] * (center.ndim - 2)
        scales = self.weight_scales(len(x))  # a transposed convolution has the same filters for each of its groups
        center = center * scales.repeat(1, center.shape[1] // scales.shape[1]).view(*center.shape[:2], *over)
        bias = self.center_for(len(x))
        if bias is not None:
            center = center + bias.view(-1, center.shape[1], *over)
        variance = torch.convolution(x * x, self.weight_variance, self.bias_variance, *geometry)
        return noised(center, variance.to(center))


class _FlipoutConvolution(_NoisyConvolution):
    def noisy(self, x: Tensor, mean: Tensor, geometry: Geometry) -> Tensor:
        assert self.weight_deviation is not None
        return flipout_convolution(x, mean, self.weight_deviation, self.center, self.bias_deviation, geometry)


class _ConsistentConvolution(_FlipoutConvolution):
    """Flipout, whose signs would change from call to call, where a draw of the weights keeps them."""

    shared = False

    def noisy(self, x: Tensor, mean: Tensor, geometry: Geometry) -> Tensor:
        if not self.shared:
            return super().noisy(x, mean, geometry)
        assert self.weight_deviation is not None
        bias = self.center
        if bias is not None and self.bias_deviation is not None:
            bias = bias + self.bias_deviation
        return torch.convolution(x, mean + self.weight_deviation, bias, *geometry)


_AnyConvolution = nn.modules.conv._ConvNd


def _prepared(layer: _AnyConvolution, x: Tensor, output_size: list[int] | None = None) -> tuple[Tensor, Geometry]:
    """The input with a batch dimension and with any padding that is not plain zeros, and what remains to be done."""
    dimensions = len(layer.kernel_size)
    if x.ndim == dimensions + 1:
        x = x.unsqueeze(0)
    padding, output_padding = layer.padding, layer.output_padding
    if layer.padding_mode != "zeros" or padding == "same":
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
        padding = (0,) * dimensions
    elif padding == "valid":
        padding = (0,) * dimensions
    if output_size is not None:
        transposed: Any = layer
        known = (layer.stride, padding, layer.kernel_size, dimensions, layer.dilation)
        output_padding = tuple(transposed._output_padding(x, output_size, *known))
    return x, Geometry(
        layer.stride,
        cast(tuple[int, ...], padding),
        layer.dilation,
        layer.transposed,
        output_padding,
        layer.groups,
    )


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def _versions(linear: type, convolution: type) -> dict[type, type]:
    """The noisy class of every plain one."""
    return {nn.Linear: linear} | {
        plain: type(f"{convolution.__name__}_{plain.__name__}", (convolution, plain), {"__module__": __name__})
        for plain in _CONVOLUTIONS
    }


LOCAL = _versions(_LocalLinear, _LocalConvolution)
"""Layers whose outputs carry the noise, by the plain class that they stand in for."""

FLIPOUT = _versions(_FlipoutLinear, _FlipoutConvolution)
"""Layers with one deviation and random signs, by the plain class that they stand in for."""

SCALED = _versions(_ScaledLinear, _ScaledConvolution)
"""Layers with local noise about scaled means, by the plain class that they stand in for."""

CONSISTENT = _versions(_ConsistentLinear, _ConsistentConvolution)
"""Local for Linear, flipout for convolutions; weights are drawn where these would give an example several draws."""

globals().update(
    {  # pickle looks here
        version.__name__: version for versions in (LOCAL, SCALED, FLIPOUT, CONSISTENT) for version in versions.values()
    }
)
