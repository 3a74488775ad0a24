"""Networks by name, sized for a data set."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

from torch import nn

from posterity.data.dataset import DataSet, Kind
from posterity.data.own import import_function
from posterity.models.convolutional import alexnet, lenet5, lenet5_caffe, vgg16, vgg_like
from posterity.models.dense import lenet_300_100, mlp
from posterity.models.residual import resnet18
from posterity.models.text import LSTM, Transformer
from posterity.types import PosterityError, hint


def _words(dataset: DataSet) -> int:
    if dataset.vocabulary is None:
        raise PosterityError(f"a network for text needs a vocabulary, and {dataset.name} holds {dataset.kind} inputs")
    return len(dataset.vocabulary)


def _shape(dataset: DataSet) -> tuple[int, ...]:
    if dataset.kind == Kind.TEXT:
        raise PosterityError(f"{dataset.name} holds text: use lstm or transformer")
    return dataset.shape


MODELS: dict[str, Callable[[DataSet, int], nn.Module]] = {
    "mlp": lambda data, outputs: mlp(math.prod(_shape(data)), outputs),
    "mlp_50": lambda data, outputs: mlp(math.prod(_shape(data)), outputs, (50,)),  # what the UCI tables are made with
    "lenet_300_100": lambda data, outputs: lenet_300_100(_shape(data), outputs),
    "lenet5": lambda data, outputs: lenet5(_shape(data), outputs),
    "lenet5_caffe": lambda data, outputs: lenet5_caffe(_shape(data), outputs),
    "alexnet": lambda data, outputs: alexnet(_shape(data), outputs),
    "vgg16": lambda data, outputs: vgg16(_shape(data), outputs),
    "vgg16_bn": lambda data, outputs: vgg16(_shape(data), outputs, batch_norm=True),
    "vgg_like": lambda data, outputs: vgg_like(_shape(data), outputs),
    "resnet18": lambda data, outputs: resnet18(_shape(data), outputs),
    "resnet18_imagenet": lambda data, outputs: resnet18(_shape(data), outputs, stem="imagenet"),
    "transformer": lambda data, outputs: Transformer(_words(data), data.shape[0], outputs),
    "lstm": lambda data, outputs: LSTM(_words(data), outputs),
}


def names() -> list[str]:
    """The names `make` knows."""
    return list(MODELS)


def make(name: str, dataset: DataSet, outputs: int | None = None) -> nn.Module:
    """A freshly initialised network that fits the data set.

    Args:
        name: One of `names()` (dashes do for underscores), or ``package.module:function`` of one's own, called with
            the data set if it takes an argument and with nothing if not.
        dataset: Gives the sizes of inputs and outputs.
        outputs: How many outputs, where the likelihood needs more than the data says (mean and std: twice as many).
    """
    if ":" in name:
        return _own(name, dataset)
    known = name.replace("-", "_")
    if known not in MODELS:
        own = "for your own give module:function"
        raise PosterityError(f"there is no network called {name!r} ({own}): {hint(known, MODELS)}")
    return MODELS[known](dataset, dataset.outputs if outputs is None else outputs)


def _own(name: str, dataset: DataSet) -> nn.Module:
    function = import_function(name)
    needed = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    if len(needed) > 1:
        raise PosterityError(f"{name} is called with the data set alone, but needs {', '.join(p.name for p in needed)}")
    module = function(*([dataset] if needed else []))
    if not isinstance(module, nn.Module):
        raise PosterityError(f"{name} must return an nn.Module, got {type(module).__name__}")
    return module


def default_for(dataset: DataSet) -> str:
    """The name of a network that learns this set in sensible time: the small, well-known one of its kind."""
    if dataset.kind == Kind.TEXT:
        return "transformer"
    if dataset.kind == Kind.IMAGE and min(dataset.shape[1:]) >= 16:
        return "lenet5"
    return "mlp_50" if dataset.name.startswith("uci-") else "mlp"
