"""The four structures of a Laplace posterior: what they sum over the data, their spectrum, and the Gaussian they give.

With H the curvature of the mean loss over N examples and δ the prior's precision, the posterior's precision is
Λ = N H + δ I. Where its log determinant is needed for many δ, to choose one, it comes from the eigenvalues of N H. A
temperature T multiplies the covariance: T Λ⁻¹.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from posterity import last_layer
from posterity.calling import call, map_inputs
from posterity.curvature import ggn
from posterity.curvature.kfac import KroneckerCurvature
from posterity.curvature.triangular import inverse_root
from posterity.flat import Layout
from posterity.networks import buffers_kept, parameter_uses
from posterity.posteriors import DiagonalGaussian, FullGaussian, KroneckerGaussian, WeightPosterior
from posterity.posteriors.kronecker import MatrixBlock
from posterity.probability.likelihoods import Likelihood
from posterity.types import Batch, Inputs, Params, PosterityError

Precision = float | Tensor
"""δ: one number, one for every weight in the order of ``names``, or a matrix over them."""


LARGEST = 20_000
"""Weights that a full matrix may cover: 1.6 GB in float32."""


class Structure(Protocol):
    """One way to hold N H.

    Attributes:
        names: The parameters that the posterior covers, in the order of its vector.
        network_is_linear: Whether the network is linear in these parameters, whatever it is in others.
    """

    names: tuple[str, ...]
    network_is_linear: bool

    def add(self, module: nn.Module, likelihood: Likelihood, batch: Batch, columns: ggn.Columns) -> None:
        """Add a batch's curvature, summed over its examples."""
        ...

    def scale(self, factor: float) -> None:
        """Multiply N H by a factor, where the batches were only a part of the data."""
        ...

    def decompose(self) -> None:
        """Do once what makes log determinants for many δ cheap."""
        ...

    def log_det(self, precision: Precision) -> Tensor:
        """log det Λ."""
        ...

    def posterior(
        self, module: nn.Module, likelihood: Likelihood, mean: Params, precision: Precision, temperature: float
    ) -> WeightPosterior:
        """N(mean, T Λ⁻¹)."""
        ...


class Diagonal:
    """Only the diagonal of H."""

    network_is_linear = False

    def __init__(self, module: nn.Module) -> None:
        params = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
        self.names = tuple(params)
        self.layout = Layout.of(params)
        self.sum = torch.zeros_like(self.layout.flatten(params))

    def add(self, module: nn.Module, likelihood: Likelihood, batch: Batch, columns: ggn.Columns) -> None:
        """Squared gradients, one backward pass for each column."""
        found = ggn.diagonal(module, likelihood, batch, columns)
        self.sum.add_(self.layout.flatten(found), alpha=len(batch.targets))

    def scale(self, factor: float) -> None:
        """Of the sum over examples."""
        self.sum.mul_(factor)

    def decompose(self) -> None:
        """Nothing to do: the sum is the spectrum."""

    def log_det(self, precision: Precision) -> Tensor:
        """Σ log(N h + δ)."""
        if isinstance(precision, Tensor) and precision.ndim == 2:
            raise PosterityError("a diagonal posterior cannot hold a correlated prior: give prior.independent()")
        return torch.log(self.sum + precision).sum()

    def posterior(
        self, module: nn.Module, likelihood: Likelihood, mean: Params, precision: Precision, temperature: float
    ) -> WeightPosterior:
        """Independent weights of variance T/(N h + δ)."""
        std = ((self.sum + precision) / temperature).rsqrt()
        return DiagonalGaussian(module, likelihood, mean, self.layout.unflatten(std))


class Kronecker:
    """Kronecker factors for Linear layers and convolutions, the diagonal for the rest; one δ for all weights."""

    network_is_linear = False

    def __init__(self, module: nn.Module) -> None:
        self.names = tuple(name for name, p in module.named_parameters() if p.requires_grad)
        self.total: KroneckerCurvature | None = None
        self.count = 0.0

    def add(self, module: nn.Module, likelihood: Likelihood, batch: Batch, columns: ggn.Columns) -> None:
        """Each factor is averaged over the data by itself, as in K-FAC."""
        own = ggn.kronecker(module, likelihood, batch, columns)
        examples = len(batch.targets)
        self.count += examples
        if self.total is None:
            self.total = own
            return
        share = examples / self.count
        for mine, new in zip(self.total.blocks, own.blocks, strict=True):
            mine.input.lerp_(new.input, share)
            mine.output.lerp_(new.output, share)
        for name, value in self.total.diagonal.items():
            value.lerp_(own.diagonal[name], share)

    def scale(self, factor: float) -> None:
        """Only N changes: the factors are means."""
        self.count *= factor

    @cached_property
    def spectrum(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each layer the eigenvalues of N G ⊗ A as a matrix [O, I], and the eigenvectors of G and of A."""
        found = []
        for block in self._curvature.blocks:
            g, left = _eigen(block.output)
            a, right = _eigen(block.input)
            found.append((self.count * torch.outer(g.clamp_min(0), a.clamp_min(0)), left, right))
        return found

    @property
    def _curvature(self) -> KroneckerCurvature:
        if self.total is None:
            raise PosterityError("a Laplace posterior needs data")
        return self.total

    def decompose(self) -> None:
        """Nothing to do: the spectrum is found when it is first asked for, and serves all δ and the posterior."""

    def log_det(self, precision: Precision) -> Tensor:
        """Over the eigenvalues of every block and the diagonal of the rest."""
        if isinstance(precision, Tensor):
            raise PosterityError("Kronecker factors need one prior precision for all weights: give one std, or tune it")
        blocks = [torch.log(values + precision).sum() for values, _, _ in self.spectrum]
        rest = [torch.log(self.count * value + precision).sum() for value in self._curvature.diagonal.values()]
        return torch.stack(blocks + rest).sum()

    def posterior(
        self, module: nn.Module, likelihood: Likelihood, mean: Params, precision: Precision, temperature: float
    ) -> WeightPosterior:
        """Matrix-normal weights in the factors' eigenvectors."""

        def std(curvature: Tensor) -> Tensor:
            return ((curvature + precision) / temperature).rsqrt()

        blocks = [
            MatrixBlock(block.weight, block.bias, left, right, std(values), symmetric=True)
            for block, (values, left, right) in zip(self._curvature.blocks, self.spectrum, strict=True)
        ]
        rest = {name: std(self.count * value) for name, value in self._curvature.diagonal.items()}
        return KroneckerGaussian(module, likelihood, mean, blocks, rest)


class Full:
    """All of H: for small networks."""

    names: tuple[str, ...] = ()
    network_is_linear = False
    sum: Tensor | float = 0.0
    spectrum: Tensor | None = None
    kept: tuple[Precision, Tensor] | None = None

    def __init__(self, module: nn.Module) -> None:
        self.names = tuple(name for name, p in module.named_parameters() if p.requires_grad)
        _check_size(p for p in module.parameters() if p.requires_grad)

    def add(self, module: nn.Module, likelihood: Likelihood, batch: Batch, columns: ggn.Columns) -> None:
        """The whole matrix."""
        found = ggn.full(module, likelihood, batch, columns, self.names)
        self.sum = found.mul_(len(batch.targets)).add_(self.sum)

    def scale(self, factor: float) -> None:
        """Of the sum over examples."""
        self.sum = self.sum * factor

    def _precision(self, precision: Precision) -> Tensor:
        total = torch.as_tensor(self.sum)
        own = torch.as_tensor(precision, dtype=total.dtype, device=total.device)
        if own.ndim == 2:
            return total + own
        total = total.clone()
        total.diagonal().add_(own)
        return total

    def _root(self, precision: Precision) -> Tensor:
        """R with R Rᵀ = Λ⁻¹, kept for the δ that was asked for last: the evidence and the posterior need the same."""
        if self.kept is None or self.kept[0] is not precision:
            self.kept = precision, inverse_root(self._precision(precision))
        return self.kept[1]

    def decompose(self) -> None:
        """The eigenvalues of N H."""
        self.spectrum = torch.linalg.eigvalsh(torch.as_tensor(self.sum)).clamp_min(0)

    def log_det(self, precision: Precision) -> Tensor:
        """Σ log(λ + δ) for one δ and a known spectrum, else of the matrix itself."""
        if isinstance(precision, float) and self.spectrum is not None:
            return torch.log(self.spectrum + precision).sum()
        return -2 * self._root(precision).diagonal().log().sum()

    def posterior(
        self, module: nn.Module, likelihood: Likelihood, mean: Params, precision: Precision, temperature: float
    ) -> WeightPosterior:
        """All weights correlated."""
        return FullGaussian(module, likelihood, mean, self._root(precision) * temperature**0.5, self.names)


class LastLayer(Full):
    """All of H of the last Linear layer, with the layers before it fixed: for any network."""

    network_is_linear = True

    def __init__(self, module: nn.Module) -> None:
        """Which layer it is shows with the first batch."""

    def add(self, module: nn.Module, likelihood: Likelihood, batch: Batch, columns: ggn.Columns) -> None:
        """From the features that reach the layer."""
        if not self.names:
            layer, _, _ = last_layer.features(module, batch.inputs)
            _check_size(layer.parameters())
            own = {id(p) for p in layer.parameters() if p.requires_grad}
            if not own:
                raise PosterityError("the last layer needs no gradient, so it has no posterior: use another structure")
            self.names = tuple(name for name, p in module.named_parameters() if id(p) in own)
            plain = not is_parametrized(layer) and len(own) == len(list(layer.parameters()))
            self.network_is_linear = plain and _used_once(module, batch.inputs, own)
        if self.network_is_linear:
            found = ggn.last_layer(module, likelihood, batch, columns)
        else:  # the features tell the whole curvature only if all of the layer is free, and used once in a pass
            found = ggn.full(module, likelihood, batch, columns, self.names)
        self.sum = found.mul_(len(batch.targets)).add_(self.sum)


STRUCTURES: dict[str, Callable[[nn.Module], Structure]] = {
    "diagonal": Diagonal,
    "kronecker": Kronecker,
    "full": Full,
    "last-layer": LastLayer,
}


def _used_once(module: nn.Module, inputs: Inputs, own: set[int]) -> bool:
    """Whether a pass uses each of these parameters exactly once; two examples are enough to see it."""
    with torch.enable_grad(), buffers_kept(module):
        uses = parameter_uses(call(module, map_inputs(inputs, lambda t: t[:2])))
    return all(uses[p] == 1 for p in own)


def _check_size(params: Iterable[Tensor]) -> None:
    size = sum(p.numel() for p in params)
    if size > LARGEST:
        raise PosterityError(
            f"a full Laplace posterior of {size:,} weights would not fit in memory: use structure='kronecker'"
        )


def _eigen(factor: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors; in double, since single may not converge where dead units repeat an eigenvalue.

    On the CPU, wherever the factor is: on such factors a GPU's solver can end in an illegal memory access, in double,
    too, after which nothing on that GPU can be read (https://github.com/pytorch/pytorch/pull/107082).
    """
    values, vectors = torch.linalg.eigh(factor.double().cpu())
    return values.to(factor), vectors.to(factor)
