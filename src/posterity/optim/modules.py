"""What the optimizers that watch a module's layers need to know of it."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from posterity.types import PosterityError


def module_groups(module: nn.Module, stochastic_batchnorm: bool = False) -> list[dict[str, Any]]:
    """One param group of all parameters; BatchNorm's own in a second one without noise and prior, unless asked."""
    norms = [] if stochastic_batchnorm else [(n, m) for n, m in module.named_modules() if isinstance(m, _BatchNorm)]
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
    if not module.training and any(isinstance(m, _BatchNorm | _DropoutNd) for m in module.modules()):
        raise PosterityError("the module is in eval mode, where BatchNorm and Dropout differ: call module.train()")
