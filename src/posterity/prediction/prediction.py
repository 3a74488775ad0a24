"""What a posterior says about new inputs, and how unsure it is, and why.

For classes, with p_s the probabilities of draw s and p̄ their mean:

    entropy    H[p̄]                                  total uncertainty, in nats
    aleatoric  mean_s H[p_s]                          what no amount of data takes away
    epistemic  H[p̄] − mean_s H[p_s]  ≥ 0              mutual information of label and weights: what more data takes away

and as covariances (Kwon et al. 2020): diag p̄ − p̄p̄ᵀ = mean_s (diag p_s − p_s p_sᵀ) + mean_s (p_s − p̄)(p_s − p̄)ᵀ.
For numbers, by the law of total variance: variance = mean_s Var[y | f_s] + Var_s E[y | f_s].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from posterity.probability.likelihoods import Likelihood
from posterity.probability.simplex import entropy, moments
from posterity.types import PosterityError, check_level

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Classification", "Prediction", "Regression"]

_CACHE_FLOATS = 2**17  # of a mixture's components at a time


@dataclass(frozen=True, eq=False)
class Prediction:
    """What classification and regression share.

    Attributes:
        draws: How many draws of the network it averages.
        samples: The draws themselves where they were asked for: probabilities or outputs, [draws, batch, ...].
        error: ``monte_carlo_error``, on the device: nobody waits for it there until it is asked for.
    """

    draws: int
    samples: Tensor | None
    error: Tensor | float

    if TYPE_CHECKING:  # at run time a property would be the default of a subclass's field of the same name

        @property
        def probs(self) -> Tensor:
            """Class probabilities; a regression has none."""

        @property
        def label(self) -> Tensor:
            """The most probable class; a regression has none."""

        @property
        def mean(self) -> Tensor:
            """The expected target; the probabilities where it is a class."""

        @property
        def std(self) -> Tensor:
            """Standard deviation of the target; of each class's probability over draws where it is a class."""

        @property
        def entropy(self) -> Tensor:
            """All uncertainty together, in nats."""

        @property
        def aleatoric(self) -> Tensor:
            """What no amount of data takes away: nats for classes, a variance for numbers."""

        @property
        def epistemic(self) -> Tensor:
            """What more data takes away, in the same units."""

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """The central interval that holds a number with this probability; classes have none."""
        raise PosterityError("classes have no interval: use probs, or posterity.conformal for sets of labels")

    @property
    def monte_carlo_error(self) -> float:
        """The largest standard error that the finite number of draws leaves in ``probs`` or ``mean``."""
        return float(self.error)

    def columns(self) -> dict[str, Tensor]:
        """What a table or a file shows of a prediction: one row an input."""
        raise NotImplementedError

    def log_prob(self, targets: Tensor) -> Tensor:
        """Log predictive density of each target."""
        raise NotImplementedError

    def to(self, device: torch.device | str) -> Self:
        """The same prediction on another device."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {name: v.to(device) for name, v in own.items() if isinstance(v, Tensor)}
        return replace(self, **moved)

    def numpy(self) -> dict[str, np.ndarray]:
        """The columns as numpy arrays."""
        return {name: column.cpu().numpy() for name, column in self.columns().items()}

    def table(self) -> Table:
        """The answers as a rich table: one row an input, or one a target or word of it where it has several."""
        from rich.table import Table  # here, because predictions are made without the command line's packages

        table = Table("input", *self._shown(), title=f"{type(self).__name__}, {self.draws} draws", title_justify="left")
        for row in self._rows():
            table.add_row(*row)
        return table

    def _rows(self, most: int | None = None) -> Iterator[list[str]]:
        """Where an answer stands among the inputs, and what there is to see of it."""
        columns = [column.cpu().numpy() for column in self._shown().values()]
        for place in itertools.islice(np.ndindex(columns[0].shape), most):
            values = [column[place].item() for column in columns]
            yield [", ".join(map(str, place)), *(f"{v:.4g}" if isinstance(v, float) else str(v) for v in values)]

    def _shown(self) -> dict[str, Tensor]:
        """The columns for a quick look: all but those that take a search, as quantiles do."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(next(iter(self._shown().values())))

    def __repr__(self) -> str:
        means = {name: c.double().mean() for name, c in self._shown().items() if c.is_floating_point()}
        shown = ", ".join(f"{name} {mean:.3g}" for name, mean in means.items())
        return f"{type(self).__name__}({len(self)} inputs, {self.draws} draws; mean {shown})"

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{name}</th>" for name in ("input", *self._shown()))
        rows = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in self._rows(10))
        return f"<table><caption>{type(self).__name__}, {self.draws} draws</caption><tr>{heads}</tr>{rows}</table>"


@dataclass(frozen=True, eq=False, repr=False)
class Classification(Prediction):
    """Class probabilities and their decomposition. All entropies in nats.

    Attributes:
        probs: p̄, the mean over draws, [batch, ..., classes].
        aleatoric: Mean entropy over draws, [batch, ...].
        variance: Variance of each class probability over draws, [batch, ..., classes].
    """

    probs: Tensor
    aleatoric: Tensor
    variance: Tensor

    @cached_property
    def label(self) -> Tensor:
        """The most probable class."""
        return self.probs.argmax(-1)

    @cached_property
    def confidence(self) -> Tensor:
        """The probability of the most probable class."""
        return self.probs.amax(-1)

    @cached_property
    def entropy(self) -> Tensor:
        """H[p̄], all uncertainty together."""
        return entropy(self.probs)

    @property
    def epistemic(self) -> Tensor:
        """H[p̄] − mean H[p_s]: how much the draws disagree; where they agree, rounding must not make it negative."""
        return (self.entropy - self.aleatoric).clamp_min(0)

    @property
    def std(self) -> Tensor:
        """Standard deviation of each class probability over draws."""
        return self.variance.clamp_min(0).sqrt()

    @property
    def mean(self) -> Tensor:
        """The probabilities: the mean of the one-hot label."""
        return self.probs

    @property
    def epistemic_variance(self) -> Tensor:
        """Diagonal of mean (p_s − p̄)(p_s − p̄)ᵀ."""
        return self.variance

    @property
    def aleatoric_variance(self) -> Tensor:
        """Diagonal of mean (diag p_s − p_s p_sᵀ); with the epistemic one it sums to p̄(1 − p̄)."""
        return self.probs * (1 - self.probs) - self.variance

    def covariances(self) -> tuple[Tensor, Tensor]:
        """The whole (aleatoric, epistemic) covariance matrices, [batch, ..., classes, classes]; needs ``samples``."""
        if self.samples is None:
            raise PosterityError("covariance matrices need the draws: predict(..., keep_samples=True)")
        outer = torch.einsum("s...i,s...j->...ij", self.samples, self.samples) / len(self.samples)
        mean = self.samples.mean(0)
        return torch.diag_embed(mean) - outer, outer - mean.unsqueeze(-1) * mean.unsqueeze(-2)

    def log_prob(self, targets: Tensor) -> Tensor:
        """log p̄(y)."""
        tiny = torch.finfo(self.probs.dtype).tiny
        labels = targets.long().reshape(*self.probs.shape[:-1], 1)  # yes or no may come as [B, 1] already
        return self.probs.gather(-1, labels).squeeze(-1).clamp_min(tiny).log()

    def _shown(self) -> dict[str, Tensor]:
        """Label, confidence and the three uncertainties."""
        return {
            "label": self.label,
            "confidence": self.confidence,
            "entropy": self.entropy,
            "aleatoric": self.aleatoric,
            "epistemic": self.epistemic,
        }

    def columns(self) -> dict[str, Tensor]:
        """Label, confidence, the three uncertainties, and the probabilities."""
        return {**self._shown(), "probs": self.probs}


@dataclass(frozen=True, eq=False, repr=False)
class Regression(Prediction):
    """Mean and variance, the two parts of the variance, and the whole mixture for quantiles.

    Attributes:
        mean: E[y].
        aleatoric: Mean noise variance over draws.
        epistemic: Variance of E[y | f] over draws.
        components: Outputs of the draws that quantiles and densities are taken from, [draws, batch, ...].
        likelihood: How a target arises from an output.
    """

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    components: Tensor
    likelihood: Likelihood

    @property
    def variance(self) -> Tensor:
        """Aleatoric + epistemic."""
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Tensor:
        """Standard deviation of the predictive distribution."""
        return self.variance.sqrt()

    @property
    def entropy(self) -> Tensor:
        """½ log(2πe variance): the entropy of the moment-matched Gaussian, in nats."""
        return 0.5 * torch.log(2 * torch.pi * torch.e * self.variance)

    @property
    def probs(self) -> Tensor:
        """Only classes have probabilities."""
        raise PosterityError("a regression has no class probabilities: use mean, std and interval")

    @property
    def label(self) -> Tensor:
        """Only classes have labels."""
        raise PosterityError("a regression has no labels: use mean, std and interval")

    def cdf(self, values: Tensor) -> Tensor:
        """P(y ≤ value) under the mixture of draws."""
        if values.numel() == self.mean.numel():  # [B] beside means [B, 1] would be every value for every input
            values = values.reshape(self.mean.shape)
        sums = [self.likelihood.cdf(some, values).sum(0) for some in self._chunks()]
        return torch.stack(sums).sum(0) / len(self.components)

    def _chunks(self) -> Iterable[Tensor]:
        """The components, on a CPU a few at a time: fresh memory for all would cost more than what is computed."""
        cpu = self.components.device.type == "cpu"
        return self.components.split(max(1, _CACHE_FLOATS // self.mean.numel())) if cpu else (self.components,)

    def quantile(self, level: float) -> Tensor:
        """The smallest value that y does not exceed with this probability, by bisection on the mixture."""
        check_level(level, "a quantile")
        mean, spread = moments(self.likelihood.mean(self.components))
        std = (spread + self.likelihood.variance(self.components).mean(0)).sqrt()
        reach = std / math.sqrt(level * (1 - level))  # no quantile of any distribution lies further out (Cantelli)
        low, high = mean - reach, mean + reach + self.likelihood.counts  # a rare count is a step away
        for _ in range(60):
            middle = (low + high) / 2
            if bool(((middle == low) | (middle == high)).all()):
                break  # no number lies between them
            below = self.cdf(middle) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return high.floor() if self.likelihood.counts else (low + high) / 2

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """The central interval that holds y with this probability."""
        check_level(level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def log_prob(self, targets: Tensor) -> Tensor:
        """log mean_s p(y | f_s)."""
        each = torch.stack([self.likelihood.log_prob(f, targets) for f in self.components])
        return torch.logsumexp(each, 0) - math.log(len(each))

    def _shown(self) -> dict[str, Tensor]:
        """Mean, standard deviation and its two parts."""
        columns = {"mean": self.mean, "std": self.std}
        columns |= {"aleatoric_std": self.aleatoric.sqrt(), "epistemic_std": self.epistemic.sqrt()}
        return _by_input(columns)

    def columns(self) -> dict[str, Tensor]:
        """Mean, standard deviation, the 95% interval, and the two parts of the standard deviation."""
        low, high = self.interval(0.95)
        shown = self._shown()
        ends = _by_input({"low95": low, "high95": high})
        return {name: shown[name] for name in ("mean", "std")} | ends | shown


def _by_input(columns: dict[str, Tensor]) -> dict[str, Tensor]:
    """One number an input where there is one target."""
    return {name: c.squeeze(-1) if c.ndim > 1 and c.shape[-1] == 1 else c for name, c in columns.items()}
