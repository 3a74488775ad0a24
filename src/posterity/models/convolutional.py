"""Convolutional networks without skip connections, in the variants that the published tables used.

LeNet-5     conv 6, 16 (5 × 5), 120-84-10, ReLU and max-pooling: the VOGN and Bayesian CNN tables
LeNet-5-Caffe   conv 20, 50 (5 × 5), 500-10: the sparsity tables
AlexNet     conv 64 (11 × 11, stride 4), 192 (5 × 5), 384, 256, 256 (3 × 3), one dense layer: the VOGN table
VGG16       thirteen 3 × 3 convolutions, 512-512-10, no BatchNorm: the SWAG table
VGG-like    the same convolutions with BatchNorm, widths times k, 512k-10: the SparseVD table
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from posterity.types import PosterityError, check_positive

_VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)  # widths; 0 is pooling


def lenet5(shape: Sequence[int], outputs: int = 10) -> nn.Sequential:
    """LeNet-5 with ReLU and max-pooling: 44,426 parameters on MNIST, 62,006 on CIFAR-10."""
    return _lenet(shape, (6, 16), (120, 84, outputs))


def lenet5_caffe(shape: Sequence[int], outputs: int = 10) -> nn.Sequential:
    """The LeNet-5 that came with Caffe: 431,080 parameters on MNIST."""
    return _lenet(shape, (20, 50), (500, outputs))


def _lenet(shape: Sequence[int], filters: tuple[int, int], widths: tuple[int, ...]) -> nn.Sequential:
    channels, height, width = _image(shape, "a LeNet-5", 16)
    first, second = filters
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, first, 5),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(first, second, 5),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )
    # A 5 × 5 convolution takes 4 pixels off each side, pooling halves and drops the odd one.
    inputs = second * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    for number, outputs in enumerate(widths, 1):
        layers[f"fc{number}"] = nn.Linear(inputs, outputs)
        if number < len(widths):
            layers[f"relu{number + 2}"] = nn.ReLU()
        inputs = outputs
    return nn.Sequential(layers)


def alexnet(shape: Sequence[int], outputs: int = 10, dropout: float = 0.0) -> nn.Sequential:
    """AlexNet cut down for 32 × 32 images: 2,472,266 parameters on CIFAR-10.

    Args:
        shape: Channels, height and width of an image; the sides must be 32.
        outputs: The number of outputs.
        dropout: The rate of a dropout layer in front of the dense one; 0 for none.
    """
    channels, height, width = _image(shape, "the AlexNet for CIFAR", 32)
    if (height, width) != (32, 32):
        raise PosterityError(f"the AlexNet for CIFAR needs images of 32 × 32 pixels, got {height} × {width}")
    convolutions: tuple[nn.Module, ...] = (
        nn.Conv2d(channels, 64, 11, stride=4, padding=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    head = [nn.Dropout(dropout)] if dropout > 0 else []
    return nn.Sequential(*convolutions, nn.Flatten(), *head, nn.Linear(256, outputs))


class VGG(nn.Sequential):
    """Thirteen 3 × 3 convolutions in five blocks, then dense layers. The sides of an image must be 32 to 63 pixels."""

    def __init__(
        self,
        shape: Sequence[int],
        outputs: int = 10,
        *,
        hidden: Sequence[int] = (512, 512),
        batch_norm: bool = False,
        width: float = 1.0,
        dropout: float = 0.0,
    ) -> None:
        channels, height, side = _image(shape, "VGG16", 32)
        if max(height, side) > 63:
            raise PosterityError(f"VGG16 for small images needs sides of 32 to 63 pixels, got {height} × {side}")
        check_positive(width=width)
        layers: list[nn.Module] = []
        for full in _VGG16:
            if full == 0:
                layers.append(nn.MaxPool2d(2))
                continue
            filters = max(1, round(width * full))
            layers.append(nn.Conv2d(channels, filters, 3, padding=1))
            layers += [nn.BatchNorm2d(filters), nn.ReLU()] if batch_norm else [nn.ReLU()]
            channels = filters
        layers.append(nn.Flatten())
        for units in (max(1, round(width * units)) for units in hidden):
            layers += [nn.Dropout(dropout)] if dropout > 0 else []
            layers += [nn.Linear(channels, units), nn.ReLU()]
            channels = units
        super().__init__(*layers, nn.Linear(channels, outputs))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all parameters anew; convolutions as He et al. do, without which so deep a network does not start.

        W ~ N(0, 2 / fan-out), b = 0. Calling it on the whole network must come after its layers' own.
        """
        for layer in self:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
            elif isinstance(layer, nn.Linear | nn.BatchNorm2d):
                layer.reset_parameters()


def vgg16(shape: Sequence[int], outputs: int = 10, *, batch_norm: bool = False, dropout: float = 0.0) -> VGG:
    """VGG16 for 32 × 32 images as in the SWAG paper: 15,245,130 parameters on CIFAR-10, no BatchNorm unless asked."""
    return VGG(shape, outputs, batch_norm=batch_norm, dropout=dropout)


def vgg_like(shape: Sequence[int], outputs: int = 10, *, width: float = 1.0) -> VGG:
    """The VGG-like network of the SparseVD paper: BatchNorm, one hidden dense layer, all widths times ``width``."""
    return VGG(shape, outputs, hidden=(512,), batch_norm=True, width=width)


def _image(shape: Sequence[int], who: str, least: int) -> tuple[int, int, int]:
    """Channels, height and width, or a sentence."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise PosterityError(f"{who} needs images [C, H, W] with sides of at least {least} pixels, got {tuple(shape)}")
    channels, height, width = shape
    return channels, height, width
