"""How a network is called, whatever its inputs look like: a tensor, a tuple of tensors, or a dictionary of them."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset

from posterity.types import Batch, Inputs, Params, PosterityError

__all__ = [
    "Draw",
    "InputSpec",
    "activation_bytes",
    "aligned",
    "arguments",
    "as_batch",
    "as_batches",
    "as_tensor",
    "call",
    "channels_last",
    "check_finite",
    "copied",
    "device_order",
    "find_device",
    "finite_check",
    "is_frozen",
    "load_buffers",
    "map_batch",
    "map_inputs",
    "nested_tensors",
    "num_examples",
    "plain_copy",
    "precision_of",
    "tensors_of",
    "train_mode",
    "type_name",
]

_log = logging.getLogger("posterity")
_WIDE = 16  # input channels of a convolution from which on it gains by channels last


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments: a tuple is positional, a dictionary goes by keyword."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)), {}


def call(module: Callable[..., Tensor], inputs: Inputs) -> Tensor:
    """The network's outputs."""
    args, kwargs = arguments(inputs)
    return module(*args, **kwargs)


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
        return Batch({key: value for key, value in item.items() if key != "labels"}, item["labels"])
    if isinstance(item, list | tuple) and len(item) in (2, 3):
        return Batch(*item)
    raise PosterityError("a batch must be (inputs, targets), (inputs, targets, weights) or a dictionary with 'labels'")


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


def activation_bytes(module: nn.Module, inputs: Inputs) -> int:
    """Bytes of all layer outputs for one example: an upper bound of what one pass holds at a time."""
    sizes: list[int] = []

    def note(_: nn.Module, __: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel() * output.element_size())

    handles = [m.register_forward_hook(note) for m in module.modules() if not list(m.children())]
    try:
        call(module, map_inputs(inputs, lambda t: t[:1]))
    finally:
        for handle in handles:
            handle.remove()
    return max(1, sum(sizes))


def find_device(name: torch.device | str) -> torch.device:
    """The device of this name, if it is there."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise PosterityError(f"device={name!r} names no device: use 'cpu', 'cuda' or 'cuda:1'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise PosterityError(f"device={name!r} was asked for, but torch sees no GPU here")
    try:
        torch.zeros(1, device=device).item()
    except RuntimeError as error:  # a second GPU, or one that this torch was not built for
        reason = str(error).splitlines()[0]
        raise PosterityError(f"device={name!r} was asked for, but torch cannot compute there: {reason}") from error
    return device


def copied(module: nn.Module) -> nn.Module:
    """A copy of the user's network, which is never changed itself; one that could not be copied later is refused.

    Embeddings give whole gradients in it: prior and noise are everywhere, and few optimizers take sparse ones. A
    BatchNorm layer in eval mode in a network in training mode is frozen, and is marked, since modes change.
    """
    for name, part in module.named_modules():
        where, hooks = f"layer {name!r}" if name else "the network", part._forward_pre_hooks.values()
        if any(isinstance(hook, WeightNorm | SpectralNorm) for hook in hooks):
            raise PosterityError(
                f"{where} has torch.nn.utils' old weight or spectral norm, and cannot be copied after a call: use the "
                "one of torch.nn.utils.parametrizations"
            )
        if any(isinstance(hook, BasePruningMethod) for hook in hooks):
            raise PosterityError(
                f"{where} is masked by torch.nn.utils.prune, and cannot be copied: make its zeros its own first, by "
                "torch.nn.utils.prune.remove(layer, 'weight')"
            )
    network = copy.deepcopy(module)
    for part in network.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            part.sparse = False
        if isinstance(part, _BatchNorm) and network.training and not part.training:
            part.frozen = True  # type: ignore[assignment]
    return network


def is_frozen(layer: nn.Module) -> bool:
    """Whether it is a BatchNorm layer that keeps its running statistics in training, and uses them."""
    return getattr(layer, "frozen", False) and isinstance(layer, _BatchNorm)


def train_mode(network: nn.Module) -> nn.Module:
    """The network in training mode, but for BatchNorm layers that are frozen."""
    network.train()
    for layer in filter(is_frozen, network.modules()):
        layer.eval()
    return network


def plain_copy(module: nn.Module) -> nn.Module:
    """A copy of its own in eval mode, that no optimizer will touch."""
    return copied(module).eval().requires_grad_(False)


def type_name(dtype: torch.dtype) -> str:
    """A type as files name it, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def precision_of(module: nn.Module) -> str:
    """The type of a network's weights, as files name it."""
    return type_name(next(module.parameters()).dtype)


def load_buffers(module: nn.Module, stored: Params) -> None:
    """Give a network these buffers, those that are not persistent, too, which ``load_state_dict`` passes over."""
    for name, buffer in module.named_buffers():
        if name in stored:
            buffer.data = stored[name].to(buffer)


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
                    f"inputs have shape {tuple(tensor.shape)}, but the network was fitted on (batch, *{shape})"
                )
            fitted = getattr(torch, dtype)
            real = tensor.is_floating_point()
            if real != fitted.is_floating_point or (real and tensor.dtype not in (fitted, precision)):
                raise PosterityError(f"inputs are {tensor.dtype}, but the network was fitted on {dtype}")


def _sequences(dtype: str, tensor: Tensor, shape: tuple[int, ...]) -> bool:
    """Token sequences may be of any length; images and features may not."""
    return not getattr(torch, dtype).is_floating_point and tensor.ndim - 1 == len(shape) == 1


def device_order(network: nn.Module, inputs: Inputs) -> Callable[[Tensor], Tensor]:
    """How images should lie for this network: on a GPU with their channels last, as its convolutions work.

    What follows keeps the order; with the channels first the library transposes before and after every convolution
    (ResNet-18 on an H200: 2.2 s an epoch of CIFAR-10, and 1.4 s with them last). Convolutions of few channels do not
    gain by it. A network that looks at its feature maps through ``view`` cannot take it: its images stay as they are.
    """
    wide = any(p.ndim == 4 and p.shape[1] >= _WIDE for p in network.parameters())
    if not wide or not any(_is_images(tensor) for tensor in tensors_of(inputs)):
        return _unchanged
    try:
        call(plain_copy(network), map_inputs(inputs, lambda t: channels_last(t[:2])))
    except RuntimeError as error:
        _log.info("this network needs its channels first (%s)", str(error).splitlines()[0])
        return _unchanged
    return channels_last


def channels_last(images: Tensor) -> Tensor:
    """On a GPU images or 2D kernels with their channels last; anything else as it is."""
    if not _is_images(images):
        return images
    # Not ``contiguous``, to which a single channel is last already, and which then leaves the strides of the first.
    return torch.empty_like(images, memory_format=torch.channels_last).copy_(images)


def _is_images(tensor: Tensor) -> bool:
    return tensor.is_cuda and tensor.ndim == 4 and tensor.is_floating_point()


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def aligned(weight: Tensor) -> Tensor:
    """On a GPU a copy of a vector that does not begin at a multiple of 16 bytes, being a piece of a longer one.

    cuDNN's BatchNorm reads its weights 16 bytes at a time, and faults (pytorch/pytorch#195186).
    """
    astray = weight.is_cuda and weight.ndim == 1 and weight.storage_offset() * weight.itemsize % 16
    return weight.clone() if astray else weight


def check_finite(inputs: Inputs) -> None:
    """Refuse NaN and infinities."""
    finite_check(inputs)()


def finite_check(inputs: Inputs) -> Callable[[], None]:
    """A check for NaN and infinities, begun now and read when it is called: on a GPU, reading it waits for the device.

    Both show in the smallest or the largest value, which one cheap pass finds.
    """
    floats = [t for t in tensors_of(inputs) if t.is_floating_point() and t.numel() > 0]
    extremes = [torch.stack(tensor.aminmax()) for tensor in floats]

    def read() -> None:
        if not all(math.isfinite(value) for pair in extremes for value in pair.tolist()):
            raise PosterityError("the inputs hold NaN or infinite values")

    return read


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
