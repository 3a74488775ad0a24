"""Likelihoods of one of C classes: over all classes, or over those of one head."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.probability.likelihood import Likelihood, per_example
from posterity.probability.simplex import softmax
from posterity.types import PosterityError, check_positive

__all__ = ["Categorical", "MultiHead"]


@dataclass(frozen=True)
class Categorical(Likelihood):
    """One of C classes; outputs are logits [..., C], targets integers 0 … C−1.

    ``temperature`` divides the logits: above 1 it makes every prediction less sure (``posterity.temper`` finds it).

    ``frequencies`` are for training data in which some classes are rare: how often each class occurs there (counts will
    do, ``targets.bincount()``). Then f stands for log p(x | y), and (Menon et al. 2021, 2007.07314)

        p(y | f) ∝ frequency_y e^{f_y}   of the data: ``log_prob``, ``loss``, ``hessian``, ``sample``
        p(y | f) ∝ e^{f_y}               of a world where classes are equally frequent: ``probs``, all predictions
    """

    classifies: ClassVar[bool] = True

    temperature: float = 1.0
    frequencies: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_positive(temperature=self.temperature)
        frequencies = torch.as_tensor(self.frequencies, dtype=torch.float64)
        if frequencies.ndim != 1 or not (frequencies > 0).all() or not frequencies.isfinite().all():
            raise PosterityError(f"frequencies need a positive number for each class, got {self.frequencies}")
        object.__setattr__(self, "frequencies", tuple(frequencies.tolist()))

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Log softmax at the target, summed over positions."""
        flat = targets.reshape(-1).long()  # integers of any size
        losses = F.cross_entropy(self._observed(outputs).flatten(0, -2), flat, reduction="none")
        return -per_example(losses.view(targets.shape))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Torch's own cross-entropy, where an example is one class."""
        if targets.ndim > 1:
            return super().loss(outputs, targets)
        return F.cross_entropy(self._observed(outputs), targets.long())

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Integer targets within the number of logits."""
        if self.frequencies and len(self.frequencies) != outputs.shape[-1]:
            raise PosterityError(
                f"there are {len(self.frequencies)} class frequencies, but the network has {outputs.shape[-1]} outputs"
            )
        if targets.is_floating_point() or targets.dtype == torch.bool:
            raise PosterityError(f"Categorical needs integer class targets, got {targets.dtype}")
        if outputs.ndim < 2 or outputs.shape[:-1] != targets.shape:
            raise PosterityError(
                f"logits {tuple(outputs.shape)} do not fit targets {tuple(targets.shape)}: one row of logits a target, "
                "classes last"
            )
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= outputs.shape[-1]:
            raise PosterityError(
                f"class targets run from {low} to {high}, but the network has {outputs.shape[-1]} outputs"
            )

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A class for each row of logits."""
        flat = softmax(self._observed(outputs)).flatten(0, -2)
        return torch.multinomial(flat, 1, generator=generator).view(outputs.shape[:-1])

    def hessian(self, outputs: Tensor) -> Tensor:
        """(diag p − p pᵀ)/temperature²."""
        p = softmax(self._observed(outputs))
        return (torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)) / self.temperature**2

    def probs(self, outputs: Tensor) -> Tensor:
        """Softmax."""
        return softmax(self._logits(outputs))

    def label(self, outputs: Tensor) -> Tensor:
        """The largest logit."""
        return self._logits(outputs).argmax(-1)

    def _logits(self, outputs: Tensor) -> Tensor:
        return outputs if self.temperature == 1 else outputs / self.temperature

    def _observed(self, outputs: Tensor) -> Tensor:
        """Logits of the data's own class frequencies."""
        logits = self._logits(outputs)
        return logits + logits.new_tensor(self.frequencies).log() if self.frequencies else logits


@dataclass(frozen=True)
class MultiHead(Categorical):
    """One of C classes where it is known which of several heads (groups of classes) is asked.

    p(y | f) is a softmax over the logits of one head: ``head`` itself, or in training the target's own, so that one
    batch may hold examples of several tasks. Without a head a prediction is over all classes.
    """

    heads: tuple[tuple[int, ...], ...] = ()
    head: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "heads", tuple(tuple(head) for head in self.heads))  # a file has lists
        classes = [c for head in self.heads for c in head]
        if not classes or len(set(classes)) < len(classes):
            raise PosterityError(f"heads must be groups of classes that do not overlap, got {self.heads}")
        if self.head is not None and not 0 <= self.head < len(self.heads):
            raise PosterityError(f"head {self.head} was asked for, but there are {len(self.heads)}")

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Targets that a head has."""
        super().check(outputs, targets)
        known = self.heads[self.head] if self.head is not None else [c for head in self.heads for c in head]
        strange = sorted(set(targets.unique().tolist()) - set(known))
        if strange:
            raise PosterityError(f"class {strange[0]} belongs to no head: expected one of {sorted(known)}")

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Log softmax over the head's logits at the target."""
        return super().log_prob(self._own(outputs, targets), targets)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy over the head's logits."""
        return super().loss(self._own(outputs, targets), targets)

    def hessian(self, outputs: Tensor) -> Tensor:
        """The matrix of the head's logits; zero elsewhere."""
        if self.head is None:
            raise PosterityError("the curvature of several heads depends on which one is asked: give one by head=")
        return super().hessian(outputs)

    def _own(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.head is not None:
            return outputs
        others = _other_heads(self.heads, outputs.shape[-1], outputs.device)
        return outputs.masked_fill(others[targets.long()], -math.inf)

    def _logits(self, outputs: Tensor) -> Tensor:
        logits = super()._logits(outputs)
        if self.head is None:
            return logits
        first = self.heads[self.head][0]
        return logits.masked_fill(_other_heads(self.heads, outputs.shape[-1], outputs.device)[first], -math.inf)


def _other_heads(heads: tuple[tuple[int, ...], ...], classes: int, device: torch.device) -> Tensor:
    """[classes, classes]: whether the second class is in another head than the first."""
    if torch.compiler.is_compiling():  # a tensor of an exporter's trace holds no numbers, and must not be kept
        return _compared(heads, classes, device)
    return _kept(heads, classes, device)


def _compared(heads: tuple[tuple[int, ...], ...], classes: int, device: torch.device) -> Tensor:
    of = {c: number for number, head in enumerate(heads) for c in head}
    number = torch.tensor([of.get(c, -1) for c in range(classes)], device=device)
    return number[:, None] != number


_kept = lru_cache(maxsize=32)(_compared)
