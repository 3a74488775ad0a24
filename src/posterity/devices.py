"""Where a network computes, how tensors lie in memory there, and how much of it a pass needs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from posterity.calling import call, map_inputs, tensors_of
from posterity.networks import hooked, plain_copy
from posterity.types import Inputs, PosterityError

__all__ = ["activation_bytes", "aligned", "channels_last", "device_of", "device_order", "find_device", "number"]

_log = logging.getLogger("posterity")
_WIDE = 16  # input channels of a convolution from which on it gains by channels last


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


def device_of(network: nn.Module) -> torch.device:
    """Where a network is; one without parameters is taken to be on the CPU."""
    return next((p.device for p in network.parameters()), torch.device("cpu"))


def device_order(network: nn.Module, inputs: Inputs) -> Callable[[Tensor], Tensor]:
    """How images should lie in memory for this network: on a GPU with their channels last, as convolutions want them.

    Later layers keep the order. With channels first, the library transposes before and after every convolution
    (ResNet-18 on an H200: 2.2 s an epoch of CIFAR-10, against 1.4 s with channels last). Convolutions of few channels
    do not gain by it. A network that reshapes feature maps by ``view`` cannot take it: its images stay as they are.
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


def number(value: Tensor) -> Any:
    """A plain number on a CPU, where sums and kernels are faster with one; on a GPU that would wait for the device."""
    return value.item() if value.device.type == "cpu" and not torch.compiler.is_compiling() else value


def activation_bytes(module: nn.Module, inputs: Inputs) -> int:
    """Bytes of all layer outputs for one example: an upper bound of what one pass holds at a time."""
    sizes: list[int] = []

    def note(_: nn.Module, __: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel() * output.element_size())

    with hooked((m for m in module.modules() if not list(m.children())), note):
        call(module, map_inputs(inputs, lambda t: t[:1]))
    return max(1, sum(sizes))
