"""Recurrent layers and cells, unrolled: every matrix is a linear map that is used at each step of the sequence."""

from __future__ import annotations

from functools import partial

from torch import nn

from posterity.curvature.linear_rule import LinearMap
from posterity.curvature.sink import Forward, Sink
from posterity.unrolled import unrolled, unrolled_cell


def recurrent(module: nn.RNNBase, original: Forward, sink: Sink) -> Forward:
    """``RNN``, ``GRU`` and ``LSTM``."""
    return unrolled(module, partial(LinearMap, sink))


def rnn_cell(module: nn.RNNCell, original: Forward, sink: Sink) -> Forward:
    """``RNNCell``, called any number of times."""
    return unrolled_cell(module, f"RNN_{module.nonlinearity.upper()}", partial(LinearMap, sink))


def gru_cell(module: nn.GRUCell, original: Forward, sink: Sink) -> Forward:
    """``GRUCell``, called any number of times."""
    return unrolled_cell(module, "GRU", partial(LinearMap, sink))


def lstm_cell(module: nn.LSTMCell, original: Forward, sink: Sink) -> Forward:
    """``LSTMCell``, called any number of times."""
    return unrolled_cell(module, "LSTM", partial(LinearMap, sink))
