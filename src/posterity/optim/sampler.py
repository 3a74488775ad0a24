"""What the stochastic-gradient samplers share: one draw of noise for all weights of a group, and complete state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from posterity.random import normal_
from posterity.types import PosterityError, check_positive

__all__ = ["Sampler", "Tensors", "gradients"]

Tensors = list[Tensor]


class Sampler(Optimizer):
    """Base of SGLD, PSGLD and SGHMC: param groups, one noise buffer for each, and a state with the noise's position.

    Args:
        params: Weights or param groups.
        lr: Step in mean-loss units.
        num_data: N.
        temperature: 1 for the Bayes posterior.
        weight_decay: 1/(N std²) for a prior N(0, std²).
        generator: The noise, on the weights' device; the same seed on all ranks. None takes an unpredictable one.
        **own: The sampler's own hyper-parameters of a group.
    """

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
        if not temperature >= 0 or not weight_decay >= 0:  # NaN would pass for no noise
            raise PosterityError(
                f"temperature and weight_decay must not be negative, got {temperature} and {weight_decay}"
            )
        super().__init__(
            params, {"lr": lr, "num_data": num_data, "temperature": temperature, "weight_decay": weight_decay, **own}
        )
        device = next(p.device for group in self.param_groups for p in group["params"])
        self.generator = generator if generator is not None else _fresh(device)
        self._noise: dict[int, tuple[Tensor, Tensors]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """What torch copies, and the noise; its buffers are made anew."""
        return {**super().__getstate__(), "generator": self.generator, "_noise": {}}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as torch does; one buffer of noise must be able to serve all of its weights."""
        super().add_param_group(param_group)
        weights = self.param_groups[-1]["params"]
        if any(p.stride() != torch.empty_like(p, device="meta").stride() for p in weights):
            raise PosterityError("a weight is a part of a larger tensor with gaps: give samplers whole tensors")
        if len(kinds := {(p.dtype, p.device) for p in weights}) > 1:
            found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise PosterityError(f"a group's weights must share one type and device, got {found}: make a group of each")

    def update(self, group: dict[str, Any], params: Tensors, noise: Tensors) -> None:
        """One step of one group."""
        raise NotImplementedError

    def noise_std(self, group: dict[str, Any]) -> float:
        """√(2 lr T/N)."""
        return math.sqrt(2 * group["lr"] * group["temperature"] / group["num_data"])

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
                self.update(group, params, self._draw(index, params, self.noise_std(group)))
        return loss

    def _draw(self, index: int, params: Tensors, std: float) -> Tensors:
        """std·ξ for every weight, in memory as the weight is: views of one buffer, filled by one call."""
        buffer, views = self._noise.get(index, (torch.empty(0), []))
        if [(view.shape, view.stride()) for view in views] != [(p.shape, p.stride()) for p in params]:
            sizes = [p.numel() for p in params]
            buffer = torch.empty(sum(sizes), device=params[0].device, dtype=params[0].dtype)
            pieces = zip(buffer.split(sizes), params, strict=True)
            views = [piece.as_strided(p.shape, p.stride(), piece.storage_offset()) for piece, p in pieces]
            self._noise[index] = buffer, views
        if std > 0:
            normal_(buffer, std, generator=self.generator)
        else:
            buffer.zero_()
        return views

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
        if "generator" not in state_dict:
            raise PosterityError("the state has no generator: it is not one that a sampler's state_dict() gave")
        super().load_state_dict(state_dict)
        for p, kept in self.state.items():  # a file keeps values, not how they lay in memory
            for name, value in kept.items():
                if value.shape != p.shape:
                    raise PosterityError(f"the state holds {name} {list(value.shape)} of a weight {list(p.shape)}")
            self.state[p] = {name: torch.empty_like(p).copy_(value) for name, value in kept.items()}
        self.generator.set_state(state_dict["generator"].cpu())


def gradients(params: Tensors) -> Tensors:
    """The weights' gradients; sparse ones, as of an embedding, are made dense, since noise acts on every weight."""
    return [p.grad.to_dense() if p.grad.is_sparse else p.grad for p in params if p.grad is not None]


def _fresh(device: torch.device) -> torch.Generator:
    """A generator of an unpredictable seed, for a loop that brings none."""
    generator = torch.Generator(device)
    generator.seed()
    return generator
