"""Monte Carlo dropout: train with dropout, and leave it on (Gal & Ghahramani 2016, 1506.02142).

    p(y | x) ≈ mean_s p(y | f(x; w ⊙ mask_s)),   mask ~ Bernoulli(1 − rate)

The weights are the MAP weights under dropout noise; a draw is one forward pass with fresh masks. The network's own
dropout layers are used. A network without any is refused unless ``insert`` says where to put some: patterns for the
names of the layers whose inputs are to be dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from torch import nn

from posterity.methods.base import Method
from posterity.posteriors import Stochastic
from posterity.posteriors.stochastic import dropout_rates, drops_inside, with_dropout
from posterity.probability.likelihoods import Likelihood
from posterity.run import Run
from posterity.types import Batch, PosterityError

__all__ = ["Dropout"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Dropout(Method):
    """Monte Carlo dropout.

    Attributes:
        rate: The share of units that dropout layers drop; None leaves those of the network as they are. What attention
            and recurrent layers drop inside them stays at their own rates.
        insert: Patterns of layer names whose inputs get a dropout layer of this rate, such as ``("fc*",)``.
    """

    uncarried: ClassVar[str] = "dropout is no distribution over weights"

    rate: float | None = None
    insert: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate < 1:
            raise PosterityError(f"the dropout rate must lie in (0, 1), got {self.rate}")
        if self.insert and self.rate is None:
            raise PosterityError("inserting dropout needs a rate, such as rate=0.1")

    def prepare(self, module: nn.Module) -> nn.Module:
        """A copy with dropout where it was asked for."""
        rates = dropout_rates(module)
        if self.rate is not None:
            rates = dict.fromkeys([*rates, *self._chosen(module)], self.rate)
        if not rates and (self.rate is not None or not drops_inside(module)):
            raise PosterityError(
                "the network has no dropout layer: use Dropout(rate=0.1, insert=('layer name or pattern',)) to add some"
            )
        return with_dropout(module, rates)

    def _chosen(self, module: nn.Module) -> list[str]:
        """The layers that the patterns name; every pattern must name one."""
        names = [name for name, part in module.named_modules() if list(part.parameters(recurse=False))]
        for pattern in self.insert:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise PosterityError(f"no layer fits {pattern!r}; there are {', '.join(names)}")
        return [name for name in names if any(fnmatchcase(name, pattern) for pattern in self.insert)]

    def posterior(self, run: Run, likelihood: Likelihood, batches: Iterable[Batch]) -> Stochastic:
        """The trained network with its dropout left on."""
        return Stochastic(run.module, likelihood)
