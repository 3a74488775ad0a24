"""Multiplicative normalizing flows: weights whose common scales follow a flexible distribution.

    z ~ q(z): z₀ ~ N(mean, std²) through a few coupling steps; one z for each input (linear) or filter (convolution)
    w | z  ~ N(z ⊙ mean, std²)

The marginal q(w) has no density, so the KL is bounded with an auxiliary r(z | w), a flow of its own whose base depends
on the weights (Louizos & Welling 2017, 1703.01961):

    KL(q(w)‖p(w)) ≤ E_{q(z)} [ KL(q(w | z)‖p(w)) + log q(z) − E_{q(w | z)} log r(z | w) ]

A coupling step keeps a masked half of z and moves the other half towards a function of it,

    h = tanh(A (m ⊙ z) + a),  z ← m ⊙ z + (1 − m) ⊙ (z ⊙ s(h) + (1 − s(h)) ⊙ t(h)),  log |det| = Σ (1 − m) log s(h).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn

from posterity.layers.blocks import Diagonal
from posterity.layers.divergence import diagonal_kl
from posterity.layers.estimators import deviation
from posterity.layers.groups import Groups
from posterity.layers.slots import Slots
from posterity.probability.priors import Prior

__all__ = ["Flow", "FlowBlock", "through"]

MOMENT_DRAWS = 1024
"""Draws of z that its mean and variance are taken from."""


def through(steps: Iterable[nn.Module], z: Tensor) -> tuple[Tensor, Tensor]:
    """Steps z → (z, log |det|) one after the other: the last z [n, ...] and the sum of log |det| [n]."""
    total = z.new_zeros(len(z))
    for step in steps:
        z, log_det = step(z)
        total = total + log_det
    return z, total


class Coupling(nn.Module):
    """One step of a flow."""

    mask: Tensor

    def __init__(self, size: int, hidden: int, parity: int) -> None:
        super().__init__()
        self.register_buffer("mask", ((torch.arange(size) + parity) % 2).to(torch.get_default_dtype()))
        self.hidden, self.shift, self.gate = nn.Linear(size, hidden), nn.Linear(hidden, size), nn.Linear(hidden, size)
        nn.init.constant_(self.gate.bias, 2.0)  # begin near the identity

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The moved z [n, size] and log |det| [n]."""
        h = torch.tanh(self.hidden(self.mask * z))
        gate, kept = self.gate(h), self.mask.bool()
        moved = torch.where(kept, z, torch.lerp(self.shift(h), z, gate.sigmoid()))
        return moved, nn.functional.logsigmoid(gate) @ (1 - self.mask)


class Flow(nn.Module):
    """Coupling steps one after the other, with alternating masks."""

    def __init__(self, size: int, hidden: int, steps: int) -> None:
        super().__init__()
        self.steps = nn.ModuleList(Coupling(size, hidden, parity) for parity in range(steps))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The moved z [n, size] and log |det| [n]."""
        return through(self.steps, z)


class Scales(nn.Module):
    """q(z) and r(z | w) of one parameter."""

    def __init__(self, size: int, hidden: int, steps: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(1 + 0.01 * torch.randn(size))
        self.log_std = nn.Parameter(torch.full((size,), 0.5 * math.log(0.1)))  # as the paper's code begins
        self.forward_flow = Flow(size, hidden, steps)
        self.auxiliary = Flow(size, 2 * hidden, steps)
        self.look, self.aim, self.spread = (nn.Parameter(0.01 * torch.randn(size)) for _ in range(3))

    def sample(self, count: int) -> Tensor:
        """z [count, size], in whole precision though a layer asks for it in the middle of a pass."""
        with torch.autocast(self.mean.device.type, enabled=False):
            return self.draw(torch.randn_like(self.mean.expand(count, -1)))[0]

    def draw(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """z [n, size] and log q(z) [n] from standard normal noise [n, size]."""
        z, log_det = self.forward_flow(self.mean + self.log_std.exp() * noise)
        return z, _log_normal(noise).sum(-1) - self.log_std.sum() - log_det

    def log_auxiliary(self, z: Tensor, weights: Tensor) -> Tensor:
        """log r(z | w) of z [1, size], given weights [size, rest]."""
        seen = torch.tanh(self.look @ weights).mean()
        base, log_det = self.auxiliary(z)
        log_std = self.spread * seen
        return (_log_normal((base - self.aim * seen) * torch.exp(-log_std)) - log_std).sum() + log_det.sum()


class FlowBlock(Diagonal):
    """Weights given their scales enter by activations, and in training every example has scales of its own."""

    beside = ("_mean", "_variance", "_scales")

    def __init__(
        self,
        slots: Slots,
        mean: Tensor,
        std: Tensor,
        prior: Prior,
        fixed: Tensor | None = None,
        hidden: int = 50,
        steps: int = 2,
    ) -> None:
        super().__init__(slots, mean, std, prior, fixed)
        self.groups = Groups.of(slots)
        self.scales = nn.ModuleList(Scales(size, hidden, steps) for size in self.groups.sizes).to(mean)

    def noisy(self) -> dict[str, Tensor]:
        """Means and variances; layers draw the scales, since they know how many examples there are."""
        for scales, places in zip(self._of_each(), self.slots.places, strict=True):
            for layer, attribute in places:
                setattr(layer, f"{attribute}_scales", _once(scales.sample))
        return {"_mean": self.mean, "_variance": (2 * self.log_std).exp()}

    def draw(self) -> Tensor:
        """z ⊙ mean + std ⊙ ε."""
        z, _ = self._draw_scales()
        return self.groups.expand(z) * self.mean + deviation(self.log_std)

    def center(self) -> Tensor:
        """E z ⊙ mean."""
        return self.groups.expand(self._scale_moments()[0]) * self.mean

    def std(self) -> Tensor:
        """By Var w = std² + mean² Var z."""
        spread = self.groups.expand(self._scale_moments()[1])
        return (super().std().square() + self.mean.square() * spread).sqrt()

    def kl(self) -> Tensor:
        """One draw of the bound on KL(q‖p), summed."""
        z, log_q = self._draw_scales()
        center = self.groups.expand(z) * self.mean
        weights = self.slots.layout.unflatten(center + deviation(self.log_std)).values()
        each = zip(self._of_each(), z.split(self.groups.sizes), weights, self.groups.shapes, strict=True)
        log_r = [scales.log_auxiliary(own[None], _by_unit(weight, shape)) for scales, own, weight, shape in each]
        return diagonal_kl(center, self.log_std, self._prior()) + log_q - torch.stack(log_r).sum()

    def _moments(self) -> tuple[Tensor, Tensor]:
        return self.center(), self.std()  # those of w, whose scales are not given

    def _of_each(self) -> list[Scales]:
        """The scales of each parameter."""
        return cast(list[Scales], list(self.scales))

    def _draw_scales(self) -> tuple[Tensor, Tensor]:
        """All scales in one vector, and log q of them all."""
        drawn = [s.draw(torch.randn_like(s.mean)[None]) for s in self._of_each()]
        return torch.cat([z[0] for z, _ in drawn]), torch.cat([log_q for _, log_q in drawn]).sum()

    @torch.no_grad()
    def _scale_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of all scales, from draws that are always the same."""
        generator = torch.Generator().manual_seed(0)
        means, variances = [], []
        for scales in self._of_each():
            z, _ = scales.draw(torch.randn(MOMENT_DRAWS, len(scales.mean), generator=generator).to(self.mean))
            means.append(z.mean(0))
            variances.append(z.var(0))
        return torch.cat(means), torch.cat(variances)


def _once(draw: Callable[[int], Tensor]) -> Callable[[int], Tensor]:
    """Draws for so many examples, the same when asked again: a layer that a pass calls twice keeps its scales."""
    drawn: dict[int, Tensor] = {}

    def scales(count: int) -> Tensor:
        if count not in drawn:
            drawn[count] = draw(count)
        return drawn[count]

    return scales


def _by_unit(weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[units, rest]."""
    if max(shape) == 1:  # all weights are of one unit, whichever axis it is on
        return weight.reshape(1, -1)
    axis = max(range(len(shape)), key=lambda i: shape[i])
    return weight.movedim(axis, 0).flatten(1) if weight.ndim > 1 else weight[:, None]


def _log_normal(z: Tensor) -> Tensor:
    return -0.5 * z.square() - 0.5 * math.log(2 * math.pi)
