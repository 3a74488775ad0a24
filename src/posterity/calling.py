"""How a network is called, whatever its inputs look like: a tensor, a tuple of tensors, or a dictionary of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset

from posterity.types import Batch, Inputs, Params, PosterityError

__all__ = [
    "Draw",
    "InputSpec",
    "arguments",
    "as_batch",
    "as_batches",
    "as_tensor",
    "batch_shape",
    "call",
    "check_finite",
    "finite_check",
    "functional_call",
    "is_one_hot",
    "map_batch",
    "map_inputs",
    "nested_tensors",
    "num_examples",
    "tensors_of",
    "type_name",
]


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments: a tuple is positional, a dictionary goes by keyword."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)), {}


def call(module: Callable[..., Tensor], inputs: Inputs) -> Tensor:
    """The network's outputs."""
    args, kwargs = arguments(inputs)
    return module(*args, **kwargs)


def functional_call(
    module: nn.Module, tensors: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What the module gives with these parameters and buffers in the place of its own; tied ones change together.

    torch's function alone would not put its own back into a layer that the network knows by two names.
    """
    first: dict[Tensor, str] = {}
    places = {}
    for path, part in module.named_modules():
        for attribute, own in (*part._parameters.items(), *part._buffers.items()):
            name = f"{path}.{attribute}" if path else attribute
            if own is not None and (known := first.setdefault(own, name)) in tensors:
                places[name] = tensors[known]
    return torch.func.functional_call(module, places, args, kwargs, tie_weights=False)


def tensors_of(inputs: Inputs) -> list[Tensor]:
    """The tensors that inputs are made of."""
    args, kwargs = arguments(inputs)
    return [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]


def nested_tensors(values: Any) -> list[Tensor]:
    """The tensors in dictionaries, lists and tuples, however deep."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def map_inputs(inputs: Inputs, function: Callable[[Tensor], Tensor]) -> Inputs:
    """Inputs of the same structure with every tensor mapped."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, Mapping):
        return {key: function(value) if isinstance(value, Tensor) else value for key, value in inputs.items()}
    return tuple(function(value) if isinstance(value, Tensor) else value for value in inputs)


def map_batch(batch: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with every tensor mapped: its inputs, its targets, and its weights where it has any."""
    weights = None if batch.weights is None else function(batch.weights)
    return Batch(map_inputs(batch.inputs, function), function(batch.targets), weights)


def as_batch(item: Any) -> Batch:
    """What a loader gives, as a Batch: (inputs, targets[, weights]), or a dictionary with its targets as ``labels``."""
    if isinstance(item, Batch):
        return item
    if isinstance(item, Mapping) and "labels" in item:
        batch = Batch({key: value for key, value in item.items() if key != "labels"}, item["labels"])
    elif isinstance(item, list | tuple) and len(item) in (2, 3):
        batch = Batch(*item)
    else:
        expected = "(inputs, targets), (inputs, targets, weights) or a dictionary with 'labels'"
        raise PosterityError(f"a batch must be {expected}, got {type(item).__name__}")
    try:
        len(batch.targets)
    except TypeError:
        raise PosterityError(
            f"a batch holds many examples, but here is one, with target {batch.targets!r}: give a Dataset or DataLoader"
        ) from None
    return batch


def as_tensor(values: Any, what: str) -> Tensor:
    """A tensor as it is, and an array of numbers as one."""
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"{what} must be a tensor or an array of numbers, got {type(values).__name__}: {error}"
        raise PosterityError(message) from error


def as_batches(loader: Iterable[Any]) -> Iterator[Batch]:
    """What a loader or a list of batches gives, as Batches."""
    if isinstance(loader, Dataset):
        raise PosterityError("training batches were asked for, but a Dataset gives single examples: use a DataLoader")
    return map(as_batch, loader)


def num_examples(inputs: Inputs) -> int:
    """The length of the leading dimension, which all tensors of the inputs must share."""
    lengths = {len(tensor) for tensor in tensors_of(inputs)}
    if not lengths:
        raise PosterityError(f"inputs must be tensors, got {type(inputs).__name__}")
    if len(lengths) != 1:
        raise PosterityError(f"inputs must be tensors of one length, got lengths {sorted(lengths)}")
    return lengths.pop()


def type_name(dtype: torch.dtype) -> str:
    """A type as files name it, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def batch_shape(shape: Iterable[int]) -> str:
    """The shape of a batch of examples of this one, in words: ``(batch, 3, 32, 32)``."""
    return f"({', '.join(('batch', *map(str, shape)))})"


@dataclass(frozen=True)
class InputSpec:
    """Shape (without the batch) and type of each input tensor: enough to make an example or to refuse a wrong one."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, inputs: Inputs) -> InputSpec:
        """The spec of these inputs."""
        tensors = tensors_of(inputs)
        return cls(tuple(tuple(t.shape[1:]) for t in tensors), tuple(type_name(t.dtype) for t in tensors))

    def check(self, inputs: Inputs, precision: torch.dtype) -> None:
        """Refuse inputs of another shape or kind, or of a precision that neither the fit's data nor the network has."""
        tensors = tensors_of(inputs)
        if not tensors:
            raise PosterityError(f"inputs must be tensors, got {type(inputs).__name__}")
        if len(tensors) != len(self.shapes):
            raise PosterityError(f"expected {len(self.shapes)} input tensors, got {len(tensors)}")
        for tensor, shape, dtype in zip(tensors, self.shapes, self.dtypes, strict=True):
            if tuple(tensor.shape[1:]) != shape and not _sequences(dtype, tensor, shape):
                raise PosterityError(
                    f"inputs have shape {tuple(tensor.shape)}, but the network was fitted on {batch_shape(shape)}"
                )
            fitted = getattr(torch, dtype)
            real = tensor.is_floating_point()
            if real != fitted.is_floating_point or (real and tensor.dtype not in (fitted, precision)):
                raise PosterityError(f"inputs are {tensor.dtype}, but the network was fitted on {dtype}")


def _sequences(dtype: str, tensor: Tensor, shape: tuple[int, ...]) -> bool:
    """Token sequences may be of any length; images and features may not."""
    return not getattr(torch, dtype).is_floating_point and tensor.ndim - 1 == len(shape) == 1


def check_finite(inputs: Inputs, what: str = "the inputs") -> None:
    """Refuse NaN and infinities."""
    finite_check(inputs, what)()


def finite_check(inputs: Inputs, what: str = "the inputs") -> Callable[[], None]:
    """A check for NaN and infinities, begun now and read when it is called: on a GPU, reading it waits for the device.

    Both show in the smallest or the largest value, which one cheap pass finds.
    """
    floats = [t for t in tensors_of(inputs) if t.is_floating_point() and t.numel() > 0]
    extremes = [torch.stack(tensor.aminmax()) for tensor in floats]

    def read() -> None:
        if not all(math.isfinite(value) for pair in extremes for value in pair.tolist()):
            raise PosterityError(f"{what} hold NaN or infinite values")

    return read


def is_one_hot(targets: Tensor | np.ndarray) -> bool:
    """Whether each of several rows is zeros and a single one: a class, and no numbers to predict."""
    if targets.ndim != 2 or targets.shape[1] < 2:
        return False
    ones: Any = targets == 1
    return bool((ones | (targets == 0)).all()) and bool((ones.sum(1) == 1).all())


@dataclass(frozen=True, eq=False)
class Draw:
    """One network of a posterior: the module's code with these weights and buffers."""

    module: nn.Module
    params: Params
    buffers: Params

    def __call__(self, inputs: Inputs) -> Tensor:
        """The outputs of this draw; the module itself is not changed, whatever happens."""
        args, kwargs = arguments(inputs)
        return functional_call(self.module, {**self.params, **self.buffers}, args, kwargs)
