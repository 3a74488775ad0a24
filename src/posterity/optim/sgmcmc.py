"""Stochastic-gradient MCMC: optimizers that, with noise of the right size, sample the posterior.

In the units of a mean loss, with ĝ the mini-batch estimate of ∇(−mean log-likelihood), N examples, temperature T
(1 is the Bayes posterior), ξ ~ N(0, I), and g = ĝ + weight_decay·w, where weight_decay = 1/(N std²) holds the prior
N(0, std²) (other priors come in through the gradient ĝ, and so into PSGLD's V):

    SGLD    w ← w − lr g + √(2 lr T/N) ξ                                        (Welling & Teh 2011)
    PSGLD   V ← β V + (1 − β) ĝ²,  G = 1/(ε + √V)
            w ← w − lr G g + √(2 lr G T/N) ξ                                    (Li et al. 2016, 1512.07666)
    SGHMC   v ← (1 − friction) v − lr g + √(2 friction lr T/N) ξ,  w ← w + v    (Chen et al. 2014, 1402.4102)

lr/N is the step on the summed log-posterior; papers that write ε/2 there have ε = 2 lr/N. PSGLD drops the paper's
Γ(w), the derivative of G, as its authors do: it is exact where G does not depend on w. SGHMC with friction 1 is SGLD;
with less, it moves as SGLD would with lr/friction. Without noise (T = 0) SGLD is SGD and SGHMC is SGD with momentum
1 − friction.

On a quadratic loss ½ h w² a step of finite size widens the law: SGLD's variance is T/(N h) · 1/(1 − lr h/2).

Learning rate and temperature are read from the param groups at every step, so a schedule may change both. Noise is
drawn in one call for the whole group, from one generator: give all ranks generators of the same seed, and they keep one
chain. Since ξ and −ξ have one law, noise is added to lr·g in its own buffer and the sum taken off by torch's fused SGD.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from posterity.optim.sampler import Sampler, Tensors, gradients
from posterity.types import PosterityError, check_fraction, check_positive

__all__ = ["PSGLD", "SGHMC", "SGLD", "psgld_step", "sghmc_step", "sgld_step"]


def sgld_step(params: Tensors, grads: Tensors, noise: Tensors, *, lr: float, weight_decay: float) -> None:
    """w ← w − lr g − noise, in place; ``noise`` is scaled already, and its memory is reused."""
    torch._foreach_add_(noise, grads, alpha=lr)
    _fused_step(params, noise, [], lr * weight_decay, 0.0)


def psgld_step(
    params: Tensors, grads: Tensors, noise: Tensors, denominators: Tensors, *, lr: float, weight_decay: float
) -> None:
    """w ← w − lr g/d − noise/√d with d = ε + √V, in place; ``noise`` is scaled already."""
    if weight_decay:
        grads = list(torch._foreach_add(grads, params, alpha=weight_decay))
    torch._foreach_addcdiv_(params, grads, denominators, value=-lr)
    torch._foreach_addcdiv_(params, noise, torch._foreach_sqrt(denominators), value=-1)


def sghmc_step(
    params: Tensors,
    grads: Tensors,
    noise: Tensors,
    momenta: Tensors,
    *,
    lr: float,
    weight_decay: float,
    friction: float,
) -> None:
    """m ← (1 − friction) m + lr g + noise, w ← w − m, in place: m = −v; the memory of ``noise`` is reused."""
    torch._foreach_add_(noise, grads, alpha=lr)
    _fused_step(params, noise, momenta, lr * weight_decay, 1 - friction)


def _fused_step(params: Tensors, push: Tensors, momenta: Tensors, decay: float, momentum: float) -> None:
    """m ← momentum·m + push + decay·w, w ← w − m: torch's own SGD step, in one pass over memory.

    It runs through memory without looking at strides, so all tensors must be laid out as the weights are.
    """
    torch._fused_sgd_(
        params,
        push,
        momenta if momentum else [],  # without momentum torch wants none kept
        weight_decay=decay,
        momentum=momentum,
        lr=1.0,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


class SGLD(Sampler):
    """Stochastic-gradient Langevin dynamics.

    Args:
        params: Weights or param groups.
        lr: Step in mean-loss units.
        num_data: N.
        temperature: 1 for the Bayes posterior.
        weight_decay: 1/(N std²) for a prior N(0, std²).
        generator: The noise, on the weights' device; the same seed on all ranks.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        num_data: int,
        *,
        temperature: float = 1.0,
        weight_decay: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(params, lr, num_data, temperature, weight_decay, generator)

    def update(self, group: dict[str, Any], params: Tensors, noise: Tensors) -> None:
        """One step of one group."""
        sgld_step(params, gradients(params), noise, lr=group["lr"], weight_decay=group["weight_decay"])


class PSGLD(Sampler):
    """Preconditioned SGLD: the steps of RMSprop, and noise to match.

    Args:
        params: Weights or param groups.
        lr: Step in mean-loss units, of the preconditioned gradient.
        num_data: N.
        temperature: 1 for the Bayes posterior.
        weight_decay: 1/(N std²) for a prior N(0, std²).
        beta: Decay of the mean squared gradient, which starts at the first squared gradient.
        eps: Keeps the preconditioner finite.
        generator: The noise, on the weights' device; the same seed on all ranks.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        num_data: int,
        *,
        temperature: float = 1.0,
        weight_decay: float = 0.0,
        beta: float = 0.99,
        eps: float = 1e-5,
        generator: torch.Generator | None = None,
    ) -> None:
        check_fraction(beta=beta)
        check_positive(eps=eps)
        super().__init__(params, lr, num_data, temperature, weight_decay, generator, beta=beta, eps=eps)

    def update(self, group: dict[str, Any], params: Tensors, noise: Tensors) -> None:
        """One step of one group."""
        grads = gradients(params)
        mean_square = self._state_of(params, "mean_square", _squared_gradient)
        torch._foreach_mul_(mean_square, group["beta"])
        torch._foreach_addcmul_(mean_square, grads, grads, value=1 - group["beta"])
        denominators = list(torch._foreach_sqrt(mean_square))
        torch._foreach_add_(denominators, group["eps"])
        psgld_step(params, grads, noise, denominators, lr=group["lr"], weight_decay=group["weight_decay"])


class SGHMC(Sampler):
    """Stochastic-gradient Hamiltonian Monte Carlo.

    Args:
        params: Weights or param groups.
        lr: Step in mean-loss units; the chain moves as SGLD's with lr/friction.
        num_data: N.
        temperature: 1 for the Bayes posterior.
        weight_decay: 1/(N std²) for a prior N(0, std²).
        friction: The share of the velocity lost at each step, in (0, 1]; momentum is 1 − friction.
        generator: The noise, on the weights' device; the same seed on all ranks.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        num_data: int,
        *,
        temperature: float = 1.0,
        weight_decay: float = 0.0,
        friction: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        if not 0 < friction <= 1:
            raise PosterityError(f"friction must lie in (0, 1], got {friction!r}")
        super().__init__(params, lr, num_data, temperature, weight_decay, generator, friction=friction)

    def noise_std(self, group: dict[str, Any]) -> float:
        """√(2 friction lr T/N)."""
        return math.sqrt(group["friction"]) * super().noise_std(group)

    def update(self, group: dict[str, Any], params: Tensors, noise: Tensors) -> None:
        """One step of one group."""
        sghmc_step(
            params,
            gradients(params),
            noise,
            self._state_of(params, "momentum", torch.zeros_like),
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            friction=group["friction"],
        )


def _squared_gradient(weight: Tensor) -> Tensor:
    return gradients([weight])[0].square()
