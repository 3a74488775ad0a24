"""Gaussians over the weights: diagonal, full, low rank.

Each holds one family of ``posterity.probability.gaussians`` over the flat vector of the parameters that have a
variance; the other parameters keep their mean in every draw.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from posterity.flat import Layout
from posterity.posteriors.base import WeightPosterior, own_means
from posterity.probability.correlated import Correlated
from posterity.probability.gaussians import DiagonalNormal, FullNormal, LowRankNormal
from posterity.probability.likelihoods import Likelihood
from posterity.probability.priors import Carried, Normal
from posterity.types import Params, PosterityError

__all__ = ["DiagonalGaussian", "FullGaussian", "GaussianPosterior", "LowRankGaussian"]

Family = DiagonalNormal | FullNormal | LowRankNormal


class GaussianPosterior(WeightPosterior):
    """What the three share: a family over the vector of Bayesian parameters, and the mean of the others."""

    family: ClassVar[type]

    def __init__(
        self, module: nn.Module, likelihood: Likelihood, q: Family, bayesian: Layout, means: Params, **options: Any
    ) -> None:
        super().__init__(module, likelihood, **options)
        own = own_means(self.module, means)
        if q.mean.numel() != bayesian.total:
            raise PosterityError(f"{q.mean.numel()} means do not fit {bayesian.total} weights")
        self.q, self.bayesian = q, bayesian
        self.fixed = {name: mean.clone() for name, mean in own.items() if name not in bayesian.names}
        self.module.load_state_dict(own, strict=False)

    def sample(self, generator: torch.Generator | None = None) -> Params:
        """One set of weights."""
        drawn = self.q.sample(self._generator(generator))
        return self._in_order({**self.fixed, **self.bayesian.unflatten(drawn)})

    def mean(self) -> Params:
        """The mean of every parameter."""
        return self._in_order({**self.fixed, **self.bayesian.unflatten(self.q.mean)})

    def variance(self) -> Params:
        """Marginal variances; zero for the fixed parameters."""
        zeros = {name: torch.zeros_like(value) for name, value in self.fixed.items()}
        return self._in_order({**zeros, **self.bayesian.unflatten(self.q.variance())})

    def log_prob(self, params: Params) -> Tensor:
        """Log density of the Bayesian parameters."""
        return self.q.log_prob(self.bayesian.flatten(params))

    def state(self) -> dict[str, Any]:
        """The family's tensors, the fixed parameters, and which names the vector holds."""
        family = {f.name: getattr(self.q, f.name) for f in fields(self.q)}
        return {"family": family, "fixed": self.fixed, "bayesian": list(self.bayesian.names)}

    @classmethod
    def rebuild(cls, module: nn.Module, likelihood: Likelihood, state: dict[str, Any]) -> Self:
        """The posterior that ``state`` was taken from."""
        params = dict(module.named_parameters())
        layout = Layout.of({name: params[name] for name in state["bayesian"]})
        posterior = cls.__new__(cls)
        q = cls.family(**state["family"])
        GaussianPosterior.__init__(
            posterior, module, likelihood, q, layout, {**state["fixed"], **layout.unflatten(q.mean)}
        )
        return posterior


class DiagonalGaussian(GaussianPosterior):
    """Independent weights.

    Args:
        module: The plain network.
        likelihood: How targets arise from its outputs.
        mean: The mean of every parameter.
        std: The standard deviation of those that have one.
    """

    kind, family = "diagonal", DiagonalNormal

    def __init__(self, module: nn.Module, likelihood: Likelihood, mean: Params, std: Params, **options: Any) -> None:
        layout = Layout.of(std)
        q = DiagonalNormal(layout.flatten(mean), layout.flatten(std))
        if bool((q.std < 0).any()):
            raise PosterityError("a posterior's std must not be negative")
        super().__init__(module, likelihood, q, layout, mean, **options)

    def independent_moments(self) -> tuple[Params, Params]:
        """Mean and variance of every parameter."""
        return self.mean(), self.variance()


class FullGaussian(GaussianPosterior):
    """Every Bayesian weight correlated with every other.

    Args:
        module: The plain network.
        likelihood: How targets arise from its outputs.
        mean: The mean of every parameter.
        scale_tril: Lower Cholesky factor of the covariance of the parameters in ``names``, in that order.
        names: Which parameters it covers; all if not given.
    """

    kind, family = "full", FullNormal

    def __init__(
        self,
        module: nn.Module,
        likelihood: Likelihood,
        mean: Params,
        scale_tril: Tensor,
        names: tuple[str, ...] | None = None,
        **options: Any,
    ) -> None:
        layout = Layout.of({name: mean[name] for name in names or tuple(mean)})
        super().__init__(
            module, likelihood, FullNormal(layout.flatten(mean), scale_tril.contiguous()), layout, mean, **options
        )

    def as_prior(self, base: Normal = Normal()) -> Carried:  # noqa: B008 (frozen)
        """The whole Gaussian; parameters that it does not cover take ``base``."""
        scale: Tensor = self.q.scale_tril  # type: ignore[union-attr]
        inverse = torch.linalg.solve_triangular(scale, torch.eye(len(scale)).to(scale), upper=False)
        if not scale.norm() * inverse.norm() < 1 / torch.finfo(scale.dtype).eps:  # nor where it overflows to NaN
            raise PosterityError(
                f"the covariance of these {len(scale):,} weights has no inverse in {scale.dtype}, so that it cannot "
                "become a prior: for many weights and few steps take Laplace(structure='last-layer'), or independent "
                "weights, MeanField()"
            )
        return Correlated(self.q.mean, scale, self.bayesian, base)


class LowRankGaussian(GaussianPosterior):
    """A diagonal plus a few directions of the whole network: covariance diag std² + scale²·deviationsᵀ deviations.

    Args:
        module: The plain network.
        likelihood: How targets arise from its outputs.
        mean: The mean of every parameter.
        std: The standard deviation of the diagonal part.
        deviations: [rank, weights], over the parameters of ``std`` in their order.
        scale: What the deviations are multiplied by; SWAG's is 1/√(2(rank − 1)).
    """

    kind, family = "low-rank", LowRankNormal

    def __init__(
        self,
        module: nn.Module,
        likelihood: Likelihood,
        mean: Params,
        std: Params,
        deviations: Tensor,
        scale: float = 1.0,
        **options: Any,
    ) -> None:
        layout = Layout.of(std)
        q = LowRankNormal(layout.flatten(mean), layout.flatten(std), deviations, scale)
        super().__init__(module, likelihood, q, layout, mean, **options)
