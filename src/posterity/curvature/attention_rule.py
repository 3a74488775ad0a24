"""Multi-head attention: linear maps into queries, keys and values, and one out of the heads.

    heads = softmax(Q Kᵀ / √width + mask) V,     (Q, K, V) = W_in x + b_in,     output = W_out heads + b_out

What lies between the maps has no parameters and is computed as torch does, masks and dropout included.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posterity.curvature.linear_rule import LinearMap
from posterity.curvature.sink import Forward, Sink
from posterity.types import PosterityError


def attention(module: nn.MultiheadAttention, original: Forward, sink: Sink) -> Forward:
    """``MultiheadAttention`` whose queries, keys and values are equally wide."""
    into, out = LinearMap(sink, "in_proj_weight", "in_proj_bias"), LinearMap(sink, "out_proj.weight", "out_proj.bias")

    def heads(inputs: tuple[Tensor, ...]) -> list[Tensor]:
        """Queries, keys and values [B, heads, positions, width]: each a third of what the one matrix gives.

        Inputs that are the same tensor, as all three are in self-attention, go through it once.
        """
        distinct = {id(x): x if module.batch_first else x.transpose(0, 1) for x in inputs}
        found = {key: into(x, module.in_proj_weight, module.in_proj_bias).chunk(3, -1) for key, x in distinct.items()}
        parts = [found[id(x)][part] for part, x in enumerate(inputs)]
        return [own.unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for own in parts]

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,  # only a hint: the mask says it, too
    ) -> tuple[Tensor, Tensor | None]:
        if query.dim() != 3:
            raise PosterityError(f"{sink.label} got a single sequence, and squared gradients need a batch of them")
        q, k, v = heads((query, key, value))
        mask = _joined_mask(q, key_padding_mask, attn_mask)
        if module.add_zero_attn:
            k, v = (F.pad(t, (0, 0, 0, 1)) for t in (k, v))
            mask = None if mask is None else F.pad(mask, (0, 1))
        dropout = module.dropout if module.training else 0.0
        if need_weights:
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
            mixed = weights @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        found = out(mixed.transpose(1, 2).flatten(2), module.out_proj.weight, module.out_proj.bias)
        found = found if module.batch_first else found.transpose(0, 1)
        if not need_weights:
            return found, None
        return found, weights.mean(1) if average_attn_weights else weights

    return forward


def _joined_mask(q: Tensor, padding: Tensor | None, allowed: Tensor | None) -> Tensor | None:
    """Both masks as one that is added to the scores: [B or 1, heads or 1, queries or 1, keys]."""
    masks = []
    if padding is not None:
        masks.append(_additive(padding, q.dtype)[:, None, None])
    if allowed is not None:
        allowed = _additive(allowed, q.dtype)
        masks.append(allowed.unflatten(0, (len(q), -1)) if allowed.dim() == 3 else allowed[None, None])
    return sum(masks[1:], masks[0]) if masks else None


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """True says that a key may not be seen."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)
