"""Two small networks for text: word numbers [B, L], padded with 0, to class outputs.

Both average the states of the real words, so that padding never changes an output. The transformer is written with
plain linear layers (torch's own hides its weights in one bare tensor, and its kernels do not run under vmap):
pre-norm blocks x ← x + attention(norm x), x ← x + mlp(norm x), with sinusoidal positions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from posterity.data.text import PADDING
from posterity.types import PosterityError


def _mean_of_words(states: Tensor, real: Tensor) -> Tensor:
    """The average state [B, D] of the real words; a text without words gives zero."""
    weights = real.to(states.dtype).unsqueeze(-1)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1.0)


def sinusoids(length: int, width: int) -> Tensor:
    """Positions as sines and cosines of geometrically falling frequencies, [length, width]."""
    frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angle = torch.arange(length).unsqueeze(1) * frequency
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


class Attention(nn.Module):
    """Multi-head self-attention over the real words."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """New states [B, L, D]; ``real`` is False at padding."""

        def split(y: Tensor) -> Tensor:  # [B, L, D] → [B, heads, L, D / heads]
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        query, key, value = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        # A large negative number and not -inf: a row of padding only would be NaN.
        scores = scores.masked_fill(~real[:, None, None, :], torch.finfo(scores.dtype).min)
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class EncoderBlock(nn.Module):
    """Attention, then two dense layers, each added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout1, self.dropout2 = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """New states [B, L, D]."""
        x = x + self.dropout1(self.attention(self.norm1(x), real))
        return x + self.dropout2(self.dense(self.norm2(x)))


class Transformer(nn.Module):
    """A small transformer encoder for classification."""

    positions: Tensor

    def __init__(
        self,
        words: int,
        length: int,
        outputs: int,
        *,
        width: int = 64,
        heads: int = 4,
        depth: int = 2,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if width % (2 * heads):
            raise PosterityError(f"the width must be a multiple of twice the heads, got {width} and {heads}")
        self.embedding = nn.Embedding(words, width, padding_idx=PADDING)
        self.register_buffer("positions", sinusoids(length, width), persistent=False)
        self.blocks = nn.ModuleList(EncoderBlock(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Outputs [B, K] of word numbers [B, L], L at most the length the network was made for."""
        real = tokens != PADDING
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, real)
        return self.head(_mean_of_words(self.norm(x), real))


class LSTM(nn.Module):
    """Stacked LSTM layers for classification. torch cannot vmap its LSTM, so draws run one after the other."""

    def __init__(self, words: int, outputs: int, *, width: int = 64, depth: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=PADDING)
        self.lstm = nn.LSTM(width, width, depth, batch_first=True, dropout=dropout if depth > 1 else 0.0)
        self.head = nn.Linear(width, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Outputs [B, K] of word numbers [B, L]; padding stands on the right, where it cannot reach earlier states."""
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(_mean_of_words(states, tokens != PADDING))
