"""Which weights stay: a score for every weight, and masks from the scores.

Scores are pure functions from parameters to tensors of the same names and shapes, *higher where the weight matters*:

    signal to noise   |mean| / std
    log alpha         log(std² / mean²) = −2 log(signal to noise); here LOWER is kept: a weight goes at log alpha ≥ 3
                      (https://arxiv.org/abs/1701.05369)
    magnitude         |w|
    random            uniform on [0, 1), the baseline that every score has to beat

Masks are bool tensors by name, True where the weight is kept, by

    a threshold       one limit for every layer: ``above`` it for magnitudes, ``below`` it for log alpha
    a fraction        the best of the whole network, or of each layer
    an accuracy       the smallest fraction that keeps it, by bisection on log(keep): accuracy is nearly monotone in it,
                      and flat over decades at the dense end

Only weights (matrices, kernels, embeddings: two dimensions or more) are pruned; biases and normalisation parameters
are a handful of numbers each, and stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from posterity.networks import duplicate
from posterity.types import Params, PosterityError

__all__ = [
    "Masks",
    "above",
    "apply",
    "below",
    "by_unit",
    "check",
    "check_own_weights",
    "log_alpha",
    "magnitude",
    "random",
    "signal_to_noise",
    "smallest_keep",
    "sparsity",
    "top_fraction",
    "unit_axes",
    "weights",
    "whole_units",
]

Masks = dict[str, Tensor]
"""Bool tensors by parameter name; parameters without one are kept whole."""


def weights(params: Mapping[str, Tensor]) -> Params:
    """The parameters that pruning looks at: those with two dimensions or more."""
    return {name: value.detach() for name, value in params.items() if value.dim() >= 2}


def log_alpha(mean: Mapping[str, Tensor], variance: Mapping[str, Tensor]) -> Params:
    """Log of variance over squared mean, for every weight that has a variance.

    A mean of exactly zero gives +∞ whatever the variance: such a weight carries nothing.
    """
    scores = {}
    for name, value in weights(mean).items():
        if name not in variance or not bool(variance[name].any()):
            continue  # deterministic
        if bool((variance[name] < 0).any()):
            raise PosterityError(f"the variance of {name!r} has negative entries, expected none")
        ratio = variance[name].detach().log() - 2 * value.abs().log()
        scores[name] = ratio.masked_fill(value == 0, torch.inf)
    if not scores:
        raise PosterityError("this posterior has no variances, expected one for every weight: prune it by magnitude")
    return scores


def signal_to_noise(mean: Mapping[str, Tensor], variance: Mapping[str, Tensor]) -> Params:
    """|mean| / std of every weight that has a variance; infinite where the variance is zero and the mean is not."""
    return {name: torch.exp(-0.5 * value) for name, value in log_alpha(mean, variance).items()}


def magnitude(params: Mapping[str, Tensor]) -> Params:
    """|w| of every weight."""
    return {name: value.abs() for name, value in weights(params).items()}


def random(params: Mapping[str, Tensor], generator: torch.Generator) -> Params:
    """Scores that know nothing of the weights."""
    return {
        name: torch.rand(value.shape, generator=generator, device=generator.device).to(value.device)
        for name, value in weights(params).items()
    }


def by_unit(scores: Mapping[str, Tensor], axes: Mapping[str, int] | None = None) -> Params:
    """The mean score of each output unit in place of its weights', so that units go as a whole.

    Args:
        scores: By parameter name.
        axes: The axis along which units lie (``unit_axes``), where it is not the first.
    """
    within = _within(scores, axes)
    return {name: value.mean(dim=within[name], keepdim=True).expand_as(value) for name, value in scores.items()}


def unit_axes(module: nn.Module) -> dict[str, int]:
    """Where units do not lie along a weight's first axis: filters of transposed convolutions, numbers of an embedding.

    An embedding's rows are words: without one of them no layer gets smaller.
    """
    kinds = (nn.Embedding, nn.EmbeddingBag, nn.modules.conv._ConvTransposeNd)
    return {f"{name}.weight": 1 for name, layer in module.named_modules() if isinstance(layer, kinds)}


def whole_units(masks: Mapping[str, Tensor], axes: Mapping[str, int] | None = None) -> Masks:
    """Keep all weights of an output unit of which any is kept: a fraction of the weights may end inside a unit.

    Args:
        masks: By parameter name.
        axes: As of ``by_unit``.
    """
    within = _within(masks, axes)
    return {name: mask.any(dim=within[name], keepdim=True).expand_as(mask) for name, mask in masks.items()}


def _within(values: Mapping[str, Tensor], axes: Mapping[str, int] | None) -> dict[str, tuple[int, ...]]:
    """The axes along which the weights of one unit lie."""
    unit = dict.fromkeys(values, 0) | dict(axes or {})
    return {name: tuple(dim for dim in range(value.dim()) if dim != unit[name]) for name, value in values.items()}


def above(scores: Mapping[str, Tensor], threshold: float) -> Masks:
    """Keep the weights whose score lies above ``threshold`` (magnitude, signal to noise)."""
    return {name: value > threshold for name, value in scores.items()}


def below(scores: Mapping[str, Tensor], threshold: float) -> Masks:
    """Keep the weights whose score lies below ``threshold`` (log alpha)."""
    return {name: value < threshold for name, value in scores.items()}


def top_fraction(scores: Mapping[str, Tensor], keep: float, per_layer: bool = False) -> Masks:
    """Keep the best ``keep`` of all weights: exactly ``ceil(keep · n)`` of them, ties broken by position.

    Args:
        scores: Higher is kept.
        keep: The fraction to keep, in (0, 1].
        per_layer: Take the fraction of every layer, rather than of the network as a whole.
    """
    if not isinstance(keep, Real) or not 0 < keep <= 1:
        raise PosterityError(f"keep must lie in (0, 1], got {keep!r}")
    for name, value in scores.items():
        if bool(value.isnan().any()):
            raise PosterityError(f"the scores of {name!r} hold NaN, which is neither better nor worse than a number")
    if per_layer:
        return {name: _best(value.reshape(-1), keep).view_as(value) for name, value in scores.items()}
    chosen = _best(torch.cat([value.reshape(-1) for value in scores.values()]), keep)
    parts = chosen.split([value.numel() for value in scores.values()])
    return {name: part.view_as(value) for (name, value), part in zip(scores.items(), parts, strict=True)}


def _best(scores: Tensor, keep: float) -> Tensor:
    """A mask of the highest scores of one vector."""
    # The small slack keeps 0.1 · 30 = 3.0000000000000004 from becoming four.
    count = max(1, math.ceil(keep * scores.numel() - 1e-9))
    lowest = scores.kthvalue(scores.numel() - count + 1).values  # in a fifth of the time that sorting takes
    best = scores > lowest
    ties = (scores == lowest).nonzero().squeeze(1)
    return best.index_fill_(0, ties[: count - int(best.sum())], True)


def smallest_keep(accuracy: Callable[[float], float], floor: float, low: float = 1e-3, rounds: int = 10) -> float:
    """The smallest fraction of weights whose accuracy is at least ``floor``, by bisection on its logarithm.

    Args:
        accuracy: Validation accuracy of the network with this fraction of its weights.
        floor: What it must not fall below.
        low: The smallest fraction tried.
        rounds: Halvings of the interval [log low, 0].

    Returns:
        A fraction that was itself measured to be good enough, or 1, which changes nothing.
    """
    good, bad = 0.0, math.log(low)
    if accuracy(low) >= floor:
        return low
    for _ in range(rounds):
        middle = (good + bad) / 2
        if accuracy(math.exp(middle)) >= floor:
            good = middle
        else:
            bad = middle
    return math.exp(good)


def apply(module: nn.Module, masks: Mapping[str, Tensor]) -> nn.Module:
    """A copy of ``module`` with the masked weights set to zero."""
    masked = duplicate(module)
    params = dict(masked.named_parameters())
    check(params, masks)
    with torch.no_grad():
        for name, mask in masks.items():
            # Not a product: 0 · inf and 0 · nan would keep what was to go.
            params[name].masked_fill_(~mask.to(params[name].device), 0)
    return masked


def check(params: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> None:
    """Refuse masks that belong to another network."""
    for name, mask in masks.items():
        if name not in params:
            raise PosterityError(f"there is a mask for {name!r}, but the network has no such parameter")
        if mask.shape != params[name].shape or mask.dtype != torch.bool:
            raise PosterityError(
                f"the mask of {name!r} is {mask.dtype} of shape {tuple(mask.shape)}, "
                f"expected torch.bool of shape {tuple(params[name].shape)}"
            )


def check_own_weights(module: nn.Module) -> None:
    """Refuse layers that compute their weight from other parameters: zeros there are not zeros in the weight."""
    for name, part in module.named_modules():
        if is_parametrized(part):
            raise PosterityError(
                f"{name or 'the module'} ({type(part).__name__}) computes its weight from other parameters, as "
                "weight norm does, so that it has none to prune: remove its parametrization first"
            )


def sparsity(params: Mapping[str, Tensor]) -> dict[str, float]:
    """The fraction of exact zeros in every weight."""
    return {name: float((value == 0).double().mean()) for name, value in weights(params).items()}
