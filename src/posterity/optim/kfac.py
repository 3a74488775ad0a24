"""K-FAC as an optimizer (https://arxiv.org/abs/1503.05671), and Noisy K-FAC (https://arxiv.org/abs/1712.02390).

For a layer's weight matrix W [O, I] (with its bias as a last column), A and G the Kronecker factors of the empirical
Fisher matrix (``curvature.kfac``), N the number of examples, δ the prior's precision, τ the temperature, γ a damping,
and δ̃ = τ δ / N,

    A ← β₂ A + (1 - β₂) Â,   G ← β₂ G + (1 - β₂) Ĝ
    A_d = A + π √(γ + δ̃) I,   G_d = G + √(γ + δ̃) / π I,    π² = (tr A / dim A) / (tr G / dim G)
    M ← β₁ M + ĝ + δ̃ (W - W₀)
    W ← W - lr G_d⁻¹ M A_d⁻¹

Noisy K-FAC takes its gradients and factors at draws from q(W) = MN(mean W, τ/N, G_d⁻¹, A_d⁻¹), whose rows have the
covariance G_d⁻¹ and whose columns A_d⁻¹:

    W + √(τ/N) R_G E R_Aᵀ   with E standard normal and R_G R_Gᵀ = G_d⁻¹, R_A R_Aᵀ = A_d⁻¹,

R = L⁻ᵀ for the Cholesky factor L of A_d or G_d. (Upper factors of the inverse on both sides, as in the reference code,
have another covariance.) Parameters outside Linear layers and ungrouped convolutions are treated as in VOGN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from posterity.curvature.kfac import KroneckerBlock, KroneckerCapture, Sharing, cut_blocks
from posterity.curvature.triangular import cholesky, gram_lower, inverse_lower
from posterity.optim.flat_group import FlatGroup, PerWeight
from posterity.optim.modules import WatchingOptimizer
from posterity.optim.prior import Group, noise_scale, scaled_precision, with_prior_gradient
from posterity.posteriors import KroneckerGaussian, WeightPosterior
from posterity.posteriors.kronecker import MatrixBlock
from posterity.probability.likelihoods import Categorical, Likelihood
from posterity.types import Params, PosterityError, check_fraction, check_positive, check_whole


def damped_roots(A: Tensor, G: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """R_A and R_G with R Rᵀ the inverses of A + π√d I and G + √d/π I."""
    tiny = torch.finfo(A.dtype).tiny
    ratio = (A.diagonal().mean() / G.diagonal().mean().clamp_min(tiny)).clamp_min(tiny)
    pi, root = ratio.sqrt().clamp(1e-6, 1e6), math.sqrt(damping)
    return _inverse_root(A, root * pi), _inverse_root(G, root / pi)


def _inverse_root(matrix: Tensor, damping: Tensor) -> Tensor:
    """L⁻ᵀ of the Cholesky factor L of matrix + damping I."""
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    return inverse_lower(cholesky(matrix + damping * identity)).T


def natural_gradient(M: Tensor, A_inverse: Tensor, G_inverse: Tensor) -> Tensor:
    """G_d⁻¹ M A_d⁻¹."""
    return G_inverse @ M @ A_inverse


def matrix_normal(R_A: Tensor, R_G: Tensor, generator: torch.Generator) -> Tensor:
    """A draw R_G E R_Aᵀ with the covariance G_d⁻¹ ⊗ A_d⁻¹."""
    E = torch.empty(len(R_G), len(R_A), dtype=R_A.dtype, device=R_A.device).normal_(generator=generator)
    return R_G @ E @ R_A.T


class KFAC(WatchingOptimizer):
    """K-FAC for a module, at the mean weights: wrap each backward pass in ``sampled_weights()``, then ``step()``.

    Args:
        module: The network; its layers are watched inside ``sampled_weights()`` and untouched outside.
        lr: Learning rate, in units of the natural gradient.
        num_data: N, the number of training examples.
        prior_precision: δ of the prior N(W₀, 1/δ), one number for all weights.
        prior_mean: W₀, zero by default.
        damping: γ.
        temperature: τ; 1 is the Bayes posterior. Read from the param groups at each step.
        beta1: Decay of the momentum; the step is up to 1 / (1 - β₁) times the gradient's.
        beta2: Decay of the factors.
        refresh: Steps between inversions of the factors; q is that of the latest.
        sharing: How positions that share a weight are counted, "expand" or "reduce".
        generator: Of the noise; see ``FlatOptimizer``.
    """

    noisy = False

    def __init__(
        self,
        module: nn.Module,
        lr: float,
        num_data: float,
        *,
        prior_precision: PerWeight = 1.0,
        prior_mean: PerWeight | None = None,
        damping: float = 1e-2,
        temperature: float = 1.0,
        beta1: float = 0.9,
        beta2: float = 0.99,
        refresh: int = 1,
        sharing: Sharing = "expand",
        generator: torch.Generator | None = None,
    ) -> None:
        if isinstance(prior_precision, Mapping):
            raise PosterityError("K-FAC needs one prior_precision for all weights: one that differs has no factors")
        check_whole(refresh=refresh)
        check_positive(prior_precision=prior_precision, temperature=temperature, refresh=refresh)
        check_fraction(beta1=beta1, beta2=beta2)
        if not lr >= 0 or not damping >= 0:
            raise PosterityError(f"lr and damping must not be negative, got {lr!r} and {damping!r}")
        defaults = {
            "lr": lr,
            "beta1": beta1,
            "beta2": beta2,
            "damping": damping,
            "temperature": temperature,
            "refresh": refresh,
        }
        super().__init__(
            module,
            defaults,
            num_data=num_data,
            prior_precision=prior_precision,
            prior_mean=prior_mean,
            generator=generator,
        )
        self._capture = KroneckerCapture(module, sharing, self._by_name("square"))
        self._parameters = dict(module.named_parameters())
        self._factors = self._persistent("input_factor", "output_factor")
        self._inverses = self._persistent("input_inverse", "output_inverse")
        self._roots = self._persistent("input_root", "output_root") if self.noisy else ()

    def _persistent(self, input_name: str, output_name: str) -> tuple[KroneckerBlock, ...]:
        """Blocks like those of the capture, whose matrices are part of the state of their weight."""
        batch = self._capture.curvature.blocks
        names = [(block.weight, block.bias) for block in batch]
        sizes = [(len(block.output), len(block.input)) for block in batch]
        blocks = cut_blocks(torch.zeros_like(self._capture.factors), names, sizes)
        for block in blocks:
            self.state[self._parameters[block.weight]].update({input_name: block.input, output_name: block.output})
        return blocks

    def _watch(self, weight: float) -> AbstractContextManager[Any]:
        if self._entries == 0:
            self._capture.factors.zero_()
        return super()._watch(weight)

    def _perturb(self, group: Group, flat: FlatGroup) -> None:
        if self._entries == 0:
            flat["square"].zero_()
        if not group["noisy"] or group["step"] == 0:
            return
        scale = noise_scale(group)
        for block in self._roots:
            draw = matrix_normal(block.input, block.output, self._generator)
            self._add_matrix(block, draw, scale)
        precision = self._diagonal_precision(group, flat)
        for name in self._capture.curvature.diagonal:
            if name in precision:
                p = self._parameters[name]
                noise = torch.empty_like(p, memory_format=torch.contiguous_format).normal_(generator=self._generator)
                p.addcdiv_(noise, precision[name].sqrt(), value=scale)

    def _diagonal_precision(self, group: Group, flat: FlatGroup) -> Params:
        """s + δ̃ + γ of this group's parameters, by name."""
        return flat.layout.unflatten(self._precision(group, flat))

    def _add_matrix(self, block: KroneckerBlock, matrix: Tensor, scale: float) -> None:
        """Add a matrix [O, I] to a weight and its bias."""
        weight = self._parameters[block.weight]
        columns = weight[0].numel()
        weight.add_(matrix[:, :columns].reshape(weight.shape), alpha=scale)
        if block.bias is not None:
            self._parameters[block.bias].add_(matrix[:, columns], alpha=scale)

    def posterior(self, module: nn.Module, likelihood: Likelihood | None = None) -> WeightPosterior:
        """A matrix normal for each Linear layer and convolution, or a point without noise."""
        if not self.noisy:
            return super().posterior(module, likelihood)
        module = self._own(module)
        names = {id(p): name for name, p in module.named_parameters()}
        renamed = {own: names[id(p)] for own, p in self._parameters.items() if id(p) in names}  # as the module has them
        scale = noise_scale(self.param_groups[0])
        blocks = [
            MatrixBlock(
                renamed[block.weight],
                None if block.bias is None else renamed[block.bias],
                block.output.clone(),
                block.input.clone(),
                block.input.new_full((len(block.output), len(block.input)), scale),
            )
            for block in self._roots
        ]
        diagonal = {renamed[own] for own in self._capture.curvature.diagonal}
        std = {name: value for name, value in self._stds(module).items() if name in diagonal}
        mean = {name: p.detach() for name, p in module.named_parameters()}
        return KroneckerGaussian(module, likelihood or Categorical(), mean, blocks, std)

    def _accumulators(self, flat: FlatGroup) -> list[Tensor]:
        own = super()._accumulators(flat)
        return [*own, self._capture.factors] if flat is self._flat[0] else own

    def _update(self, group: Group, flat: FlatGroup) -> None:
        first = group["step"] == 1
        keep = 0.0 if first else group["beta2"]
        flat["curvature"].lerp_(flat["square"], 1 - keep)
        delta = scaled_precision(group, flat)
        gradient = with_prior_gradient(group, flat, flat["gradient"], delta, out=flat["gradient"])
        torch.add(gradient, flat["momentum"], alpha=group["beta1"], out=flat["momentum"])
        momentum = flat.layout.unflatten(flat["momentum"])
        if flat is self._flat[0]:
            self._update_blocks(group, momentum, keep, float(delta) + group["damping"])
        precision = self._diagonal_precision(group, flat)
        for name in self._capture.curvature.diagonal:
            if name in precision:
                self._parameters[name].addcdiv_(momentum[name], precision[name], value=-group["lr"])

    def _update_blocks(self, group: Group, momentum: Params, keep: float, damping: float) -> None:
        for number, new in enumerate(self._capture.curvature.blocks):
            factors, inverse = self._factors[number], self._inverses[number]
            factors.input.lerp_(new.input, 1 - keep)
            factors.output.lerp_(new.output, 1 - keep)
            if (group["step"] - 1) % group["refresh"] == 0:
                self._invert(number, damping)
            M = momentum[new.weight].flatten(1)
            M = M if new.bias is None else torch.cat([M, momentum[new.bias].unsqueeze(1)], 1)
            self._add_matrix(new, natural_gradient(M, inverse.input, inverse.output), -group["lr"])

    def _invert(self, number: int, damping: float) -> None:
        """A_d⁻¹ and G_d⁻¹ of a layer, and their roots where there is noise."""
        factors, inverse = self._factors[number], self._inverses[number]
        R_A, R_G = damped_roots(factors.input, factors.output, damping)
        inverse.input.copy_(gram_lower(R_A.T))
        inverse.output.copy_(gram_lower(R_G.T))
        if self.noisy:
            self._roots[number].input.copy_(R_A)
            self._roots[number].output.copy_(R_G)


class NoisyKFAC(KFAC):
    """K-FAC whose gradients and factors are taken at draws from its own matrix-normal posterior."""

    noisy = True
