"""Laplace: a Gaussian about the most probable weights, from the curvature there (Daxberger et al. 2106.14806).

    q(w) = N(w*, (N H + δ I)⁻¹)

with w* trained as by MAP, H the generalised Gauss-Newton matrix of the mean loss (or the Monte Carlo or the empirical
Fisher matrix), and δ the prior's precision. The integral of the Gaussian approximates the evidence,

    log p(D) ≈ log p(D | w*) + log N(w*; μ₀, 1/δ) + P/2 log 2π - ½ log det(N H + δ I)
             = log p(D | w*) - ½ δ ‖w* - μ₀‖² + ½ P log δ - ½ log det(N H + δ I),

whose largest value over δ (with w* as it is) gives the prior's precision without held-out data, and which compares
networks. Predictions are of the linearised network, for which q is the exact posterior (``posteriors.linearised``); the
network itself under q is ``posterior.parts[0]``. At a temperature T other than 1 the covariance is T times as wide; the
evidence remains that of T = 1.

Structures: ``kronecker`` for most networks, ``diagonal``, ``full`` for small ones, and ``last-layer`` (full, with the
rest of the network fixed) for any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from numbers import Real
from operator import itemgetter
from typing import Any, Self

import torch
from torch import Tensor, nn

from posterity.calling import InputSpec, call, check_finite, map_batch
from posterity.curvature import ggn
from posterity.data.pieces import pieces, to_train_on
from posterity.flat import Layout
from posterity.methods.base import Method, check_precision
from posterity.methods.laplace_structures import STRUCTURES, Precision, Structure
from posterity.networks import plain_copy, trained_network
from posterity.posteriors import Linearised, WeightPosterior
from posterity.posteriors.linear_draws import LinearDraw
from posterity.posteriors.tempered import minimise
from posterity.probability import likelihoods
from posterity.probability.correlated import Correlated
from posterity.probability.hyper import like
from posterity.probability.likelihood import Likelihood, before_training, check_likelihood
from posterity.probability.priors import Normal
from posterity.run import Run
from posterity.types import Batch, Params, PosterityError, check_positive
from posterity.unrolled import explained

__all__ = ["Laplace"]

CURVATURES = ("ggn", "fisher", "empirical")
PIECE = 500  # examples of one pass when the data comes whole
_OTHERS = "use linearised=False or structure='last-layer'"
_RANGE = 16.0  # |log δ| is sought up to here


@dataclass(frozen=True, kw_only=True, repr=False)
class Laplace(Method):
    """A Gaussian about the MAP weights; parameters that need no gradient stay fixed.

    Attributes:
        prior: A Normal, or an earlier posterior (``priors.from_posterior``). Training uses it as it is; with
            ``tune_prior``, which needs a prior with one std for all weights, the posterior has a precision of its own.
        structure: ``"kronecker"``, ``"diagonal"``, ``"full"`` or ``"last-layer"``.
        curvature: ``"ggn"``, ``"fisher"`` (with drawn labels) or ``"empirical"``.
        tune_prior: Choose the prior's precision by the evidence.
        linearised: Predict with the linearised network; without it, with the network itself.
        temperature: 1 for the Bayes posterior; a network itself, drawn from that, often predicts next to nothing.
    """

    structure: str = "kronecker"
    curvature: str = "ggn"
    tune_prior: bool = True
    linearised: bool = True
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.structure not in STRUCTURES:
            raise PosterityError(f"structure must be one of {', '.join(STRUCTURES)}, got {self.structure!r}")
        if self.curvature not in CURVATURES:
            raise PosterityError(f"curvature must be one of {', '.join(CURVATURES)}, got {self.curvature!r}")
        if not isinstance(self.prior, Normal | Correlated):
            raise PosterityError(f"Laplace needs a Normal prior, got {self.prior!r}")
        if self.tune_prior and not (isinstance(self.prior, Normal) and isinstance(self.prior.std, Real)):
            raise PosterityError(
                "the prior has a precision for each weight, and tune_prior=True would put one for all in its place: "
                "give tune_prior=False"
            )
        check_positive(temperature=self.temperature)

    def carrying(self, prior: Any, std: Params | None = None) -> Self:
        """With the precision that the prior brings; whole where the structure can hold it, else its marginals."""
        if self.structure == "kronecker":
            raise PosterityError(
                "Kronecker factors cannot hold a prior that differs by weight: carry a Laplace posterior on with "
                "structure='full', 'diagonal' or 'last-layer'"
            )
        return replace(self, prior=prior.independent() if self.structure == "diagonal" else prior, tune_prior=False)

    def prepare(self, module: nn.Module) -> nn.Module:
        """A copy, of a network in the precision that its factors need."""
        check_precision(self, module)
        return super().prepare(module)

    def check(self, module: nn.Module, likelihood: Likelihood, batch: Batch) -> None:
        """The curvature of two examples, and what linearised predictions are made of."""
        check_precision(self, module)
        few, network = next(_small([batch], next(module.parameters()).device, 2)), _trainable_copy(module)
        structure = STRUCTURES[self.structure](network)
        columns = self._columns(torch.Generator(few.targets.device))
        structure.add(network, before_training(likelihood), few, columns)
        if self.linearised and not structure.network_is_linear:
            mean = {name: p.detach().clone() for name, p in network.named_parameters()}
            draw = LinearDraw(network, mean, {name: mean[name] for name in structure.names})
            with explained("torch cannot make this network linear in its weights", _OTHERS):
                draw(few.inputs)

    def posterior(self, run: Run, likelihood: Likelihood, batches: Iterable[Batch]) -> WeightPosterior:
        """One pass over the data at the trained weights."""
        return self._about(run.module, likelihood, batches, run.streams.shared, run.plan.num_data)

    def post_hoc(self, module: nn.Module, data: Any, likelihood: Likelihood | None = None) -> WeightPosterior:
        """The posterior about the weights that a module has, however it was trained.

        Args:
            module: A trained network; not changed.
            data: Its training data: a pair of tensors, a Dataset, a loader or a ``DataSet`` (its training part).
            likelihood: How targets arise from outputs; None takes it from the type of the targets.
        """
        module = trained_network(module)
        device = next(module.parameters()).device
        batches = _small(pieces(to_train_on(data), PIECE), device)
        first = next(batches, None)
        if first is None:
            raise PosterityError("a Laplace posterior needs data")
        likelihood = likelihood or likelihoods.infer(first.targets)
        check_likelihood(likelihood)
        self.check(module, likelihood, first)
        generator = torch.Generator(device).manual_seed(0)
        posterior = self._about(module, likelihood, chain([first], batches), generator)
        posterior.inputs = InputSpec.of(first.inputs)
        return posterior

    def _about(
        self,
        module: nn.Module,
        likelihood: Likelihood,
        batches: Iterable[Batch],
        generator: torch.Generator,
        num_data: int | None = None,
    ) -> WeightPosterior:
        """The posterior about a network's own weights.

        Where the batches hold fewer examples than ``num_data``, as of a loader that drops its last batch, fit and
        curvature are scaled up to that number.
        """
        check_precision(self, module)
        network = _trainable_copy(module)
        structure = STRUCTURES[self.structure](network)
        columns, fit, seen = self._columns(generator), 0.0, 0
        for batch in batches:
            check_finite(batch.inputs)
            with torch.no_grad():
                outputs = call(network, batch.inputs)
                likelihood.check(outputs, batch.targets)
                fit += float(batch.weighted(likelihood.log_prob(outputs, batch.targets)).sum())
            structure.add(network, likelihood, batch, ggn.weighted(columns, batch.weights))
            seen += len(batch.targets)
        if num_data is not None and num_data != seen:
            structure.scale(num_data / seen)
            fit *= num_data / seen
        mean = {name: p.detach() for name, p in network.named_parameters()}
        precision, log_prior = self._precision(structure, mean)
        posterior = structure.posterior(network, likelihood, mean, precision, self.temperature)
        if not self.linearised:
            return posterior
        return Linearised(posterior, fit + log_prior, network_is_linear=structure.network_is_linear)

    def _columns(self, generator: torch.Generator) -> ggn.Columns:
        """What gives, for each example, the columns c of a square root Σ_s c_s c_sᵀ of the curvature in the outputs."""
        return {
            "ggn": ggn.gauss_newton,
            "fisher": ggn.monte_carlo_fisher(1, generator),
            "empirical": ggn.empirical_fisher,
        }[self.curvature]

    def _precision(self, structure: Structure, mean: Params) -> tuple[Precision, float]:
        """δ, and what the evidence has besides the fit: -½ δ ‖w* - μ₀‖² + ½ P log δ - ½ log det(N H + δ I)."""
        layout = Layout.of({name: mean[name] for name in structure.names})
        prior: Any = self.prior.flat(layout)
        center = layout.flatten(mean)
        offset = center - like(prior.mean, center)

        def rest(delta: Precision) -> float:
            log_scale, distance = prior_terms(like(delta, offset), offset)
            return float(0.5 * (log_scale - distance - structure.log_det(delta)))

        if self.tune_prior:
            structure.decompose()
            delta: Precision = math.exp(minimise(lambda log: -rest(math.exp(log)), -_RANGE, _RANGE))
        else:
            own = prior.precision
            delta = own.to(offset) if isinstance(own, Tensor) else float(own)
        return delta, rest(delta)


def _trainable_copy(module: nn.Module) -> nn.Module:
    """A copy in eval mode whose parameters need gradients where the module's do; all, where none of its own does.

    That is so of a posterior's network.
    """
    network = plain_copy(module)
    trained = [p.requires_grad for p in module.parameters()]
    for p, needed in zip(network.parameters(), trained, strict=True):
        p.requires_grad_(needed or not any(trained))
    return network


def prior_terms(delta: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """log det δ and (w* - μ₀)ᵀ δ (w* - μ₀), for one δ, one of each weight, or a matrix."""
    if delta.ndim == 2:
        return torch.linalg.slogdet(delta)[1], offset @ delta @ offset
    return delta.log().expand(len(offset)).sum(), (delta * offset.square()).sum()


def _small(batches: Iterable[Batch], device: torch.device, size: int = PIECE) -> Iterator[Batch]:
    """Pieces of at most so many examples, on the device."""
    for batch in batches:
        for start in range(0, len(batch.targets), size):
            piece = map_batch(batch, itemgetter(slice(start, start + size)))
            yield map_batch(piece, lambda t: t.to(device))
