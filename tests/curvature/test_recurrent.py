"""Squared gradients of recurrent layers, cells and attention = squares of torch's own gradients, one by one."""

from __future__ import annotations

import pytest
import torch
from tests.curvature.squares import close, loss, randn
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from posterity.curvature import gradient_moments


def one_by_one(module: nn.Module, inputs: Tensor | tuple[Tensor, ...], targets: Tensor) -> tuple[dict, dict]:
    """The mean gradient and the mean square, from a backward pass for each example through torch's own layers."""
    params = dict(module.named_parameters())
    each: dict[str, list[Tensor]] = {name: [] for name in params}
    for i in range(len(targets)):
        own = tuple(x[i : i + 1] for x in inputs) if isinstance(inputs, tuple) else inputs[i : i + 1]
        outputs = module(*own) if isinstance(own, tuple) else module(own)
        for name, g in zip(
            params, torch.autograd.grad(loss(outputs, targets[i : i + 1]), params.values()), strict=True
        ):
            each[name].append(g)
    stacked = {name: torch.stack(gradients) for name, gradients in each.items()}
    return {k: g.mean(0) for k, g in stacked.items()}, {k: g.square().mean(0) for k, g in stacked.items()}


DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]


def check(module: nn.Module, inputs: Tensor | tuple[Tensor, ...]) -> None:
    for device in DEVICES:
        own = tuple(x.to(device) for x in inputs) if isinstance(inputs, tuple) else inputs.to(device)
        with torch.device(device):
            check_here(module.double().to(device), own)


def check_here(module: nn.Module, inputs: Tensor | tuple[Tensor, ...]) -> None:
    outputs = module(*inputs) if isinstance(inputs, tuple) else module(inputs)
    targets = randn(*outputs.shape, seed=9)
    mean, square = gradient_moments(module, loss, (inputs, targets))
    expected = one_by_one(module, inputs, targets)
    close(mean, expected[0])
    close(square, expected[1])


class Sequence(nn.Module):
    """A recurrent layer of which everything that it returns matters, with a given first state or without."""

    def __init__(self, layer: nn.RNNBase, given: bool = False) -> None:
        super().__init__()
        self.layer, self.given = layer, given
        states = layer.num_layers * (1 + layer.bidirectional)
        self.sizes = [(states, size) for size in (layer.proj_size or layer.hidden_size, layer.hidden_size)]

    def forward(self, x: Tensor) -> Tensor:
        first = tuple(randn(n, 1, size, seed=n + size).expand(n, len(x), size).contiguous() for n, size in self.sizes)
        first = first if isinstance(self.layer, nn.LSTM) else first[0]
        x = x if self.layer.batch_first else x.transpose(0, 1)
        out, last = self.layer(x, first) if self.given else self.layer(x)
        out = out if self.layer.batch_first else out.transpose(0, 1)
        ends = [state.transpose(0, 1).flatten(1) for state in (last if isinstance(last, tuple) else (last,))]
        return torch.cat([out.flatten(1), *ends], 1)


@pytest.mark.parametrize("given", [False, True], ids=["from zero", "from a state"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"num_layers": 2},
        {"bidirectional": True},
        {"num_layers": 3, "bidirectional": True, "batch_first": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_layers(kind, options, given):
    check(Sequence(kind(3, 4, **{"batch_first": True, **options}), given), randn(5, 6, 3))


def test_recurrent_layers_of_other_kinds():
    check(Sequence(nn.RNN(3, 4, nonlinearity="relu", batch_first=True)), randn(5, 6, 3))
    check(Sequence(nn.LSTM(3, 5, 2, proj_size=2, bidirectional=True, batch_first=True)), randn(5, 6, 3))


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_sequences_of_different_lengths(kind, in_order):
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = kind(3, 4, 2, bidirectional=True, batch_first=True)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=in_order)
            out, last = self.layer(packed)
            h = last[0] if isinstance(last, tuple) else last
            padded = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[0]
            return torch.cat([padded.flatten(1), h.transpose(0, 1).flatten(1)], 1)

    lengths = torch.tensor([6, 4, 4, 1]) if in_order else torch.tensor([4, 6, 1, 4])
    check(Packed(), (randn(4, 6, 3), lengths))


class Loop(nn.Module):
    """A cell called at every step."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state = self.cell(x[:, 0])
        for t in range(1, x.shape[1]):
            state = self.cell(x[:, t], state)
        return state[0] + state[1] if isinstance(state, tuple) else state


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "cell",
    [nn.RNNCell, lambda *a, **k: nn.RNNCell(*a, nonlinearity="relu", **k), nn.GRUCell, nn.LSTMCell],
    ids=["tanh", "relu", "gru", "lstm"],
)
def test_cells_in_a_loop(cell, bias):
    check(Loop(cell(3, 4, bias=bias)), randn(5, 4, 3))


class Attend(nn.Module):
    """Attention of x to itself or to something else, under masks."""

    def __init__(
        self, weights: bool = False, other: bool = False, masks: str = "", average: bool = True, **options
    ) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, **{"batch_first": True, **options})
        self.weights, self.other, self.masks, self.average = weights, other, masks, average

    def forward(self, x: Tensor) -> Tensor:
        key = torch.tanh(x.flip(1)[:, :4]) if self.other else x
        hidden = torch.ones(x.shape[1], key.shape[1], dtype=torch.bool).triu(1)
        padded = (x[:, : key.shape[1], 0] > 0.8).index_fill(1, torch.tensor([0]), False)
        masks = {
            "": {},
            "causal": {"attn_mask": hidden, "is_causal": True},
            "padded": {"key_padding_mask": padded},
            "both": {"attn_mask": hidden, "key_padding_mask": padded},
            "added": {"attn_mask": randn(x.shape[1], key.shape[1], seed=3)},
            "by head": {"attn_mask": randn(2, x.shape[1], key.shape[1], seed=3).repeat(len(x), 1, 1)},
        }[self.masks]
        first = (lambda t: t) if self.attention.batch_first else (lambda t: t.transpose(0, 1))
        masks |= {"need_weights": self.weights, "average_attn_weights": self.average}
        out, weights = self.attention(first(x), first(key), first(key), **masks)
        return torch.cat([first(out).flatten(1), weights.flatten(1)], 1) if self.weights else first(out)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("masks", ["", "causal", "padded", "both", "added", "by head"])
def test_attention_under_masks(masks, weights):
    check(Attend(weights, masks=masks), randn(5, 5, 6))


@pytest.mark.parametrize("options", [{"bias": False}, {"add_zero_attn": True}, {"batch_first": False}], ids=str)
@pytest.mark.parametrize("weights", [False, True])
def test_attention_of_other_kinds(options, weights):
    check(Attend(weights, **options), randn(5, 5, 6))
    check(Attend(weights, other=True, masks="padded", **options), randn(5, 5, 6))


def test_the_weights_of_each_head():
    check(Attend(weights=True, average=False, masks="causal"), randn(5, 5, 6))


@pytest.mark.parametrize(
    "module",
    [
        nn.TransformerEncoderLayer(6, 2, 8, dropout=0.5, batch_first=True),
        Sequence(nn.LSTM(6, 4, 2, dropout=0.5, batch_first=True)),
    ],
    ids=["attention", "lstm"],
)
def test_of_one_example_the_square_is_the_gradients_whatever_dropout_does(module):
    module, x = module.double().train(), randn(1, 5, 6)
    targets = randn(*module(x).shape, seed=9)
    torch.manual_seed(0)
    mean, square = gradient_moments(module, loss, (x, targets))
    torch.manual_seed(0)
    other, _ = gradient_moments(module, loss, (x, targets))
    torch.manual_seed(1)
    third, _ = gradient_moments(module, loss, (x, targets))
    close(mean, other)
    assert any(not torch.equal(mean[name], third[name]) for name in mean)  # dropout was at work
    close({k: square[k] for k in mean if mean[k].any()}, {k: g.square() for k, g in mean.items() if g.any()})
