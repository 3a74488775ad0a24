"""VOGN, variational online Gauss-Newton (https://arxiv.org/abs/1906.02506), and OGN, the same without the noise.

q(w) = N(μ, τ / (Nρ (s + δ̃ + γ))) elementwise, where s follows the mean square of per-example gradients, δ̃ = τ δ / (Nρ)
is the prior's precision δ in the units of the mean loss, ρ counts what data augmentation adds to N, and γ is a damping.
With K draws w ~ q, and ∇ℓᵢ the gradient of example i,

    ĝ = mean over draws and examples of ∇ℓᵢ(w)          ĥ = mean over draws and examples of (∇ℓᵢ(w))²
    m ← β₁ m + ĝ + δ̃ (μ - μ₀)
    s ← β₂ s + (1 - β₂) ĥ
    μ ← μ - lr m / (s + δ̃ + γ)

β₂ is how much of the old curvature is kept, as everywhere in torch; the paper and its code call the new part β₂. The
tempering is the one whose fixed point has the precision N h / τ + δ. With the paper's s ← (1 - τ β₂) s + β₂ ĥ and the
variance 1 / (N (s + δ̃)) the prior would end up weighted by τ; the two agree at τ = 1 only.

ĥ is exactly the mean of squared per-example gradients, convolution biases and BatchNorm included; what that means in
layers before a BatchNorm stands in ``curvature.squared``. BatchNorm's scale and shift stay deterministic and without a
prior unless asked for: their noise would be shared by a whole channel.
"""

from __future__ import annotations

import torch
from torch import nn

from posterity.curvature.squared import SquareCapture
from posterity.optim.flat_group import FlatGroup, PerWeight
from posterity.optim.modules import WatchingOptimizer
from posterity.optim.prior import Group, noise_scale, scaled_precision, with_prior_gradient
from posterity.random import normal_
from posterity.types import PosterityError, check_fraction, check_positive


class VOGN(WatchingOptimizer):
    """VOGN as a torch optimizer for a module: wrap each backward pass in ``sampled_weights()``, then ``step()``.

    Args:
        module: The network; its layers are watched inside ``sampled_weights()`` and untouched outside.
        lr: Learning rate, in units of the natural gradient; schedules change it in the param groups.
        num_data: N, the number of training examples.
        prior_precision: δ of the prior N(μ₀, 1/δ), shared or by parameter name.
        prior_mean: μ₀, zero by default; with ``prior_precision`` by name it carries an earlier posterior.
        damping: γ, added to the curvature in the step and in the variance.
        temperature: τ; 1 is the Bayes posterior. Read from the param groups, so that a schedule can warm it up.
        augmentation_factor: ρ; N counts ρ times where data augmentation makes more of each example.
        init_precision: s₀; the larger, the narrower q and the smaller the steps at first. None takes ĥ of the first
            minibatch, whose step then runs at the mean.
        beta1: Decay of the momentum; the step is up to 1 / (1 - β₁) times the gradient's.
        beta2: Decay of the curvature.
        momentum_correction: Scale the momentum by lr / (last lr), so that it follows a schedule at once.
        stochastic_batchnorm: Sample BatchNorm's scale and shift too, and give them the prior.
        generator: Of the noise; see ``FlatOptimizer``.
    """

    noisy = True

    def __init__(
        self,
        module: nn.Module,
        lr: float,
        num_data: float,
        *,
        prior_precision: PerWeight = 1.0,
        prior_mean: PerWeight | None = None,
        damping: float = 1e-3,
        temperature: float = 1.0,
        augmentation_factor: float = 1.0,
        init_precision: float | None = 1.0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        momentum_correction: bool = False,
        stochastic_batchnorm: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        check_positive(prior_precision=prior_precision, temperature=temperature)
        check_positive(augmentation_factor=augmentation_factor)
        check_fraction(beta1=beta1, beta2=beta2)
        if not lr >= 0 or not damping >= 0 or (init_precision is not None and not init_precision >= 0):
            raise PosterityError(
                f"lr, damping and init_precision must not be negative, got {lr!r}, {damping!r}, {init_precision!r}"
            )
        defaults = {
            "lr": lr,
            "beta1": beta1,
            "beta2": beta2,
            "damping": damping,
            "temperature": temperature,
            "init_precision": init_precision,
            "momentum_correction": momentum_correction,
            "last_lr": None,
        }
        super().__init__(
            module,
            defaults,
            num_data=num_data * augmentation_factor if num_data else num_data,
            prior_precision=prior_precision,
            prior_mean=prior_mean,
            generator=generator,
            stochastic_batchnorm=stochastic_batchnorm,
        )
        self._capture = SquareCapture(module, self._by_name("square"))

    def _prepare(self, group: Group, flat: FlatGroup) -> None:
        super()._prepare(group, flat)
        flat["curvature"].fill_(group["init_precision"] or 0.0)

    def _perturb(self, group: Group, flat: FlatGroup) -> None:
        if self._entries == 0:
            flat["square"].zero_()
        unknown = group["step"] == 0 and group["init_precision"] is None
        if not group["noisy"] or unknown:
            return
        normal_(flat["noise"], generator=self._generator)
        self._precision(group, flat).sqrt_()
        torch._foreach_addcdiv_(flat.params, flat.views("noise"), flat.views("scratch"), value=noise_scale(group))

    def _update(self, group: Group, flat: FlatGroup) -> None:
        keep = group["beta2"] if group["step"] > 1 or group["init_precision"] is not None else 0.0
        flat["curvature"].lerp_(flat["square"], 1 - keep)
        delta = scaled_precision(group, flat)
        gradient = with_prior_gradient(group, flat, flat["gradient"], delta, out=flat["gradient"])
        beta1 = group["beta1"]
        if group["momentum_correction"] and group["last_lr"]:
            beta1 *= group["lr"] / group["last_lr"]
        group["last_lr"] = group["lr"]
        torch.add(gradient, flat["momentum"], alpha=beta1, out=flat["momentum"])
        self._precision(group, flat)
        torch._foreach_addcdiv_(flat.params, flat.views("momentum"), flat.views("scratch"), value=-group["lr"])


class OGN(VOGN):
    """Online Gauss-Newton: VOGN at the mean, without noise; its posterior is a point."""

    noisy = False
