"""ResNet-18 (https://arxiv.org/abs/1512.03385) for small images, with two stems.

The CIFAR stem is one 3 × 3 convolution: about 95 % on CIFAR-10. The ImageNet stem, a 7 × 7 convolution of stride 2 and
a pooling of stride 2, leaves 8 × 8 of 32 × 32 pixels: the VOGN table used it, which is why its ResNet-18 is at 84-86 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from posterity.types import PosterityError


class Block(nn.Module):
    """Two 3 × 3 convolutions with BatchNorm, around which the input goes unchanged (or projected, where it shrinks)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The next feature maps."""
        inner = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        return self.relu2(inner + self.shortcut(x))


def resnet18(shape: Sequence[int], outputs: int = 10, *, stem: Literal["cifar", "imagenet"] = "cifar") -> nn.Sequential:
    """ResNet-18: 11,173,962 parameters on CIFAR-10 with the CIFAR stem, 11,181,642 with ImageNet's.

    Args:
        shape: Channels, height and width of an image.
        outputs: The number of outputs.
        stem: The first layers; see above.
    """
    if len(shape) != 3:
        raise PosterityError(f"a ResNet needs images [C, H, W], got inputs of shape {tuple(shape)}")
    stems: dict[str, list[nn.Module]] = {
        "cifar": [nn.Conv2d(shape[0], 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()],
        "imagenet": [
            nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        ],
    }
    if stem not in stems:
        raise PosterityError(f"stem must be one of {', '.join(stems)}, got {stem!r}")
    blocks: list[nn.Module] = []
    width = 64
    for outer, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Block(width, outer, stride), Block(outer, outer, 1)]
        width = outer
    return nn.Sequential(*stems[stem], *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, outputs))
