"""Stochastic-gradient MCMC: optimizers that, with noise of the right size, sample the posterior.

In the units of a mean loss, with ĝ the mini-batch estimate of ∇(−mean log-likelihood), N examples, temperature T
(1 is the Bayes posterior), ξ ~ N(0, I), and g = ĝ + weight_decay·w, where weight_decay = 1/(N std²) holds the prior
N(0, std²) (other priors come in through the gradient):

    SGLD    w ← w − lr g + √(2 lr T/N) ξ                                        (Welling & Teh 2011)
    PSGLD   V ← β V + (1 − β) ĝ²,  G = 1/(ε + √V)
            w ← w − lr G g + √(2 lr G T/N) ξ                                    (Li et al. 2016, 1512.07666)
    SGHMC   v ← (1 − friction) v − lr g + √(2 friction lr T/N) ξ,  w ← w + v    (Chen et al. 2014, 1402.4102)

Multiplying lr by N gives the step on the summed log-posterior that papers write. PSGLD drops the paper's Γ(w), the
derivative of G, as its authors do: it is exact where G does not depend on w. SGHMC with friction 1 is SGLD; with less,
it moves as SGLD would with lr/friction. Without noise (T = 0) SGLD is SGD and SGHMC is SGD with momentum 1 − friction.

On a quadratic loss ½ h w² a step of finite size widens the law: SGLD's variance is T/(N h) · 1/(1 − lr h/2).

Learning rate and temperature are read from the param groups at every step, so a schedule may change both. Noise is
drawn in one call for the whole group, from one generator: give all ranks generators of the same seed, and they keep one
chain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from posterity.types import PosterityError, check_fraction, check_positive

__all__ = ["PSGLD", "SGHMC", "SGLD", "psgld_step", "sghmc_step", "sgld_step"]

Tensors = list[Tensor]


def sgld_step(
    params: Tensors, grads: Tensors, noise: Tensors | None, *, lr: float, noise_std: float, weight_decay: float
) -> None:
    """w ← w − lr g + noise_std ξ, in place."""
    if weight_decay:
        torch._foreach_mul_(params, 1 - lr * weight_decay)
    torch._foreach_add_(params, grads, alpha=-lr)
    if noise is not None:
        torch._foreach_add_(params, noise, alpha=noise_std)


def psgld_step(
    params: Tensors,
    grads: Tensors,
    noise: Tensors | None,
    denominators: Tensors,
    *,
    lr: float,
    noise_std: float,
    weight_decay: float,
) -> None:
    """w ← w − lr g/d + noise_std ξ/√d with d = ε + √V, in place."""
    if weight_decay:
        grads = list(torch._foreach_add(grads, params, alpha=weight_decay))
    torch._foreach_addcdiv_(params, grads, denominators, value=-lr)
    if noise is not None:
        torch._foreach_addcdiv_(params, noise, torch._foreach_sqrt(denominators), value=noise_std)


def sghmc_step(
    params: Tensors,
    grads: Tensors,
    noise: Tensors | None,
    velocities: Tensors,
    *,
    lr: float,
    noise_std: float,
    weight_decay: float,
    friction: float,
) -> None:
    """v ← (1 − friction) v − lr g + √friction noise_std ξ, w ← w + v, in place."""
    torch._foreach_mul_(velocities, 1 - friction)
    torch._foreach_add_(velocities, grads, alpha=-lr)
    if weight_decay:
        torch._foreach_add_(velocities, params, alpha=-lr * weight_decay)
    if noise is not None:
        torch._foreach_add_(velocities, noise, alpha=math.sqrt(friction) * noise_std)
    torch._foreach_add_(params, velocities)


class _Sampler(Optimizer):
    """What the three share: groups, one noise buffer for each, and a state that holds the noise's position."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        num_data: int,
        temperature: float,
        weight_decay: float,
        generator: torch.Generator | None,
        **own: float,
    ) -> None:
        check_positive(lr=lr, num_data=num_data)
        if temperature < 0 or weight_decay < 0:
            raise PosterityError(
                f"temperature and weight_decay must not be negative, got {temperature} and {weight_decay}"
            )
        super().__init__(
            params, {"lr": lr, "num_data": num_data, "temperature": temperature, "weight_decay": weight_decay, **own}
        )
        device = self.param_groups[0]["params"][0].device
        self.generator = generator if generator is not None else _fresh(device)
        self._noise: dict[int, Tensor] = {}

    def update(self, group: dict[str, Any], params: Tensors, noise: Tensors | None, noise_std: float) -> None:
        """One step of one group; ``noise_std`` is √(2 lr T/N)."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every weight that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for index, group in enumerate(self.param_groups):
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                std = math.sqrt(2 * group["lr"] * group["temperature"] / group["num_data"])
                noise = self._draw(index, params) if std > 0 else None
                self.update(group, params, noise, std)
        return loss

    def _draw(self, index: int, params: Tensors) -> Tensors:
        """ξ for every weight: views of one buffer, filled by one call."""
        size = sum(p.numel() for p in params)
        buffer = self._noise.get(index)
        if buffer is None or len(buffer) != size:
            buffer = self._noise[index] = torch.empty(size, device=params[0].device, dtype=params[0].dtype)
        pieces = buffer.normal_(generator=self.generator).split([p.numel() for p in params])
        return [piece.view(p.shape) for piece, p in zip(pieces, params, strict=True)]

    def _state_of(self, params: Tensors, name: str, first: Callable[[Tensor], Tensor]) -> Tensors:
        """One tensor of state for each weight; ``first`` makes it."""
        for p in params:
            if name not in self.state[p]:
                self.state[p][name] = first(p)
        return [self.state[p][name] for p in params]

    def state_dict(self) -> dict[str, Any]:
        """The groups, the state of every weight, and the position of the noise."""
        return {**super().state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the chain where ``state_dict`` was taken, to the same bits."""
        super().load_state_dict(state_dict)
        self.generator.set_state(state_dict["generator"].cpu())


class SGLD(_Sampler):
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

    def update(self, group: dict[str, Any], params: Tensors, noise: Tensors | None, noise_std: float) -> None:
        """One step of one group."""
        sgld_step(
            params,
            _gradients(params),
            noise,
            lr=group["lr"],
            noise_std=noise_std,
            weight_decay=group["weight_decay"],
        )


class PSGLD(_Sampler):
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

    def update(self, group: dict[str, Any], params: Tensors, noise: Tensors | None, noise_std: float) -> None:
        """One step of one group."""
        grads = _gradients(params)
        mean_square = self._state_of(params, "mean_square", _squared_gradient)
        torch._foreach_mul_(mean_square, group["beta"])
        torch._foreach_addcmul_(mean_square, grads, grads, value=1 - group["beta"])
        denominators = list(torch._foreach_sqrt(mean_square))
        torch._foreach_add_(denominators, group["eps"])
        psgld_step(
            params,
            grads,
            noise,
            denominators,
            lr=group["lr"],
            noise_std=noise_std,
            weight_decay=group["weight_decay"],
        )


class SGHMC(_Sampler):
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

    def update(self, group: dict[str, Any], params: Tensors, noise: Tensors | None, noise_std: float) -> None:
        """One step of one group."""
        sghmc_step(
            params,
            _gradients(params),
            noise,
            self._state_of(params, "velocity", torch.zeros_like),
            lr=group["lr"],
            noise_std=noise_std,
            weight_decay=group["weight_decay"],
            friction=group["friction"],
        )


def _gradients(params: Tensors) -> Tensors:
    return [p.grad for p in params if p.grad is not None]


def _squared_gradient(weight: Tensor) -> Tensor:
    return _gradients([weight])[0].square()


def _fresh(device: torch.device) -> torch.Generator:
    """A generator of an unpredictable seed, for a loop that brings none."""
    generator = torch.Generator(device)
    generator.seed()
    return generator
