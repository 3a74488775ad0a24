"""What is believed of the weights before any data: p(w), independent over weights.

Every hyper-parameter is a number, a tensor, or a mapping from parameter names (or patterns such as ``"*.bias"``) to
numbers or tensors, so one prior can give every layer its own scale. ``std`` is a standard deviation.

    Normal         log p(w) = −(w − mean)²/(2 std²) − log std − ½ log 2π
    EmpiricalNormal  Normal(0, s²) with s at its optimum given q; only inside a KL
    Laplace        log p(w) = −|w|/scale − log 2 scale
    ScaleMixture   p(w) = weight·N(0, wide²) + (1 − weight)·N(0, narrow²)       (Blundell et al. 2015, 1505.05424)
    LogUniform     p(w) ∝ 1/|w|, improper                                       (Molchanov et al. 2017, 1701.05369)
    StudentT       heavy tails: an inverse-gamma mixture of Normals             (a horseshoe-like shrinkage prior)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.flat import Layout
from posterity.probability.hyper import Hyper, beside, described, fitting, hyper_at, hyper_flat, like, log
from posterity.types import Params, PosterityError, check_positive

__all__ = ["EmpiricalNormal", "Laplace", "LogUniform", "Normal", "Prior", "ScaleMixture", "StudentT", "from_posterior"]


@dataclass(frozen=True)
class Prior:
    """A factorised density over weights."""

    def at(self, name: str, shape: Sequence[int] | None = None) -> Self:
        """The prior of one parameter; given its shape, a prior that does not fit it is refused."""
        own = {f.name: hyper_at(getattr(self, f.name), name) for f in fields(self)}
        if shape is not None:
            own = {key: fitting(v, name, shape) if isinstance(v, Tensor) else v for key, v in own.items()}
        return _changed(self, **own)

    def flat(self, layout: Layout) -> Self:
        """The prior of a flat vector of weights."""
        return _changed(self, **{f.name: hyper_flat(getattr(self, f.name), layout) for f in fields(self)})

    def fitted(self, moments: Callable[[], tuple[Tensor, Tensor]], layout: Layout) -> Prior:
        """The prior that a q with these flat (mean, std) is compared with: itself, unless it learns from q."""
        return self

    def log_density(self, weights: Tensor) -> Tensor:
        """log p of each weight, or of all where they are correlated; fit it to the tensor first (``at``, ``flat``)."""
        raise PosterityError(f"{type(self).__name__} has no density")

    def log_prob(self, params: Params) -> Tensor:
        """log p(w), summed over all weights."""
        return torch.stack([self.at(name, w.shape).log_density(w).sum() for name, w in params.items()]).sum()

    def __repr__(self) -> str:
        shown = (f"{f.name}={described(getattr(self, f.name))}" for f in fields(self))
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class Normal(Prior):
    """w ~ N(mean, std²). ``std`` is a standard deviation, not a variance."""

    std: Hyper = 1.0
    mean: Hyper = 0.0

    def __post_init__(self) -> None:
        check_positive(std=self.std)

    def log_density(self, weights: Tensor) -> Tensor:
        """−(w − mean)²/(2 std²) − log std − ½ log 2π."""
        mean, std = beside(self.mean, weights), beside(self.std, weights)
        return -0.5 * ((weights - mean) / std).square() - log(std) - 0.5 * math.log(2 * math.pi)

    @cached_property
    def precision(self) -> Hyper:
        """1/std²; of a prior that was fitted to a tensor."""
        return self.std**-2.0  # of numpy's whole numbers there is no power -2

    @cached_property
    def log_scale(self) -> Hyper:
        """Σ log std where it differs by weight, else log std; of a prior that was fitted to a tensor."""
        return self.std.log().sum() if isinstance(self.std, Tensor) and self.std.ndim else log(self.std)

    def independent(self) -> Normal:
        """Itself: its weights are independent."""
        return self

    def tempered(self, base: Normal, temperature: float) -> Normal:
        """base·(self/base)^(1/temperature): what this prior knows beyond ``base``, to a part."""
        check_temperature(temperature)
        mean, std = {}, {}
        for name in self.std:
            own, other = self.at(name), base.at(name)
            start = like(other.precision, own.std)
            precision = start + (own.precision - start) / temperature
            check_proper(precision, temperature)
            pull = start * other.mean + (own.precision * own.mean - start * other.mean) / temperature
            mean[name], std[name] = pull / precision, precision.rsqrt()
        return Normal(std, mean)

    def renewed(self, where: Params, base: Normal) -> Normal:
        """The same, but with ``base`` for the marked weights: such as the head of a task that has not come yet."""
        mean, std = dict(self.mean), dict(self.std)
        for name, marked in where.items():
            fresh, marked = base.at(name), marked.to(std[name].device)
            std[name] = torch.where(marked, like(fresh.std, std[name]), std[name])
            mean[name] = torch.where(marked, like(fresh.mean, mean[name]), mean[name])
        return Normal(std, mean)


@dataclass(frozen=True, repr=False)
class EmpiricalNormal(Prior):
    """w ~ N(0, s²) with s learned: empirical Bayes, at the s that maximises the ELBO whatever q is.

    The optimum is closed, s² = mean of (mean² + std²) over the weights that share it, and at the optimum the gradient
    of KL(q‖p) in q is that for fixed s. ``per="weight"`` is automatic relevance determination; ``per="unit"`` (rows,
    filters) is heavy-tailed over groups: a unit without use has its scale, and with it all its weights, shrunk away.
    Where data are few and weights many, the best s may be next to nothing, and the network with it: the doctor says
    so, and a fixed Normal is the way out.

    Attributes:
        per: Which weights share one s: those of a ``"parameter"``, of an output ``"unit"``, or none (``"weight"``).
    """

    per: str = "parameter"

    def __post_init__(self) -> None:
        if self.per not in ("parameter", "unit", "weight"):
            raise PosterityError(f"per must be 'parameter', 'unit' or 'weight', got {self.per!r}")

    @torch.no_grad()
    def fitted(self, moments: Callable[[], tuple[Tensor, Tensor]], layout: Layout) -> Normal:
        """The Normal that q itself asks for."""
        mean, std = moments()
        power = mean.square() + std.square()
        if self.per != "weight":
            shared = [_shared_mean(p, self.per == "unit") for p in layout.unflatten(power).values()]
            power = torch.cat([part.reshape(-1) for part in shared])
        return _changed(Normal(), std=power.sqrt())


def _shared_mean(values: Tensor, by_unit: bool) -> Tensor:
    """The mean over a parameter, or over each of its rows, in the place of every weight."""
    kept = 1 if by_unit and values.ndim > 1 else 0
    return values.mean(dim=tuple(range(kept, values.ndim)), keepdim=True).expand_as(values)


@dataclass(frozen=True, repr=False)
class Laplace(Prior):
    """w ~ Laplace(0, scale): the MAP estimate is L1-regularised."""

    scale: Hyper = 1.0

    def __post_init__(self) -> None:
        check_positive(scale=self.scale)

    def log_density(self, weights: Tensor) -> Tensor:
        """−|w|/scale − log(2 scale)."""
        scale = beside(self.scale, weights)
        return -weights.abs() / scale - log(scale) - math.log(2.0)


@dataclass(frozen=True, repr=False)
class ScaleMixture(Prior):
    """Two zero-mean Normals: a share ``weight`` of wide ones, the rest narrow."""

    wide: Hyper = 1.0
    narrow: Hyper = 0.0025
    weight: float = 0.5

    def __post_init__(self) -> None:
        check_positive(wide=self.wide, narrow=self.narrow)
        if not 0 < self.weight < 1:
            raise PosterityError(f"the weight of a scale mixture must lie in (0, 1), got {self.weight!r}")

    def log_density(self, weights: Tensor) -> Tensor:
        """log of the two-component density: that of the wide one, and softplus of the log odds of the narrow one."""
        wide, narrow = beside(self.wide, weights), beside(self.narrow, weights)
        square = weights.square()  # few passes over the weights: on a CPU each costs as much as an exponential
        odds = square * (0.5 * (wide**-2.0 - narrow**-2.0)) + (
            math.log1p(-self.weight) - math.log(self.weight) + log(wide) - log(narrow)
        )
        at_zero = math.log(self.weight) - log(wide) - 0.5 * math.log(2 * math.pi)
        return F.softplus(odds) - square * (0.5 * wide**-2.0) + at_zero


@dataclass(frozen=True, repr=False)
class StudentT(Prior):
    """w ~ scale·t(degrees): most weights near zero, a few far out."""

    scale: Hyper = 1.0
    degrees: float = 3.0

    def __post_init__(self) -> None:
        check_positive(scale=self.scale, degrees=self.degrees)

    def log_density(self, weights: Tensor) -> Tensor:
        """Log density of Student's t."""
        nu, scale = self.degrees, beside(self.scale, weights)
        constant = math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - 0.5 * math.log(nu * math.pi)
        return constant - log(scale) - (nu + 1) / 2 * torch.log1p((weights / scale).square() / nu)


@dataclass(frozen=True, repr=False)
class LogUniform(Prior):
    """p(w) ∝ 1/|w|: scale-free and improper, so only differences of its KL mean anything."""

    def log_density(self, weights: Tensor) -> Tensor:
        """−log|w|, up to the constant that an improper density leaves open."""
        return -weights.abs().log()


class Carried(Protocol):
    """A prior that an earlier posterior has become: ``Normal`` by parameter, or ``correlated.Correlated``."""

    def independent(self) -> Normal:
        """Its marginals, for methods whose weights are independent."""
        ...

    def tempered(self, base: Normal, temperature: float) -> Any:
        """What it knows beyond ``base``, to a part."""
        ...

    def renewed(self, where: Params, base: Normal) -> Any:
        """The same, with ``base`` for the marked weights."""
        ...


class Carries(Protocol):
    """Anything that can become the prior of the next task."""

    def as_prior(self, base: Normal) -> Any:
        """Itself as a prior; parameters without a variance take ``base``."""
        ...


def from_posterior(posterior: Carries, base: Normal | None = None, temperature: float = 1.0) -> Any:
    """Yesterday's posterior as today's prior: p(w | D₁, D₂) ∝ p(D₂ | w) p(w | D₁).

    A full Gaussian is kept whole. Of diagonal, low-rank, Kronecker and empirical posteriors the mean and the variance
    of every weight are kept, and correlations are left out.

    Args:
        posterior: A posterior over weights with variances.
        base: The prior of parameters that the posterior gives no variance; a standard Normal if not given.
        temperature: How much of the past is forgotten: the prior is base·(posterior/base)^(1/temperature). 1 keeps it
            all, infinity leaves ``base``, near 0 freezes the weights.
    """
    base = base or Normal()
    prior = posterior.as_prior(base)
    return prior if temperature == 1 else prior.tempered(base, temperature)


def check_prior(prior: Any) -> None:
    """Refuse what is no prior, such as a number for its std."""
    if not isinstance(prior, Prior):
        raise PosterityError(f"the prior must be one such as priors.Normal(1.0), got {prior!r}")


def check_temperature(temperature: float) -> None:
    """Refuse what is no temperature; infinity is one."""
    if not temperature > 0:
        raise PosterityError(f"the temperature of a carried prior must be positive, got {temperature!r}")


def check_proper(precision: Tensor, temperature: float) -> None:
    """Refuse precisions, or the eigenvalues of one, that are not all positive."""
    if not bool((precision > 0).all()):
        raise PosterityError(
            f"a temperature of {temperature} makes the carried prior improper: some weights have a variance above the "
            "base prior's, so use a temperature of 1 or more"
        )


def _changed(prior: Any, **values: Hyper) -> Any:
    """The prior with other hyper-parameters, unchecked: looking at tensors would wait for the GPU at every step."""
    changed = object.__new__(type(prior))
    for name, value in {**{f.name: getattr(prior, f.name) for f in fields(prior)}, **values}.items():
        object.__setattr__(changed, name, value)
    return changed
