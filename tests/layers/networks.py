"""Layers and small networks of every kind, to be converted."""

from __future__ import annotations

import warnings

import torch
from torch import nn

import posterity as pst
from posterity.layers import variational

DOUBLE = torch.float64
TINY = 1e-13
ESTIMATORS = ("reparameterised", "local", "flipout")


class Recurrent(nn.Module):
    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class Attention(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x, x.flip(1))


class Tied(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.output = nn.Linear(8, 11)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        return self.output(self.embedding(tokens))


class Own(nn.Module):
    """Parameters that belong to no layer of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.mix = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        return torch.cat([self.token.expand(len(x), 1, 8), x @ self.mix], 1)


def parametrised() -> nn.Module:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    nn.utils.parametrizations.weight_norm(net[0])
    return net


SEQUENCE = (2, 5, 8)
LAYERS = {
    "Linear": (lambda: nn.Linear(8, 3), (4, 8)),
    "Linear on sequences": (lambda: nn.Linear(8, 3), SEQUENCE),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 9)),
    "Conv2d groups, dilation": (lambda: nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2), (2, 4, 7, 7)),
    "Conv2d same": (lambda: nn.Conv2d(4, 6, (3, 5), padding="same", dilation=(1, 2)), (2, 4, 9, 9)),
    "Conv2d valid": (lambda: nn.Conv2d(4, 6, 2, padding="valid"), (2, 4, 7, 7)),
    "Conv2d reflect": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (2, 4, 7, 7)),
    "Conv2d circular": (lambda: nn.Conv2d(4, 6, 3, padding=(1, 2), padding_mode="circular"), (2, 4, 7, 7)),
    "Conv2d one image": (lambda: nn.Conv2d(4, 6, 3), (4, 7, 7)),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 3, padding=1, padding_mode="replicate"), (2, 2, 5, 5, 5)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1), (2, 4, 5)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 5, 5)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(2, 3, 3, dilation=2, bias=False), (2, 2, 3, 3, 3)),
    "Bilinear-free own parameters": (Own, SEQUENCE),
    "LSTM": (lambda: Recurrent(nn.LSTM(8, 6, 2, bidirectional=True, batch_first=True)), SEQUENCE),
    "LSTM with projection": (lambda: Recurrent(nn.LSTM(8, 6, proj_size=3, batch_first=True)), SEQUENCE),
    "GRU": (lambda: Recurrent(nn.GRU(8, 6, 2, batch_first=True)), SEQUENCE),
    "RNN": (lambda: Recurrent(nn.RNN(8, 6, bidirectional=True, batch_first=True)), SEQUENCE),
    "attention": (Attention, SEQUENCE),
    "attention, other widths": (lambda: Attention(kdim=8, vdim=8, add_bias_kv=True), SEQUENCE),
    "transformer decoder": (Decoder, SEQUENCE),
    "weight norm": (parametrised, (4, 8)),
}
NETWORKS = {
    "LeNet": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
        ),
        (6, 1, 8, 8),
    ),
    "transformer encoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
        ),
        SEQUENCE,
    ),
}


def made(factory, shape, seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    return factory().to(DOUBLE), torch.randn(shape, dtype=DOUBLE)


def converted(module: nn.Module, estimator: str, **options) -> nn.Module:
    """By this estimator, or by drawing where the layer has no other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pst.PosterityWarning)
        try:
            return variational(module, estimator=estimator, **options)
        except pst.PosterityError:
            return variational(module, estimator="auto", **options)
