"""Normalisation layers and embeddings: layers whose per-example gradients are small enough to be formed.

With d the gradient that reaches an example's output at position t, and x̂ the normalised input,

    normalisation: weight (Σ_t x̂_t d_t)², bias (Σ_t d_t)²        Embedding, row v: (Σ_{t: index_t = v} d_t)²

x̂ is computed again in the backward pass rather than kept, so that a capture needs no more memory than training does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from posterity.curvature.sink import Forward, Sink, watched
from posterity.types import PosterityError


def batch_norm(module: _BatchNorm, original: Forward, sink: Sink) -> Forward:
    """BatchNorm; per-example gradients exist only with the batch statistics held fixed."""

    def normalised(x: Tensor) -> Tensor:
        if module.training or module.running_mean is None:
            return F.batch_norm(x, None, None, training=True, eps=module.eps)
        return F.batch_norm(x, module.running_mean, module.running_var, eps=module.eps)

    return _normalisation(original, sink, normalised, _sum_behind_channels)


def group_norm(module: nn.GroupNorm, original: Forward, sink: Sink) -> Forward:
    """GroupNorm: every example has statistics of its own."""

    def normalised(x: Tensor) -> Tensor:
        return F.group_norm(x, module.num_groups, eps=module.eps)

    return _normalisation(original, sink, normalised, _sum_behind_channels)


def layer_norm(module: nn.LayerNorm, original: Forward, sink: Sink) -> Forward:
    """LayerNorm over the trailing dimensions; those between them and the batch are positions."""

    def normalised(x: Tensor) -> Tensor:
        return F.layer_norm(x, module.normalized_shape, eps=module.eps)

    return _normalisation(original, sink, normalised, _sum_positions(module.normalized_shape))


def rms_norm(module: nn.RMSNorm, original: Forward, sink: Sink) -> Forward:
    """RMSNorm: LayerNorm without a mean."""

    def normalised(x: Tensor) -> Tensor:
        return F.rms_norm(x, module.normalized_shape, eps=module.eps)

    return _normalisation(original, sink, normalised, _sum_positions(module.normalized_shape))


def _sum_positions(trailing: tuple[int, ...]) -> Forward:
    return lambda g: g.reshape(g.shape[0], -1, *trailing).sum(1)


def _sum_behind_channels(g: Tensor) -> Tensor:
    return g.flatten(2).sum(2) if g.dim() > 2 else g


def _normalisation(original: Forward, sink: Sink, normalised: Forward, per_example: Forward) -> Forward:
    def add(name: str, gradients: Tensor, scale: float) -> None:
        out = sink.sums[name]
        out.add_(gradients.to(out.dtype).square().sum(0), alpha=scale)

    @torch.no_grad()
    def backward(x: Tensor, d: Tensor, call: object) -> None:
        scale = sink.report(call, d)
        if "weight" in sink.sums:
            add("weight", per_example(normalised(x).mul_(d)), scale)
        if "bias" in sink.sums:
            add("bias", per_example(d), scale)

    return watched(original, backward)


def embedding(module: nn.Embedding, original: Forward, sink: Sink) -> Forward:
    """Embedding tables: positions of one example with the same index add up before they are squared."""
    if module.sparse or module.max_norm is not None or module.scale_grad_by_freq:
        raise PosterityError(f"{sink.label} is sparse, or has max_norm or scale_grad_by_freq: not supported")

    @torch.no_grad()
    def backward(indices: Tensor, d: Tensor, call: object) -> None:
        scale = sink.report(call, d)
        out = sink.sums["weight"]
        rows, width = out.shape
        indices = indices.reshape(len(indices), -1)
        example = torch.arange(len(indices), device=d.device).unsqueeze(1)
        pairs, place = torch.unique(example * rows + indices, return_inverse=True)
        gradients = out.new_zeros(len(pairs), width)
        gradients.index_add_(0, place.flatten(), d.reshape(-1, width).to(out.dtype))
        if module.padding_idx is not None:
            gradients[pairs % rows == module.padding_idx] = 0
        out.index_add_(0, pairs % rows, gradients.square_(), alpha=scale)

    return watched(original, backward)
