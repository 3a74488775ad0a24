"""Networks by name, sized for a data set."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from posterity.data.dataset import DataSet, Kind, Task
from posterity.data.own import import_function
from posterity.data.text import Vocabulary
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

_ABOUT: dict[str, tuple[str, str]] = {
    "mlp": ("dense, two hidden layers of 100: tables and small images", "digits"),
    "mlp_50": ("dense, one hidden layer of 50: the UCI tables", "uci-boston"),
    "lenet_300_100": ("the dense network of the papers on sparsity", "mnist"),
    "lenet5": ("two convolutions: grey images, sides of 16 or more", "mnist"),
    "lenet5_caffe": ("the larger LeNet-5 that came with Caffe", "mnist"),
    "alexnet": ("five convolutions: images of 32 × 32", "cifar10"),
    "vgg16": ("thirteen convolutions without BatchNorm, as in the SWAG paper", "cifar10"),
    "vgg16_bn": ("the same with BatchNorm", "cifar10"),
    "vgg_like": ("VGG of the SparseVD paper: one hidden dense layer", "cifar10"),
    "resnet18": ("residual, for small colour images", "cifar10"),
    "resnet18_imagenet": ("residual, for photographs: the first layers shrink them", "ImageNet"),
    "transformer": ("a small encoder: sentences", "sst2"),
    "lstm": ("two recurrent layers: sentences", "sst2"),
}
"""What each is for, and the data that it usually meets."""

_USUAL: dict[str, tuple[Kind, tuple[int, ...], int]] = {
    "digits": (Kind.IMAGE, (1, 8, 8), 10),
    "uci-boston": (Kind.TABULAR, (13,), 1),
    "mnist": (Kind.IMAGE, (1, 28, 28), 10),
    "cifar10": (Kind.IMAGE, (3, 32, 32), 10),
    "ImageNet": (Kind.IMAGE, (3, 224, 224), 1000),
    "sst2": (Kind.TEXT, (56,), 2),
}
"""Kind and shape of the inputs, and outputs, to size a network by without the data."""
_WORDS = 7198  # of SST-2


@dataclass(frozen=True)
class Description:
    """One line of ``posterity models``; ``weights`` is how many it has for the usual data."""

    name: str
    about: str
    usual: str
    weights: int


def describe() -> list[Description]:
    """What there is; the weights are counted, and no memory is taken for them."""
    with torch.device("meta"):
        return [
            Description(name, about, usual, sum(p.numel() for p in _usual(name, usual).parameters()))
            for name, (about, usual) in _ABOUT.items()
        ]


def _usual(name: str, data: str) -> nn.Module:
    """The network for the data that it usually meets."""
    kind, shape, outputs = _USUAL[data]
    inputs = torch.zeros(1, *shape, device="cpu"), torch.zeros(1, 1, device="cpu")
    vocabulary = Vocabulary(tuple(map(str, range(_WORDS))), *shape) if kind == Kind.TEXT else None
    return make(name, DataSet(data, Task.REGRESSION, kind, None, inputs, vocabulary=vocabulary), outputs)


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
