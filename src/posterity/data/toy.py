"""Small sets that need no file: scikit-learn's digits, and four drawn from known distributions.

Each drawn set states its truth, so that tests and figures can be held against it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from posterity.data.dataset import DataSet, Kind, Pair
from posterity.data.formats import scikit_learn_file

SINE_NOISE_STD = 0.1
SINE_GAP = (-1.0, 1.5)
"""Where `sine` has no training inputs: a good posterior is uncertain in here."""


def digits(generator: torch.Generator) -> DataSet:
    """1,797 handwritten digits of 8 × 8 pixels, grey values in [0, 1]; 500 of them, picked at random, are the test."""
    rows = torch.from_numpy(np.loadtxt(scikit_learn_file("data", "digits.csv.gz"), np.float32, delimiter=","))
    x, y = rows[:, :-1].reshape(-1, 1, 8, 8) / 16, rows[:, -1].long()
    order = torch.randperm(len(x), generator=generator)
    test, train = order[:500], order[500:]
    classes = tuple(str(digit) for digit in range(10))
    return DataSet.standardised("digits", Kind.IMAGE, (x[train], y[train]), (x[test], y[test]), classes=classes)


def two_moons(generator: torch.Generator) -> DataSet:
    """Two interleaving half circles of radius 1, noise of std 0.15: 1,000 points to learn from, 1,000 to test."""

    def draw(n: int) -> Pair:
        y = torch.arange(n) % 2
        angle = math.pi * torch.rand(n, generator=generator)
        side = 1.0 - 2.0 * y  # the upper moon, then the lower one, shifted to the right
        centre = torch.stack([y.float(), 0.5 * y], 1)
        circle = torch.stack([side * angle.cos(), side * angle.sin()], 1)
        return centre + circle + 0.15 * torch.randn(n, 2, generator=generator), y

    return DataSet.standardised("two-moons", Kind.PLANE, draw(1000), draw(1000), classes=("upper", "lower"))


def circles(generator: torch.Generator) -> DataSet:
    """A circle of radius 1 around one of radius 0.5, noise of std 0.1: 1,000 points to learn from, 1,000 to test."""

    def draw(n: int) -> Pair:
        y = torch.arange(n) % 2
        angle = 2 * math.pi * torch.rand(n, generator=generator)
        radius = (1.0 - 0.5 * y).unsqueeze(1)
        circle = torch.stack([angle.cos(), angle.sin()], 1)
        return radius * circle + 0.1 * torch.randn(n, 2, generator=generator), y

    return DataSet.standardised("circles", Kind.PLANE, draw(1000), draw(1000), classes=("outer", "inner"))


def sine(generator: torch.Generator) -> DataSet:
    """Observe y = sin(x) + noise of std 0.1 on [-4, 4]; 200 training inputs leave a gap, 401 test inputs do not."""

    def observe(x: Tensor) -> Pair:
        return x, x.sin() + SINE_NOISE_STD * torch.randn(x.shape, generator=generator)

    left, right = SINE_GAP
    u = torch.rand(200, 1, generator=generator)
    x = torch.where(torch.arange(200).unsqueeze(1) % 2 == 0, -4 + u * (left + 4), right + u * (4 - right))
    return DataSet.standardised("sine", Kind.TABULAR, observe(x), observe(torch.linspace(-4, 4, 401).unsqueeze(1)))


def heteroscedastic_std(x: Tensor) -> Tensor:
    """The noise std of `heteroscedastic`: 0.05 at the left end, 0.65 at the right."""
    return 0.05 + 0.15 * (x + 2)


def heteroscedastic(generator: torch.Generator) -> DataSet:
    """Observe y = x sin(2x) + noise that grows with x, on [-2, 2]: 500 points to learn from, 500 to test."""

    def draw(n: int) -> Pair:
        x = 4 * torch.rand(n, 1, generator=generator) - 2
        return x, x * (2 * x).sin() + heteroscedastic_std(x) * torch.randn(n, 1, generator=generator)

    return DataSet.standardised("heteroscedastic", Kind.TABULAR, draw(500), draw(500))
