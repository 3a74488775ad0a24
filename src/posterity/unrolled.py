"""Layers that torch computes in one fused piece, in plain operations: recurrent layers and cells, step by step.

    RNN   h' = φ(x̃ + h̃)                         x̃ = W_ih x + b_ih,  h̃ = W_hh h + b_hh,  φ = tanh or ReLU
    GRU   h' = (1 - z) n + z h                   r = σ(x̃_r + h̃_r),  z = σ(x̃_z + h̃_z),  n = tanh(x̃_n + r h̃_n)
    LSTM  c' = σ(f) c + σ(i) tanh(g)             (i, f, g, o) = x̃ + h̃,  h' = σ(o) tanh(c'), or W_hr of that

torch's own kernels are faster, but ``vmap`` and forward-mode derivatives do not support them, and they do not give
gradients at single steps. Sequences of different lengths, in a ``PackedSequence``, are padded: beyond its end an
example keeps its state, so that no gradient comes from there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from posterity.networks import own_buffers
from posterity.types import PosterityError

__all__ = ["Forward", "explained", "replaced_forwards", "transformable", "unrolled", "unrolled_cell"]

Forward = Callable[..., Any]
State = tuple[Tensor, ...]
"""(h,), and c for an LSTM."""
Step = Callable[[Tensor, Tensor, State], State]
"""(x̃, h̃, state) → the next state."""
Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(x, weight, bias) → W x + b."""
Linears = Callable[[str, str], Linear]
"""How a linear map is computed, by the names of its weight and its bias."""


def plain(weight: str, bias: str) -> Linear:
    """As torch does."""
    return F.linear


@contextmanager
def transformable(module: nn.Module) -> Iterator[None]:
    """Inside, the module consists of operations that ``vmap`` and forward-mode derivatives support; torch is silent.

    Afterwards it has its own buffers again: tensors of a transform mean nothing outside of it.
    """
    forwards = [(m, PLAIN[type(m).forward](m)) for m in module.modules() if type(m).forward in PLAIN]
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            own_buffers(module),
            sdpa_kernel(SDPBackend.MATH),
            replaced_forwards(forwards),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "There is a performance drop")  # vmap, where it falls back to a loop
            warnings.filterwarnings("ignore", ".*torch.jit.script. is deprecated")  # torch's own forward-mode rules
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


@contextmanager
def explained(problem: str, advice: str) -> Iterator[None]:
    """Say in one sentence what torch's transforms cannot follow: a branch on values, a function without their rules."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        raise PosterityError(f"{problem} ({reason}): {advice}") from error


@contextmanager
def replaced_forwards(forwards: Sequence[tuple[nn.Module, Forward]]) -> Iterator[None]:
    """Give modules other forwards inside the context."""
    before: list[Forward | None] = [module.__dict__.get("forward") for module, _ in forwards]
    for module, forward in forwards:
        module.__dict__["forward"] = forward
    try:
        yield
    finally:
        for (module, _), own in zip(forwards, before, strict=True):
            if own is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = own


def rnn_step(activation: Callable[[Tensor], Tensor]) -> Step:
    """Elman's network."""
    return lambda x, h, state: (activation(x + h),)


def gru_step(x: Tensor, h: Tensor, state: State) -> State:
    """Gated recurrent unit."""
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
    z = torch.sigmoid(xz + hz)
    n = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
    return ((1 - z) * n + z * state[0],)


def lstm_step(x: Tensor, h: Tensor, state: State) -> State:
    """Long short-term memory."""
    i, f, g, o = (x + h).chunk(4, -1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


STEPS: dict[str, Step] = {
    "RNN_TANH": rnn_step(torch.tanh),
    "RNN_RELU": rnn_step(torch.relu),
    "GRU": gru_step,
    "LSTM": lstm_step,
}


class _Matrices:
    """The linear maps of a cell, or of one layer and direction, whose parameters' names end in ``suffix``."""

    def __init__(self, module: nn.Module, linears: Linears, suffix: str = "") -> None:
        self.module, self.suffix = module, suffix
        kinds = ("ih", "hh", "hr")
        self.maps = {kind: linears(f"weight_{kind}{suffix}", f"bias_{kind}{suffix}") for kind in kinds}

    def __call__(self, kind: str, x: Tensor) -> Tensor:
        weight, bias = (getattr(self.module, f"{what}_{kind}{self.suffix}", None) for what in ("weight", "bias"))
        assert weight is not None
        return self.maps[kind](x, weight, bias)

    def next(self, step: Step, x: Tensor, state: State) -> State:
        """One step from x̃; with ``proj_size`` the LSTM's output is W_hr h."""
        h, *rest = step(x, self("hh", state[0]), state)
        return self("hr", h) if getattr(self.module, "proj_size", 0) else h, *rest


def unrolled_cell(module: nn.RNNCellBase, mode: str, linears: Linears = plain) -> Forward:
    """The forward of an ``RNNCell``, ``GRUCell`` or ``LSTMCell``."""
    matrices, states = _Matrices(module, linears), 1 + (mode == "LSTM")

    def forward(x: Tensor, hx: Any = None) -> Any:
        before = states * (x.new_zeros(*x.shape[:-1], module.hidden_size),) if hx is None else _tuple(hx)
        after = matrices.next(STEPS[mode], matrices("ih", x), before)
        return after if states > 1 else after[0]

    return forward


def unrolled(module: nn.RNNBase, linears: Linears = plain) -> Forward:
    """The forward of an ``RNN``, ``GRU`` or ``LSTM`` with any number of layers, in one direction or both."""
    step, ends = STEPS[module.mode], ("", "_reverse")[: 1 + module.bidirectional]
    layers = [[_Matrices(module, linears, f"_l{layer}{end}") for end in ends] for layer in range(module.num_layers)]

    def forward(sequences: Tensor | PackedSequence, hx: Any = None) -> Any:
        x, lengths = _unpacked(sequences, module)
        if x.dim() != 3:
            raise PosterityError(f"{type(module).__name__} got a single sequence; give it a batch of them")
        inside = None if lengths is None else torch.arange(x.shape[1], device=x.device) < lengths.to(x.device)[:, None]
        states = iter(_initial(module, x, hx))
        finals = []
        for number, directions in enumerate(layers):
            x = F.dropout(x, module.dropout, module.training) if number else x
            runs = [_run(m, step, x, next(states), inside, bool(back)) for back, m in enumerate(directions)]
            x = torch.cat([out for out, _ in runs], -1)
            finals += [final for _, final in runs]
        h, *c = (torch.stack(each) for each in zip(*finals, strict=True))
        return _packed(x, lengths, sequences, module), (h, *c) if c else h

    return forward


def unfused_prelu(module: nn.PReLU) -> Forward:
    """x where positive, else a x: two vmaps, one in the other, cannot do torch's own derivative."""

    def forward(x: Tensor) -> Tensor:
        slope = module.weight.view(-1, *(1,) * (x.dim() - 2)) if x.dim() > 1 else module.weight
        return torch.where(x > 0, x, slope * x)

    return forward


PLAIN: dict[Forward, Callable[[Any], Forward]] = {
    nn.RNN.forward: unrolled,
    nn.GRU.forward: unrolled,
    nn.LSTM.forward: unrolled,
    nn.RNNCell.forward: lambda cell: unrolled_cell(cell, f"RNN_{cell.nonlinearity.upper()}"),
    nn.GRUCell.forward: lambda cell: unrolled_cell(cell, "GRU"),
    nn.LSTMCell.forward: lambda cell: unrolled_cell(cell, "LSTM"),
    nn.PReLU.forward: unfused_prelu,
}
"""The layers that must be replaced to be transformed, by their forwards."""


def _run(
    matrices: _Matrices, step: Step, x: Tensor, state: State, inside: Tensor | None, backwards: bool
) -> tuple[Tensor, State]:
    """One layer in one direction: its outputs [B, T, H] and its last state."""
    steps = list(enumerate(matrices("ih", x).unbind(1)))
    outputs: list[Tensor] = []
    for t, own in reversed(steps) if backwards else steps:
        after = matrices.next(step, own, state)
        if inside is not None:
            after = tuple(torch.where(inside[:, t : t + 1], new, old) for new, old in zip(after, state, strict=True))
        state = after
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs, 1), state


def _initial(module: nn.RNNBase, x: Tensor, hx: Any) -> list[State]:
    """A state for each layer and direction: the given, or zeros."""
    count = module.num_layers * (1 + module.bidirectional)
    if hx is not None:
        return list(zip(*_tuple(hx), strict=True))
    sizes = (module.proj_size or module.hidden_size, module.hidden_size)[: 1 + (module.mode == "LSTM")]
    return count * [tuple(x.new_zeros(len(x), size) for size in sizes)]


def _tuple(hx: Any) -> State:
    return hx if isinstance(hx, tuple) else (hx,)


def _unpacked(sequences: Tensor | PackedSequence, module: nn.RNNBase) -> tuple[Tensor, Tensor | None]:
    """The inputs [B, T, I], and the lengths of the sequences where those are packed."""
    if isinstance(sequences, PackedSequence):
        return pad_packed_sequence(sequences, batch_first=True)
    return sequences if module.batch_first else sequences.transpose(0, 1), None


def _packed(
    x: Tensor, lengths: Tensor | None, sequences: Tensor | PackedSequence, module: nn.RNNBase
) -> Tensor | PackedSequence:
    """Outputs in the form that the inputs had."""
    if isinstance(sequences, PackedSequence):
        assert lengths is not None
        return pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=sequences.sorted_indices is None)
    return x if module.batch_first else x.transpose(0, 1)
