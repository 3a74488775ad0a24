"""A Gaussian with one covariance for the rows and one for the columns of every weight matrix: K-FAC's posterior.

A layer's weight, with its bias as a last column, is a matrix W [O, I]; a draw is

    W = mean + left (scale ⊙ E) rightᵀ,      E [O, I] standard normal,

so that vec(W), rows first, has the covariance (left ⊗ right) diag(scale²) (left ⊗ right)ᵀ. With scale 1 this is the
matrix normal of Noisy K-FAC; with the eigenvectors of the Kronecker factors as left and right it is the Laplace
posterior of precision N G ⊗ A + δ I, whose scale is 1/√(N λ_G λ_A + δ). Parameters outside such layers are independent,
or fixed where they have no std.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from posterity.posteriors.base import WeightPosterior, own_means
from posterity.probability.gaussians import DiagonalNormal, standard_normal
from posterity.probability.likelihoods import Likelihood
from posterity.types import Params

__all__ = ["KroneckerGaussian", "MatrixBlock"]


@dataclass(frozen=True)
class MatrixBlock:
    """The noise of one layer's weight matrix.

    Attributes:
        weight: Name of the weight, [O, ...] seen as a matrix.
        bias: Name of the bias, the matrix's last column, where there is one.
        left: [O, O].
        right: [I, I], with I counting the bias.
        scale: [O, I].
        symmetric: ``left`` and ``right`` are orthogonal, and E is turned by them first. The draw is then the symmetric
            root of the covariance times E, the same whichever eigenvectors a decomposition happens to find.
    """

    weight: str
    bias: str | None
    left: Tensor
    right: Tensor
    scale: Tensor
    symmetric: bool = False

    def contiguous(self) -> Self:
        """With rows in order in memory, as a file has them: products then round the same."""
        ordered = {name: getattr(self, name).contiguous() for name in ("left", "right", "scale")}
        return replace(self, **ordered)

    def draw(self, generator: torch.Generator | None) -> Tensor:
        """left (scale ⊙ E) rightᵀ."""
        noise = standard_normal(self.scale, tuple(self.scale.shape), generator)
        if self.symmetric:
            noise = self.left.T @ noise @ self.right
        return self.left @ (self.scale * noise) @ self.right.T

    def variance(self) -> Tensor:
        """Of each entry of the matrix."""
        return self.left.square() @ self.scale.square() @ self.right.square().T

    def log_prob(self, deviation: Tensor) -> Tensor:
        """Log density of a deviation from the mean."""
        whitened = torch.linalg.solve(self.right, torch.linalg.solve(self.left, deviation).T).T / self.scale
        rows, columns = self.scale.shape
        log_det = columns * torch.linalg.slogdet(self.left)[1] + rows * torch.linalg.slogdet(self.right)[1]
        density = DiagonalNormal(torch.zeros_like(whitened), torch.ones_like(whitened)).log_prob(whitened)
        return density - log_det - self.scale.log().sum()

    def matrix(self, params: Params) -> Tensor:
        """Weight and bias as one matrix [O, I]."""
        weight = params[self.weight].flatten(1)
        return weight if self.bias is None else torch.cat([weight, params[self.bias].unsqueeze(1)], 1)

    def parameters(self, matrix: Tensor, like: Params) -> Params:
        """A matrix [O, I] as weight and bias."""
        shape = like[self.weight].shape
        columns = math.prod(shape[1:])
        found = {self.weight: matrix[:, :columns].reshape(shape)}
        return found if self.bias is None else {**found, self.bias: matrix[:, columns]}


class KroneckerGaussian(WeightPosterior):
    """Matrix-normal weights.

    Args:
        module: The plain network.
        likelihood: How targets arise from its outputs.
        mean: The mean of every parameter.
        blocks: The layers with a matrix-normal weight.
        std: The standard deviation of those other parameters that have one.
    """

    kind = "kronecker"

    def __init__(
        self,
        module: nn.Module,
        likelihood: Likelihood,
        mean: Params,
        blocks: Sequence[MatrixBlock],
        std: Params | None = None,
        **options: Any,
    ) -> None:
        super().__init__(module, likelihood, **options)
        self.means = {name: value.clone() for name, value in own_means(self.module, mean).items()}
        self.blocks = [block.contiguous() for block in blocks]
        self.stds = dict(std or {})
        self.module.load_state_dict(self.means, strict=False)

    def sample(self, generator: torch.Generator | None = None) -> Params:
        """One set of weights."""
        generator = self._generator(generator)
        drawn = dict(self.means)
        for block in self.blocks:
            noise = block.parameters(block.draw(generator), self.means)
            drawn.update({name: self.means[name] + n for name, n in noise.items()})
        for name, std in self.stds.items():
            drawn[name] = DiagonalNormal(self.means[name], std).sample(generator)
        return drawn

    def mean(self) -> Params:
        """The mean of every parameter."""
        return dict(self.means)

    def variance(self) -> Params:
        """Marginal variances; zero for the fixed parameters."""
        found = {name: torch.zeros_like(mean) for name, mean in self.means.items()}
        for block in self.blocks:
            found.update(block.parameters(block.variance(), self.means))
        return {**found, **{name: std.square() for name, std in self.stds.items()}}

    def log_prob(self, params: Params) -> Tensor:
        """Log density of the parameters that have a variance."""
        blocks = [block.log_prob(block.matrix(params) - block.matrix(self.means)) for block in self.blocks]
        others = [DiagonalNormal(self.means[name], std).log_prob(params[name]) for name, std in self.stds.items()]
        return torch.stack(blocks + others).sum()

    def state(self) -> dict[str, Any]:
        """Means, blocks and stds."""
        blocks = [{f.name: getattr(block, f.name) for f in fields(block)} for block in self.blocks]
        return {"means": self.means, "blocks": blocks, "stds": self.stds}

    @classmethod
    def rebuild(cls, module: nn.Module, likelihood: Likelihood, state: dict[str, Any]) -> Self:
        """The posterior that ``state`` was taken from."""
        blocks = [MatrixBlock(**block) for block in state["blocks"]]
        return cls(module, likelihood, state["means"], blocks, state["stds"])
