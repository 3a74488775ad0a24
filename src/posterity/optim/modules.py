"""Optimizers that are given a module and watch its layers: what VOGN, OGN and the K-FAC optimizers share.

While a backward pass goes by, a capture (``posterity.curvature``) adds what the layers see of it to vectors of the
optimizer; ``square``, beside ``gradient``, is the mean square of per-example gradients.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from posterity.networks import is_batchnorm
from posterity.optim.flat_group import FlatGroup, PerWeight
from posterity.optim.prior import Group, noise_scale, scaled_precision
from posterity.optim.sampled import SampledOptimizer
from posterity.types import PosterityError


def module_groups(module: nn.Module, stochastic_batchnorm: bool = False) -> list[dict[str, Any]]:
    """One param group of all parameters; BatchNorm's own in a second one without noise and prior, unless asked."""
    norms = [] if stochastic_batchnorm else [(n, m) for n, m in module.named_modules() if is_batchnorm(m)]
    fixed = {f"{name}.{key}" if name else key for name, norm in norms for key, _ in norm.named_parameters()}
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not named:
        raise PosterityError("the module has no parameters that need gradients")
    without = {"noisy": False, "prior_precision": 0.0, "prior_mean": 0.0}
    groups: list[dict[str, Any]] = [
        {"params": [pair for pair in named if pair[0] not in fixed]},
        {"params": [pair for pair in named if pair[0] in fixed], **without},
    ]
    return [group for group in groups if group["params"]]


def check_training_mode(module: nn.Module) -> None:
    """Refuse to train in eval mode, where it changes what is computed."""
    if not module.training and any(is_batchnorm(m) or isinstance(m, _DropoutNd) for m in module.modules()):
        raise PosterityError("the module is in eval mode, where BatchNorm and Dropout differ: call module.train()")


class WatchingOptimizer(SampledOptimizer):
    """Base of the optimizers that watch a module; the subclass sets ``_capture``, which does the watching.

    Args:
        module: The network; its layers are watched inside ``sampled_weights()`` and untouched outside.
        defaults: Hyper-parameters of a param group, ``damping`` among them.
        num_data: N, the number of training examples.
        prior_precision: δ.
        prior_mean: μ₀.
        stochastic_batchnorm: Noise and prior for BatchNorm's scale and shift, too.
        generator: Of the noise; see ``FlatOptimizer``.
    """

    state_vectors = ("momentum", "curvature")
    noisy: bool
    _capture: Any = None

    def __init__(
        self,
        module: nn.Module,
        defaults: Group,
        *,
        num_data: float,
        prior_precision: PerWeight,
        prior_mean: PerWeight | None,
        generator: torch.Generator | None,
        stochastic_batchnorm: bool = False,
    ) -> None:
        if not isinstance(module, nn.Module):  # but its parameters, as other optimizers take them
            found = type(module).__name__
            raise PosterityError(f"{type(self).__name__} watches the layers of a network: give the module, got {found}")
        self.module = module
        super().__init__(
            module_groups(module, stochastic_batchnorm),
            {**defaults, "noisy": self.noisy},
            num_data=num_data,
            prior_precision=prior_precision,
            prior_mean=prior_mean,
            generator=generator,
        )
        self._left_out = [p for p in module.parameters() if not p.requires_grad]

    def add_param_group(self, param_group: Group) -> None:
        """Refused once the module is watched."""
        if self._capture is not None:
            raise PosterityError(f"{type(self).__name__} watches its module as it was: make another for new weights")
        super().add_param_group(param_group)

    def _prepare(self, group: Group, flat: FlatGroup) -> None:
        flat.put_pair("statistics", "gradient", "square")

    def _watch(self, weight: float) -> AbstractContextManager[Any]:
        check_training_mode(self.module)
        return self._capture.on(weight)

    def _check(self, with_gradient: list[Tensor]) -> None:
        self._capture.check_complete(with_gradient)

    def _add(self, group: Group, flat: FlatGroup, gradients: list[Tensor], weight: float) -> None:
        add = torch._foreach_copy_ if self._entries == 0 else torch._foreach_add_
        add(flat.views("gradient"), gradients)

    def _precision(self, group: Group, flat: FlatGroup) -> Tensor:
        """s + δ̃ + γ, in the units of a mean loss; it lies in the scratch vector, and the next call overwrites it."""
        delta, damping = scaled_precision(group, flat), group["damping"]
        if isinstance(delta, float):
            return torch.add(flat["curvature"], delta + damping, out=flat["scratch"])
        return torch.add(flat["curvature"], delta, out=flat["scratch"]).add_(damping)

    def _std(self, group: Group, flat: FlatGroup) -> Tensor | None:
        """√(τ / (N (s + δ̃ + γ)))."""
        return self._precision(group, flat).rsqrt().mul_(noise_scale(group)) if group["noisy"] else None
