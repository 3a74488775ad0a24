"""Networks of fully connected layers. Images are flattened, so they take any input."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn


def mlp(
    inputs: int, outputs: int, hidden: Sequence[int] = (100, 100), activation: Callable[[], nn.Module] = nn.ReLU
) -> nn.Sequential:
    """A multi-layer perceptron: ``inputs`` → hidden widths → ``outputs``."""
    widths = [inputs, *hidden, outputs]
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, (wide, narrow) in enumerate(pairwise(widths), 1):
        if number > 1:
            layers[f"act{number - 1}"] = activation()
        layers[f"fc{number}"] = nn.Linear(wide, narrow)
    return nn.Sequential(layers)


def lenet_300_100(shape: Sequence[int], outputs: int = 10) -> nn.Sequential:
    """LeNet-300-100, the sparsity papers' dense network: 266,610 parameters on MNIST."""
    return mlp(math.prod(shape), outputs, (300, 100))
