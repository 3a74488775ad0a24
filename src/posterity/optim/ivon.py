"""IVON: a variational Gaussian learned by an optimizer at the cost of Adam (https://arxiv.org/abs/2402.17641).

q(w) = N(m, τ / (N (h + δ̃))) elementwise, with δ̃ = τ δ / N for a prior of precision δ. With ε ~ N(0, 1) and the draw
w = m + s ε of std s = √(τ / (N (h + δ̃))), ĝ the mean gradient of the minibatch at w, and μ₀ the prior's mean,

    ĥ = mean(ĝ ε) / s                                   Price: E[ε g / s] is the expected Hessian diagonal, or
    ĥ = N mean(ĝ²)                                      with ``hessian="squared"``: the larger, the smaller a pass is
    g ← β₁ g + (1 - β₁) ĝ
    h ← h + (1 - β₂)(ĥ - h) + ½ (1 - β₂)² (ĥ - h)² / (h + δ̃)
    m ← m - lr clip((g / (1 - β₁ᵗ) + δ̃ (m - μ₀)) / (h + δ̃))

and lr is multiplied by h₀ + δ̃ when ``rescale_lr`` is set, so that the first step is about lr times the gradient (by
the smallest δ̃ where it differs by weight, and h₀ at most: what an earlier posterior is sure of must move little). The
quadratic term keeps h + δ̃ positive, whatever ĥ; h itself is also kept from falling below zero, so that no variance
exceeds the prior's. Noise that multiplies a gradient must be averaged with it: the statistics are (ĝ, mean(ĝ ε)), never
a mean of gradients times this rank's noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from posterity.optim.flat_group import FlatGroup, PerWeight
from posterity.optim.prior import Group, noise_scale, scaled_precision, with_prior_gradient
from posterity.optim.sampled import SampledOptimizer
from posterity.random import normal_
from posterity.types import PosterityError, check_fraction, check_positive


def hessian_step(hessian: Tensor, excess: Tensor, root: Tensor, beta2: float) -> None:
    """The update of h in place, from ``root`` = √(h + δ̃) and ``excess`` = h - ĥ, whose memory is reused."""
    rate = 1 - beta2
    hessian.sub_(excess, alpha=rate)
    excess.div_(root)
    hessian.addcmul_(excess, excess, value=rate**2 / 2).clamp_(min=torch.finfo(hessian.dtype).tiny)


class IVON(SampledOptimizer):
    """IVON as a torch optimizer: wrap each backward pass in ``sampled_weights()``, then ``step()``.

    Args:
        params: Parameters, named parameters or param groups.
        lr: Learning rate; unlike Adam's it is of the order 0.1.
        num_data: N, the number of training examples.
        prior_precision: δ of the prior N(μ₀, 1/δ), shared or by parameter name. A weight decay per example is δ / N.
        prior_mean: μ₀, zero by default; with ``prior_precision`` by name it carries an earlier posterior.
        hess_init: h₀, about the size of the loss's curvature; too small a value samples too widely at first.
        beta1: Decay of the mean gradient.
        beta2: Decay of the Hessian.
        clip_radius: Largest step of a weight, before lr.
        rescale_lr: Multiply lr by h₀ + δ̃.
        temperature: τ; 1 is the Bayes posterior. Read from the param group at each step.
        hessian: "reparameterised" (Price's theorem) or "squared" gradients.
        generator: Of the noise; see ``FlatOptimizer``.
    """

    state_vectors = ("momentum", "hessian")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        num_data: float,
        *,
        prior_precision: PerWeight = 1.0,
        prior_mean: PerWeight | None = None,
        hess_init: float = 1.0,
        beta1: float = 0.9,
        beta2: float = 0.99999,
        clip_radius: float = math.inf,
        rescale_lr: bool = True,
        temperature: float = 1.0,
        hessian: Literal["reparameterised", "squared"] = "reparameterised",
        generator: torch.Generator | None = None,
    ) -> None:
        check_positive(prior_precision=prior_precision, hess_init=hess_init, temperature=temperature)
        check_fraction(beta1=beta1, beta2=beta2)
        if not lr >= 0 or not clip_radius > 0:
            raise PosterityError(f"lr must be at least 0 and clip_radius above 0, got {lr!r} and {clip_radius!r}")
        defaults = {
            "lr": lr,
            "beta1": beta1,
            "beta2": beta2,
            "hess_init": hess_init,
            "clip_radius": clip_radius,
            "rescale_lr": rescale_lr,
            "temperature": temperature,
            "squared": _squares(hessian),
        }
        super().__init__(
            params,
            defaults,
            num_data=num_data,
            prior_precision=prior_precision,
            prior_mean=prior_mean,
            generator=generator,
        )

    def _prepare(self, group: Group, flat: FlatGroup) -> None:
        flat["hessian"].fill_(group["hess_init"])
        if "hessian" in group:  # a group may have a way of its own
            group["squared"] = _squares(group.pop("hessian"))
        if group["prior_precision"] is None:
            group["least_precision"] = float(flat["prior_precision"].min())
        flat.put_pair("statistics", "gradient", "second")

    @staticmethod
    def _shared_precision(group: Group, delta: float | Tensor) -> float:
        """δ̃; where it differs by weight the least of it, and at most h₀: a carried prior would make steps too long."""
        if not isinstance(delta, Tensor):
            return delta
        least: float = group["least_precision"] * group["temperature"] / group["num_data"]
        return min(least, group["hess_init"])

    def _perturb(self, group: Group, flat: FlatGroup) -> None:
        normal_(flat["noise"], generator=self._generator)
        torch.add(flat["hessian"], scaled_precision(group, flat), out=flat["root"]).sqrt_()
        torch._foreach_addcdiv_(flat.params, flat.views("noise"), flat.views("root"), value=noise_scale(group))

    def _add(self, group: Group, flat: FlatGroup, gradients: list[Tensor], weight: float) -> None:
        """The second statistic is a sum of ĝ ε, or of ĝ²; its constant factors wait for the update."""
        first = self._entries == 0
        torch._foreach_copy_(flat.views("gradient" if first else "scratch"), gradients)
        own = flat["gradient" if first else "scratch"]
        factor = torch.div(own, weight, out=flat["noise"]) if group["squared"] else flat["noise"]
        if first:
            torch.mul(own, factor, out=flat["second"])
        else:
            flat["gradient"].add_(own)
            flat["second"].addcmul_(own, factor)

    def _std(self, group: Group, flat: FlatGroup) -> Tensor:
        """√(τ / (N (h + δ̃)))."""
        precision = flat["hessian"] + scaled_precision(group, flat)
        return precision.rsqrt_().mul_(noise_scale(group))

    def curvature_lost(self) -> float:
        """The share of weights with a Hessian below a hundredth of δ̃, where the prior is wide (δ̃ < h₀).

        Those weights are as good as drawn from the prior. Under a narrow one, as of a task before, that is right.
        """
        lost = []
        for group, flat in self._groups():
            delta = scaled_precision(group, flat)
            lost.append(100 * flat["hessian"] < delta * (delta < group["hess_init"]))
        return float(torch.cat(lost).double().mean())

    def _update(self, group: Group, flat: FlatGroup) -> None:
        delta, hessian, second = scaled_precision(group, flat), flat["hessian"], flat["second"]
        if group["squared"]:
            excess = torch.add(hessian, second, alpha=-group["num_data"], out=second)
        else:
            scale = math.sqrt(group["num_data"] / group["temperature"])
            excess = torch.addcmul(hessian, second, flat["root"], value=-scale, out=second)
        hessian_step(hessian, excess, flat["root"], group["beta2"])
        momentum = flat["momentum"].lerp_(flat["gradient"], 1 - group["beta1"])
        debias = 1 - group["beta1"] ** group["step"]
        gradient = with_prior_gradient(group, flat, momentum, delta, out=flat["gradient"], share=debias)
        precision = torch.add(hessian, delta, out=flat["noise"])  # whose own numbers have done their work
        if group["clip_radius"] < math.inf:
            radius = group["clip_radius"] * debias
            gradient.div_(precision).clamp_(-radius, radius).mul_(precision)
        lr = group["lr"] / debias
        if group["rescale_lr"]:
            lr *= group["hess_init"] + self._shared_precision(group, delta)
        torch._foreach_addcdiv_(flat.params, flat.views("gradient"), flat.views("noise"), value=-lr)


def _squares(hessian: str) -> bool:
    if hessian not in ("reparameterised", "squared"):
        raise PosterityError(f"hessian must be 'reparameterised' or 'squared', got {hessian!r}")
    return hessian == "squared"
