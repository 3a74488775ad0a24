"""Invertible networks with a cheap log-determinant: RealNVP couplings on features, on pixels with Glow's convolutions.

A flow is a bijection z = f(x). With a density on z it is a density on x,

    log p(x) = log p_Z(f(x)) + log |det ∂f/∂x|,

that can be evaluated (``forward``) and sampled (``inverse``), both exactly. Its parts:

    coupling    z = m ⊙ x + (1 − m) ⊙ (x ⊙ e^s + t),  (s, t) = network(m ⊙ x),  log |det| = Σ (1 − m) ⊙ s
    scaling     z = x ⊙ e^a + b for each feature or channel,                    log |det| = Σ a
    squeeze     2×2 pixels become channels;                                     log |det| = 0

A coupling changes one part of x as the other part says, so masks alternate (Dinh et al. 2017, 1605.08803; Kingma &
Dhariwal 2018, 1807.03039). Every coupling begins as the identity. The log-scale s is kept within ±2, softly, so that
inverses stay accurate in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from posterity.layers.flows import through
from posterity.random import global_seed
from posterity.types import PosterityError, check_positive

__all__ = ["Coupling", "Flow", "feature_flow", "pixel_flow"]

_LARGEST_LOG_SCALE = 2.0


class Coupling(nn.Module):
    """Scales and shifts what the mask leaves free, by a function of what it keeps.

    Args:
        mask: 1 where the input is kept, 0 where it is changed; of the shape of one input.
        network: From an input of that shape to scales and shifts, side by side in the first dimension of an example.
    """

    mask: Tensor

    def __init__(self, mask: Tensor, network: nn.Module) -> None:
        super().__init__()
        self.register_buffer("mask", mask)
        self.network = network

    def _scale_and_shift(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        raw, shift = self.network(kept).chunk(2, 1)
        free = 1 - self.mask
        return free * _LARGEST_LOG_SCALE * torch.tanh(raw / _LARGEST_LOG_SCALE), free * shift

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """z and log |det| of each example."""
        log_scale, shift = self._scale_and_shift(self.mask * x)
        return x * log_scale.exp() + shift, log_scale.flatten(1).sum(1)

    def inverse(self, z: Tensor) -> Tensor:
        """x, by the same network: what it looks at was not changed."""
        log_scale, shift = self._scale_and_shift(self.mask * z)
        return (z - shift) * torch.exp(-log_scale)


class Scaling(nn.Module):
    """One scale and shift for each feature [D] or channel [C, 1, 1]."""

    def __init__(self, shape: Sequence[int], pixels: int = 1) -> None:
        super().__init__()
        self.log_scale, self.shift = nn.Parameter(torch.zeros(*shape)), nn.Parameter(torch.zeros(*shape))
        self.pixels = pixels

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """z and log |det| of each example."""
        return x * self.log_scale.exp() + self.shift, (self.pixels * self.log_scale.sum()).expand(len(x))

    def inverse(self, z: Tensor) -> Tensor:
        """x."""
        return (z - self.shift) * torch.exp(-self.log_scale)


class Squeeze(nn.Module):
    """Blocks of 2×2 pixels become four channels."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """z [B, 4C, H/2, W/2], and log |det| = 0."""
        return nn.functional.pixel_unshuffle(x, 2), x.new_zeros(len(x))

    def inverse(self, z: Tensor) -> Tensor:
        """x."""
        return nn.functional.pixel_shuffle(z, 2)


class Flow(nn.Module):
    """Invertible steps one after the other, from inputs of a fixed shape to vectors z of the same size.

    Args:
        shape: The shape of one input, as the steps take it.
        steps: Modules with ``forward(x) -> (z, log |det|)`` and ``inverse(z) -> x``.
    """

    def __init__(self, shape: Sequence[int], steps: Sequence[nn.Module]) -> None:
        super().__init__()
        self.shape, self.size = tuple(shape), math.prod(shape)
        self.steps = nn.ModuleList(steps)
        with torch.no_grad():
            self.latent_shape = tuple(through(self.steps, torch.zeros(1, *self.shape))[0].shape[1:])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """z [B, size] and log |det ∂f/∂x| [B]."""
        z, log_det = through(self.steps, x.reshape(len(x), *self.shape))
        return z.flatten(1), log_det

    def inverse(self, z: Tensor) -> Tensor:
        """x [B, *shape]."""
        x = z.reshape(len(z), *self.latent_shape)
        for step in reversed(self.steps):
            x = step.inverse(x)  # type: ignore[operator]
        return x


def feature_flow(features: int, couplings: int = 8, hidden: int = 256, seed: int = 0) -> Flow:
    """A flow on vectors, or on images as vectors: a random half is kept and then changed, again and again.

    Args:
        features: How many numbers an input has.
        couplings: How often a half is changed.
        hidden: Width of the two hidden layers of each coupling's network.
        seed: Halves and weights.
    """
    check_positive(couplings=couplings, hidden=hidden)
    if features < 2:
        raise PosterityError(f"a coupling needs at least two features, got {features}")
    steps: list[nn.Module] = [Scaling((features,))]
    with global_seed(seed, torch.device("cpu")):
        for mask in _alternating(couplings, lambda: _half(features)):
            steps += [Coupling(mask, _dense(features, hidden)), Scaling((features,))]
    return Flow((features,), steps)


def pixel_flow(shape: Sequence[int], couplings: int = 4, hidden: int = 64, levels: int = 2, seed: int = 0) -> Flow:
    """A flow on images [C, H, W]: checkerboards, then after each squeeze random halves of the channels.

    Args:
        shape: The shape of one image; height and width are multiples of 2^levels.
        couplings: Couplings at each of the ``levels + 1`` resolutions.
        hidden: Channels of the couplings' networks.
        levels: How often 2×2 pixels become channels.
        seed: Halves and weights.
    """
    check_positive(couplings=couplings, hidden=hidden)
    channels, height, width = shape
    if height % 2**levels or width % 2**levels:
        raise PosterityError(f"images of {height}×{width} pixels cannot be halved {levels} times")
    board = ((torch.arange(height)[:, None] + torch.arange(width)) % 2).to(torch.get_default_dtype())
    steps: list[nn.Module] = []
    with global_seed(seed, torch.device("cpu")):
        for level in range(levels + 1):
            if level:
                steps.append(Squeeze())
                channels, height, width = 4 * channels, height // 2, width // 2
            for mask in _alternating(couplings, lambda: _half(channels).view(-1, 1, 1) if level else board):  # noqa: B023
                steps.append(Coupling(mask, _convolutional(channels, hidden)))
                steps.append(Scaling((channels, 1, 1), height * width))
    return Flow(shape, steps)


def _alternating(count: int, half: Callable[[], Tensor]) -> Iterator[Tensor]:
    """So many masks: each half, and then its other half."""
    for index in range(count):
        if index % 2 == 0:
            mask = half()
        yield mask if index % 2 == 0 else 1 - mask


def _half(count: int) -> Tensor:
    """1 for a random half of so many, 0 for the others."""
    return (torch.randperm(count) % 2).to(torch.get_default_dtype())


def _dense(features: int, hidden: int) -> nn.Module:
    last = _zero(nn.Linear(hidden, 2 * features))
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), last)


def _convolutional(channels: int, hidden: int) -> nn.Module:
    first, last = nn.Conv2d(channels, hidden, 3, padding=1), _zero(nn.Conv2d(hidden, 2 * channels, 3, padding=1))
    return nn.Sequential(first, nn.ReLU(), nn.Conv2d(hidden, hidden, 1), nn.ReLU(), last)


def _zero(layer: nn.Linear | nn.Conv2d) -> nn.Module:
    """A last layer that gives no scale and no shift, so that the coupling begins as the identity."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer
