"""A network made linear in its weights about their mean, under a Gaussian over the weights (Immer et al. 2008.08400).

    f_w(x) ≈ f(x) + J(x) (w - mean),     J = ∂f/∂w at the mean,     w ~ N(mean, Σ)

so that outputs are exactly Gaussian, N(f(x), J Σ Jᵀ). This is the network for which the Gauss-Newton Laplace posterior
is the exact one, and where its wide variances do no harm. A draw is x ↦ f(x) + J(x) δ, one consistent function, by a
Jacobian-vector product and without a Jacobian; on a CPU several draws go together and share f(x). ``outputs`` gives the
Gaussian itself, and ``probit`` the class probabilities of MacKay's approximation, softmax(f / √(1 + π/8 diag J Σ Jᵀ)).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import singledispatch
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap
from torch.utils._pytree import tree_map

from posterity.calling import arguments, call, check_finite, functional_call, map_inputs, num_examples
from posterity.devices import activation_bytes
from posterity.last_layer import features, parameter_order
from posterity.posteriors.base import WeightPosterior
from posterity.posteriors.gaussian import GaussianPosterior
from posterity.posteriors.kronecker import KroneckerGaussian
from posterity.posteriors.kronecker_outputs import KroneckerOutputs, by_weight
from posterity.posteriors.linear_draws import LinearDraw, LinearDraws
from posterity.prediction.passes import KEEP, Weights, batched, blocks
from posterity.probability.gaussians import DiagonalNormal, FullNormal, LowRankNormal
from posterity.probability.likelihoods import Likelihood
from posterity.probability.priors import Carried, Normal
from posterity.types import Inputs, Params, PosterityError, Predictor
from posterity.unrolled import explained, transformable

__all__ = ["Linearised"]

_FLOATS = 2**24  # of the Jacobians in memory at a time
_CHUNK = 8  # draws of one pass
_CACHE = 2**25  # bytes of their activations that stay in a CPU's cache
_FEWEST = 8  # inputs of one pass, below which calling torch takes longer than what it computes


class Linearised(WeightPosterior):
    """The linearised network under a Gaussian over its weights.

    Args:
        posterior: Diagonal, low-rank, full or Kronecker.
        log_evidence: log p(data) by Laplace's method, where known: the larger the better, among models of one data set.
        network_is_linear: In the random weights, which are those of its last layer: a draw is then the network itself.

    Attributes:
        parts: The posterior over weights, without the linearisation.
    """

    kind = "linearised"
    needs_bank = False

    def __init__(
        self, posterior: WeightPosterior, log_evidence: float | None = None, *, network_is_linear: bool = False
    ) -> None:
        super().__init__(posterior.module, posterior.likelihood, inputs=posterior.inputs, seed=posterior.seed)
        self.parts: list[Any] = [posterior]
        self.log_evidence, self.network_is_linear = log_evidence, network_is_linear

    def draws(self, n: int, generator: torch.Generator | None = None) -> Iterator[Predictor]:
        """n linear functions of the weights."""
        if self.network_is_linear:
            yield from super().draws(n, generator)
            return
        mean = self._unshared()
        for shift in self._shifts(n, generator):
            yield LinearDraw(self.module, mean, shift)

    def _unshared(self) -> Params:
        """The mean, each parameter in memory of its own."""
        # Of one that lies in a vector of all of them, torch's forward mode makes a derivative as long as that vector.
        return {name: m.clone() for name, m in self.mean().items()}

    def _shifts(self, n: int, generator: torch.Generator | None) -> Iterator[Params]:
        """n times δ, for those parameters that are random."""
        generator = self._generator(generator)
        mean = self.mean()
        for _ in range(n):
            drawn = self.sample(generator)
            yield {name: drawn[name] - m for name, m in mean.items() if drawn[name] is not m}

    def drawn_outputs(
        self, inputs: Inputs, n: int, generator: torch.Generator | None = None, block: int | None = None
    ) -> Iterator[Tensor]:
        """What n draws make of the inputs; on a CPU eight draws at a time."""
        if self.device.type != "cpu":
            yield from super().drawn_outputs(inputs, n, generator, block)
            return
        block = block or max(_FEWEST, _CACHE // (_CHUNK * activation_bytes(self.module, inputs)))
        parts = list(blocks(inputs, block))
        together = True
        for draws in self._chunks(n, generator):
            try:
                outputs = [draws(part) for part in parts if together]
            except Exception:  # whatever vmap cannot follow; if the fault is not its own, it is raised again below
                together = False
            yield torch.cat(outputs if together else [draws.one_by_one(part) for part in parts], 1)

    def _chunks(self, n: int, generator: torch.Generator | None) -> Iterable[LinearDraws]:
        """n draws, some at a time; those of the posterior's own seed are kept for the next call unless big."""
        own = generator is None and n * sum(p.numel() for p in self.module.parameters()) <= KEEP
        kept: dict[int, list[LinearDraws]] = self.ways.get("linear draws", {}) if own else {}
        if n in kept:
            return kept[n]
        mean = self._unshared()
        chunks = (
            LinearDraws(self.module, mean, {name: torch.stack([shift[name] for shift in chunk]) for name in chunk[0]})
            for chunk in batched(self._shifts(n, generator), _CHUNK)
        )
        if not own:
            return chunks
        self.ways["linear draws"] = {n: list(chunks)}
        return self.ways["linear draws"][n]

    def samples(self, n: int, generator: torch.Generator | None = None) -> Iterator[Weights] | None:
        """None where a draw is not a set of weights of the network itself."""
        return super().samples(n, generator) if self.network_is_linear else None

    def sample(self, generator: torch.Generator | None = None) -> Params:
        """One set of weights."""
        return self.parts[0].sample(self._generator(generator))

    def mean(self) -> Params:
        """The mean of every parameter."""
        return self.parts[0].mean()

    def variance(self) -> Params:
        """The marginal variance of every parameter."""
        return self.parts[0].variance()

    def log_prob(self, params: Params) -> Tensor:
        """Log density of one set of weights."""
        return self.parts[0].log_prob(params)

    def as_prior(self, base: Normal = Normal()) -> Carried:  # noqa: B008 (frozen)
        """That of the posterior over weights."""
        return self.parts[0].as_prior(base)

    @torch.no_grad()
    def outputs(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Mean [batch, outputs] and covariance [batch, outputs, outputs] of the Gaussian over each input's outputs."""
        if self.inputs is not None:
            self.inputs.check(inputs, next(self.module.parameters()).dtype)
        check_finite(inputs)
        if num_examples(inputs) == 0:
            raise PosterityError("there are no inputs to predict")
        inputs = map_inputs(inputs, lambda t: t.to(self.device))
        if self.network_is_linear:
            return self._last_layer(inputs)
        self._shape(inputs)  # first without derivatives, which may be at fault below
        with explained("torch cannot take this network's derivatives by example", "use predict(draws=32)"):
            by_layers = without_jacobians(self.parts[0], inputs)
            return self._by_jacobians(inputs) if by_layers is None else by_layers

    def _by_jacobians(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """From the Jacobians of the weights, of some inputs at a time."""
        mean, drawn = self.mean(), self.sample()
        free = {name: m for name, m in mean.items() if drawn[name] is not m}
        held = {name: m for name, m in mean.items() if name not in free}
        size = sum(m.numel() for m in free.values()) * self._shape(inputs).numel()
        count = max(1, _FLOATS // size)
        parts = [self._block(part, free, held) for part in blocks(inputs, count)]
        return torch.cat([mean for mean, _ in parts]), torch.cat([covariance for _, covariance in parts])

    def _last_layer(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """J has the features of the last layer in each output's own weights, and zeros elsewhere."""
        layer, phi, mean = features(self.module, inputs)
        root = self.parts[0].q.scale_tril
        place = torch.argsort(parameter_order(layer)).view(layer.out_features, phi.shape[1])
        count = max(1, _FLOATS // (len(root) * layer.out_features))
        found = []
        for part in phi.split(count):
            spread = torch.stack([part @ root[rows] for rows in place], 1)
            found.append(spread @ spread.mT)
        return mean, torch.cat(found)

    @torch.no_grad()
    def _shape(self, inputs: Inputs) -> torch.Size:
        """Of one input's outputs."""
        return call(self.module, map_inputs(inputs, lambda t: t[:1].to(self.device))).shape[1:]

    def _block(self, inputs: Inputs, free: Params, held: Params) -> tuple[Tensor, Tensor]:
        def one(params: Params, own: Any) -> tuple[Tensor, Tensor]:
            args, kwargs = tree_map(lambda t: t.unsqueeze(0), own)
            out = functional_call(self.module, {**held, **params}, args, kwargs).flatten()
            return out, out

        with transformable(self.module):
            jacobian, mean = vmap(jacrev(one, has_aux=True), in_dims=(None, 0))(free, arguments(inputs))
        spread = projected(self.parts[0], jacobian)
        return mean, spread @ spread.mT

    def probit(self, inputs: Inputs) -> Tensor:
        """Class probabilities [batch, ..., classes] in closed form, by the probit approximation."""
        if not self.likelihood.classifies:
            raise PosterityError("the probit approximation is for classes; outputs() has the exact mean and variance")
        mean, covariance = self.outputs(inputs)
        temperature = getattr(self.likelihood, "temperature", 1.0)  # variances are of logits before it divides them
        variance = covariance.diagonal(dim1=-2, dim2=-1) / temperature**2
        logits = mean / torch.sqrt(1 + torch.pi / 8 * variance)
        return self.likelihood.probs(logits.view(-1, *self._shape(inputs)))

    def state(self) -> dict[str, Any]:
        """The evidence, and whether the network is linear; the posterior over weights is stored as a part."""
        return {"log_evidence": self.log_evidence, "network_is_linear": self.network_is_linear}

    @classmethod
    def rebuild(cls, module: nn.Module, likelihood: Likelihood, state: dict[str, Any]) -> Self:
        """The posterior that ``state`` was taken from."""
        linear = state.get("network_is_linear", False)  # files of before it was kept have none
        found = cls(state["parts"][0], state["log_evidence"], network_is_linear=linear)
        found.likelihood = likelihood  # in files of before members shared one, the part's was another
        return found


@singledispatch
def without_jacobians(posterior: WeightPosterior, inputs: Inputs) -> tuple[Tensor, Tensor] | None:
    """Mean and covariance of the outputs, where the posterior's structure and the network's layers spare Jacobians."""
    return None


@without_jacobians.register
def _(posterior: KroneckerGaussian, inputs: Inputs) -> tuple[Tensor, Tensor] | None:
    return KroneckerOutputs(posterior)(inputs)


@singledispatch
def projected(posterior: WeightPosterior, jacobian: Params) -> Tensor:
    """J S [batch, outputs, rank] for a square root S of the covariance, Σ = S Sᵀ, from Jacobians by name."""
    raise PosterityError(f"{type(posterior).__name__} has no covariance to linearise with")


@projected.register
def _(posterior: GaussianPosterior, jacobian: Params) -> Tensor:
    flat = torch.cat([by_weight(jacobian[name]) for name in posterior.bayesian.names], -1)
    return times_root(posterior.q, flat)


@projected.register
def _(posterior: KroneckerGaussian, jacobian: Params) -> Tensor:
    parts = [by_weight(jacobian[name]) * std.flatten() for name, std in posterior.stds.items()]
    for block in posterior.blocks:
        J = jacobian[block.weight].flatten(3)
        J = J if block.bias is None else torch.cat([J, jacobian[block.bias].unsqueeze(-1)], -1)
        parts.append((block.left.T @ J @ block.right * block.scale).flatten(2))
    return torch.cat(parts, -1)


@singledispatch
def times_root(q: object, J: Tensor) -> Tensor:
    """J S for a square root S of the covariance of a Gaussian over one vector."""
    raise PosterityError(f"{type(q).__name__} has no covariance to linearise with")


@times_root.register
def _(q: DiagonalNormal, J: Tensor) -> Tensor:
    return J * q.std


@times_root.register
def _(q: FullNormal, J: Tensor) -> Tensor:
    return J @ q.scale_tril


@times_root.register
def _(q: LowRankNormal, J: Tensor) -> Tensor:
    return torch.cat([J * q.std, q.scale * J @ q.deviations.T.to(J)], -1)
