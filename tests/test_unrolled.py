"""Unrolled recurrent layers are torch's own, and torch.func can transform them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vmap
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from posterity.types import PosterityError
from posterity.unrolled import transformable, unrolled, unrolled_cell


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LAYERS = [
    nn.RNN(3, 4),
    nn.RNN(3, 4, 2, nonlinearity="relu", bidirectional=True),
    nn.GRU(3, 4, 2, bias=False, batch_first=True),
    nn.GRU(3, 4, bidirectional=True),
    nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True),
    nn.LSTM(3, 5, 3, proj_size=2, bidirectional=True),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_outputs_and_states_are_torchs(layer, packed):
    layer, x = layer.double(), randn(6, 6, 3)
    if packed:
        lengths = torch.tensor([2, 6, 1, 4, 4, 3])
        x = pack_padded_sequence(x, lengths, batch_first=layer.batch_first, enforce_sorted=False)
    expected, found = layer(x), unrolled(layer)(x)
    if packed:
        assert isinstance(found[0], PackedSequence)
        assert torch.equal(found[0].batch_sizes, expected[0].batch_sizes)
        found, expected = (found[0].data, found[1]), (expected[0].data, expected[1])
    torch.testing.assert_close(found, expected)
    states = tuple(randn(*s.shape, seed=1) for s in (found[1] if isinstance(found[1], tuple) else (found[1],)))
    first = states if len(states) > 1 else states[0]
    torch.testing.assert_close(unrolled(layer)(x, first)[1], layer(x, first)[1])


CELLS = [
    (nn.RNNCell(3, 4), "RNN_TANH"),
    (nn.RNNCell(3, 4, nonlinearity="relu"), "RNN_RELU"),
    (nn.GRUCell(3, 4, bias=False), "GRU"),
    (nn.LSTMCell(3, 4), "LSTM"),
]


@pytest.mark.parametrize(("cell", "mode"), CELLS, ids=str)
def test_cells_are_torchs(cell, mode):
    cell, x = cell.double(), randn(5, 3)
    torch.testing.assert_close(unrolled_cell(cell, mode)(x), cell(x))
    state = (randn(5, 4, seed=1), randn(5, 4, seed=2)) if mode == "LSTM" else randn(5, 4, seed=1)
    torch.testing.assert_close(unrolled_cell(cell, mode)(x, state), cell(x, state))


@pytest.mark.parametrize("cell", [cell for cell, _ in CELLS], ids=str)
def test_vmap_knows_cells_that_are_transformable(cell):
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = cell.double()

        def forward(self, x: Tensor) -> Tensor:
            state = None
            for step in x.unbind(1):
                state = self.cell(step, state)
            return state[0] if isinstance(state, tuple) else state

    module, x = Loop(), randn(5, 6, 3)
    params = {name: p.detach() for name, p in module.named_parameters()}

    def outputs(params, x):
        return functional_call(module, params, (x,))

    with transformable(module):
        jacobian = vmap(jacrev(outputs), (None, 0))(params, x.unsqueeze(1))
    own = tuple(params.values())
    each = torch.autograd.functional.jacobian(lambda *p: outputs(dict(zip(params, p, strict=True)), x), own)
    torch.testing.assert_close(tuple(j.squeeze(1) for j in jacobian.values()), each)


def test_a_single_sequence_is_refused():
    with pytest.raises(PosterityError, match="single sequence"):
        unrolled(nn.GRU(3, 4))(torch.zeros(6, 3))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 2, bidirectional=True, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
        self.one, self.each = nn.PReLU(), nn.PReLU(3)
        self.elman, self.gated, self.cell = nn.RNNCell(4, 4, nonlinearity="relu"), nn.GRUCell(4, 4), nn.LSTMCell(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(self.each(self.attention(self.lstm(x)[0])).mean(1))
        state = self.cell(x, self.cell(x))
        return self.gated(self.gated(state[0]), self.elman(x, self.elman(state[1])))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of the Jacobian without it
def test_vmap_and_forward_mode_know_what_is_transformable():
    module, x = Encoder().double().eval(), randn(5, 3, 4)
    params = {name: p.detach() for name, p in module.named_parameters()}
    shift = {name: randn(*p.shape, seed=i) for i, (name, p) in enumerate(params.items())}

    def outputs(params, x):
        return functional_call(module, params, (x,))

    fused = torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad():
        expected = module(x)
        step = {name: 1e-6 * value for name, value in shift.items()}
        ahead, behind = ({name: p + sign * step[name] for name, p in params.items()} for sign in (1, -1))
        slope = (outputs(ahead, x) - outputs(behind, x)) / 2e-6
        with transformable(module):
            each = vmap(outputs, (None, 0))(params, x.unsqueeze(1)).squeeze(1)
            jacobian = vmap(jacrev(outputs), (None, 0))(params, x.unsqueeze(1))
            same, change = jvp(lambda p: outputs(p, x), (params,), (shift,))
    torch.testing.assert_close(each, expected)
    torch.testing.assert_close(same, expected)
    torch.testing.assert_close(change, slope, rtol=1e-6, atol=1e-7)
    explicit = jacrev(outputs)(params, x)
    torch.testing.assert_close({name: j.squeeze(1) for name, j in jacobian.items()}, explicit)
    assert torch.backends.mha.get_fastpath_enabled() == fused and "forward" not in module.lstm.__dict__
