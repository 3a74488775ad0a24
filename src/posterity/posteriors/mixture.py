"""Several posteriors with equal weight: deep ensembles, MultiSWAG, several chains."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posterity.posteriors.base import Posterior, WeightPosterior
from posterity.posteriors.empirical import evenly
from posterity.prediction.passes import Weights
from posterity.probability.likelihoods import Likelihood
from posterity.types import Inputs, Params, PosterityError, Predictor

__all__ = ["Mixture"]


class Mixture(WeightPosterior):
    """Equal weight on each of some posteriors over the same network.

    n draws are spread over the parts in turn, as evenly as possible. Parts with fewer distinct draws than their share
    (points) give each once, so that five points asked for 32 draws are five draws. Beside parts that have more draws,
    they repeat theirs, so that all parts keep equal weight. Every draw has the buffers of its part's network.
    """

    kind = "mixture"
    needs_bank = False

    def __init__(self, parts: Sequence[Posterior]) -> None:
        if not parts:
            raise PosterityError("a mixture needs at least one posterior")
        first = parts[0]
        if any(part.likelihood != first.likelihood for part in parts):
            raise PosterityError("the parts of a mixture must share one likelihood")
        if any(_shapes(part.module) != _shapes(first.module) for part in parts):
            raise PosterityError("the parts of a mixture must be posteriors over one network, got different ones")
        super().__init__(first.module, first.likelihood, inputs=first.inputs, seed=first.seed)
        self.parts = list(parts)
        self.buffers = [_shared_where_equal(part.module, self.module) for part in parts]
        self.history = first.history

    @property
    def distinct(self) -> int | None:
        """The sum over parts, where all are finite."""
        counts = [part.distinct for part in self.parts]
        return None if any(c is None for c in counts) else sum(c for c in counts if c is not None)

    @property
    def most_draws(self) -> int | None:
        """The number of parts times the draws of the part that has fewest."""
        each = [part.most_draws for part in self.parts if part.most_draws is not None]
        return len(self.parts) * min(each) if each else None

    def _shares(self, n: int) -> list[int]:
        """How many draws each part gives."""
        if n < len(self.parts):
            chosen = evenly(n, len(self.parts))
            return [int(i in chosen) for i in range(len(self.parts))]
        low, extra = divmod(n, len(self.parts))
        shares = [low + (i < extra) for i in range(len(self.parts))]
        once = [
            share if p.distinct is None else min(share, p.distinct) for share, p in zip(shares, self.parts, strict=True)
        ]
        return once if len(set(once)) == 1 else shares

    def _sharing(self, n: int) -> list[tuple[Posterior, int]]:
        """The parts that give draws, and how many."""
        return [(part, share) for part, share in zip(self.parts, self._shares(n), strict=True) if share]

    def draws(self, n: int, generator: torch.Generator | None = None) -> Iterator[Predictor]:
        """Functions of the parts in turn."""
        return _in_turn([_repeated(part.draws(share, generator), part, share) for part, share in self._sharing(n)])

    def drawn_outputs(
        self, inputs: Inputs, n: int, generator: torch.Generator | None = None, block: int | None = None
    ) -> Iterator[Tensor]:
        """Outputs of the parts' draws in turn."""
        each = [(part.drawn_outputs(inputs, share, generator, block), part, share) for part, share in self._sharing(n)]
        rows = [((row[None] for some in outputs for row in some), part, share) for outputs, part, share in each]
        return _in_turn([_repeated(*own) for own in rows])

    def samples(self, n: int, generator: torch.Generator | None = None) -> Iterator[Weights] | None:
        """Weights and buffers of the parts in turn, where every part's draws are weights."""
        if any(part.samples(1) is None for part in self.parts):
            return None
        buffers = dict(zip(self.parts, self.buffers, strict=True))
        each = [
            _repeated(_with_buffers(part.samples(share, generator) or (), buffers[part]), part, share)
            for part, share in self._sharing(n)
        ]
        return _in_turn(each)

    def sample(self, generator: torch.Generator | None = None) -> Params:
        """One set of weights of a part chosen at random."""
        generator = self._generator(generator)
        chosen = int(torch.randint(len(self.parts), (), generator=generator, device=generator.device))
        return self._weights()[chosen].sample(generator)

    def mean(self) -> Params:
        """The average of the parts' means."""
        means = [part.mean() for part in self._weights()]
        return {name: torch.stack([m[name] for m in means]).mean(0) for name in means[0]}

    def variance(self) -> Params:
        """Mean variance of the parts plus variance of their means."""
        means, variances = [p.mean() for p in self._weights()], [p.variance() for p in self._weights()]
        within = {name: torch.stack([v[name] for v in variances]).mean(0) for name in means[0]}
        return {name: within[name] + torch.stack([m[name] for m in means]).var(0, correction=0) for name in within}

    def log_prob(self, params: Params) -> torch.Tensor:
        """log mean of the parts' densities."""
        each = torch.stack([part.log_prob(params) for part in self._weights()])
        return torch.logsumexp(each, 0) - math.log(len(each))

    def refresh(self, loader: Iterable[Any], draws: int = 32) -> Mixture:
        """The same mixture, every part with a bank of ``draws`` draws of its own."""
        return Mixture([part.refresh(loader, draws) for part in self._weights()])

    def _weights(self) -> list[WeightPosterior]:
        parts = [part for part in self.parts if isinstance(part, WeightPosterior)]
        if len(parts) < len(self.parts):
            raise PosterityError("this mixture holds posteriors that are not over weights")
        return parts

    def __repr__(self) -> str:
        counts = Counter(map(repr, self.parts))
        return f"Mixture({', '.join(f'{count} × {part}' for part, count in counts.items())})"

    def state(self) -> dict[str, Any]:
        """The parts' states; ``posterity.posteriors.files`` writes and reads them part by part."""
        return {}

    @classmethod
    def rebuild(cls, module: nn.Module, likelihood: Likelihood, state: dict[str, Any]) -> Mixture:
        """A mixture of rebuilt parts."""
        return cls(state["parts"])


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: p.shape for name, p in module.named_parameters()}


def _shared_where_equal(module: nn.Module, first: nn.Module) -> Params:
    """The buffers of a part's network; one that equals the first part's is that very tensor, and is kept once."""
    known = dict(first.named_buffers())
    return {name: known[name] if torch.equal(b, known[name]) else b for name, b in module.named_buffers()}


def _with_buffers(samples: Iterable[Weights], own: Params) -> Iterator[Weights]:
    """A part's draws with the buffers of its network, where a draw does not bring its own."""
    return ((params, {**own, **buffers}) for params, buffers in samples)


def _repeated(draws: Iterator[Any], part: Posterior, share: int) -> Iterator[Any]:
    """As many draws as the part's share, from the first on again where it has fewer."""
    if part.distinct is None or part.distinct >= share:
        return draws
    return itertools.islice(itertools.cycle(list(draws)), share)


def _in_turn(iterators: list[Iterator[Any]]) -> Iterator[Any]:
    """One item of each in turn until all are empty."""
    missing = object()
    for row in itertools.zip_longest(*iterators, fillvalue=missing):
        yield from (item for item in row if item is not missing)
