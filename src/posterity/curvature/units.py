"""The parts of a network whose squared gradients are taken each by itself, and the rules that there are for layers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrize import is_parametrized

from posterity.curvature.attention_rule import attention
from posterity.curvature.convolution_rule import convolution
from posterity.curvature.linear_rule import linear
from posterity.curvature.recurrent_rule import gru_cell, lstm_cell, recurrent, rnn_cell
from posterity.curvature.sink import Forward, Rule
from posterity.curvature.vector_rules import batch_norm, embedding, group_norm, layer_norm, rms_norm
from posterity.types import Params

RULES: dict[Forward, Rule] = {
    nn.Linear.forward: linear,
    nn.Conv1d.forward: convolution,
    nn.Conv2d.forward: convolution,
    nn.Conv3d.forward: convolution,
    nn.Embedding.forward: embedding,
    _BatchNorm.forward: batch_norm,
    nn.LayerNorm.forward: layer_norm,
    nn.GroupNorm.forward: group_norm,
    nn.RMSNorm.forward: rms_norm,
    nn.MultiheadAttention.forward: attention,
    nn.RNN.forward: recurrent,
    nn.GRU.forward: recurrent,
    nn.LSTM.forward: recurrent,
    nn.RNNCell.forward: rnn_cell,
    nn.GRUCell.forward: gru_cell,
    nn.LSTMCell.forward: lstm_cell,
}
"""A layer is known by its forward, so that a subclass that keeps the forward keeps the rule."""
TURNING = (attention, recurrent, rnn_cell, gru_cell, lstm_cell)
"""Rules that turn sequences themselves where these come first, and whose uses add up."""
KNOWN = re.compile(r"(weight|bias)(_(ih|hh|hr)(_l\d+)?(_reverse)?)?|(in|out)_proj[._](weight|bias)")
"""Names of the parameters that rules know of; a layer with others has no rule."""


def units(module: nn.Module) -> Iterator[tuple[str, nn.Module, Params]]:
    """The modules that have trainable parameters of their own, by name, each with these.

    All parameters of a layer with a rule are its own. Any other module owns what it holds itself, and the layers below
    it that have a parameter in common.
    """
    parts = {} if has_rule(module) else parts_of(module)
    below = [
        (f"{name}.{path}".rstrip("."), unit, own) for name, part in parts.items() for path, unit, own in units(part)
    ]
    held = [part for part in (module, *module.children()) if part not in parts.values()]
    ids = {id(p) for part in held for p in part.parameters(recurse=part is not module or not parts)}
    holders = Counter(id(p) for _, _, own in below for p in own.values()) + Counter(ids)
    shared = {key for key, count in holders.items() if count > 1}
    apart = []
    for unit in below:
        theirs = {id(p) for p in unit[2].values()}
        if theirs & shared:
            ids |= theirs
        else:
            apart.append(unit)
    if ids:
        own: Params = {name: p for name, p in module.named_parameters() if p.requires_grad and id(p) in ids}
        if own:
            yield "", module, own
    yield from apart


def has_rule(module: nn.Module) -> bool:
    """Whether it is a layer of a known kind, with no parameters but those of its kind."""
    known = "forward" not in module.__dict__ and type(module).forward in RULES
    return known and all(KNOWN.fullmatch(name) for name, _ in module.named_parameters())


def parts_of(module: nn.Module) -> dict[str, nn.Module]:
    """What a module is made of, besides lists of parameters and what makes its parameters."""
    lists = (nn.ParameterList, nn.ParameterDict)
    children = {name: child for name, child in module.named_children() if not isinstance(child, lists)}
    if is_parametrized(module):
        del children["parametrizations"]
    return children
