"""Which plain optimizer trains a network, as a small frozen config.

Weight decay is always the coupled kind, added to the gradient: there it is exactly the gradient of a Normal prior,
−∇ log p(w)/N = w/(N std²). Decoupled decay (AdamW) is the gradient of no prior, so it is not offered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from posterity.types import PosterityError

__all__ = ["OptimizerConfig"]


@dataclass(frozen=True)
class OptimizerConfig:
    """``adam`` or ``sgd``.

    Attributes:
        name: Which of the two.
        momentum: Heavy-ball momentum of SGD, first-moment decay of Adam.
        nesterov: SGD's look-ahead form.
        beta2: Second-moment decay of Adam.
    """

    name: str = "adam"
    momentum: float = 0.9
    nesterov: bool = False
    beta2: float = 0.999

    def __post_init__(self) -> None:
        if self.name not in ("adam", "sgd"):
            raise PosterityError(f"unknown optimizer {self.name!r}; there are adam, sgd")

    def build(self, params: Iterable[Tensor], lr: float, weight_decay: float = 0.0) -> Optimizer:
        """The torch optimizer; fused, because one pass over the weights is what a step should cost."""
        if self.name == "sgd":
            return torch.optim.SGD(
                params, lr, momentum=self.momentum, nesterov=self.nesterov, weight_decay=weight_decay, fused=True
            )
        return torch.optim.Adam(params, lr, betas=(self.momentum, self.beta2), weight_decay=weight_decay, fused=True)
