"""A convolution is a Linear layer on patches: the geometry of the windows, and the patches themselves (im2col).

For an input of C channels the patch of one output position has K = (C / groups) · ∏ kernel numbers, and the weight of
one group is a matrix [O, K]. The order inside a patch is free as long as the weight follows it. Whichever order has the
longer contiguous runs in memory is copied: (kernel, channel) from a channels-last input, or (channel, kernel). That is
worth a factor of ten on a CPU, where ``F.unfold`` takes longer than the convolution itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.conv import _ConvNd


@dataclass(frozen=True)
class Windows:
    """Where a convolution of any dimension looks; padding is symmetric and with zeros."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, conv: _ConvNd) -> Windows:
        """The windows of a ``Conv1d``, ``Conv2d`` or ``Conv3d`` after ``pad_explicitly``."""
        padding = (0,) * len(conv.kernel_size) if _pads_explicitly(conv) else tuple(map(int, conv.padding))
        return cls(conv.kernel_size, conv.stride, padding, conv.dilation, conv.groups)

    def positions(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """How many windows fit along each dimension of an input of this size."""
        along = zip(spatial, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return tuple((size + 2 * pad - dil * (k - 1) - 1) // step + 1 for size, k, step, pad, dil in along)

    def channels_last(self, x: Tensor) -> bool:
        """Whether patches ordered (kernel, channel) have the longer contiguous runs for this input."""
        channels = x.shape[1] // self.groups
        run_last = channels * (self.kernel[-1] if self.dilation[-1] == 1 and self.groups == 1 else 1)
        run_first = self.positions(x.shape[2:])[-1] if self.stride[-1] == 1 else 1
        return run_last >= run_first

    def prepare(self, x: Tensor, channels_last: bool) -> Tensor:
        """The padded input, groups in front: [groups, B, *spatial, channel] or [groups, B, channel, *spatial]."""
        if any(self.padding):
            x = F.pad(x, [pad for pad in reversed(self.padding) for _ in (0, 1)])
        x = x.unflatten(1, (self.groups, -1)).transpose(0, 1)
        return x.movedim(2, -1).contiguous() if channels_last else x

    def patches(self, prepared: Tensor, channels_last: bool) -> Tensor:
        """A view: [groups, B, *positions, *kernel, channel], or [groups, B, channel, *kernel, *positions]."""
        dims = len(self.kernel)
        first = 2 if channels_last else 3
        spatial, steps = prepared.shape[first : first + dims], prepared.stride()[first : first + dims]
        windows = Windows(self.kernel, self.stride, (0,) * dims, self.dilation, 1).positions(spatial)
        between = tuple(s * step for s, step in zip(steps, self.stride, strict=True))
        within = tuple(s * dil for s, dil in zip(steps, self.dilation, strict=True))
        lead, lead_stride = prepared.shape[:2], prepared.stride()[:2]
        channel = -1 if channels_last else 2
        size, stride = (prepared.shape[channel],), (prepared.stride(channel),)
        if channels_last:
            return prepared.as_strided(
                lead + windows + self.kernel + size, lead_stride + between + within + stride, prepared.storage_offset()
            )
        return prepared.as_strided(
            lead + size + self.kernel + windows, lead_stride + stride + within + between, prepared.storage_offset()
        )

    def as_weight(self, matrix: Tensor, channels_last: bool) -> Tensor:
        """A matrix [groups, O, K] in the order of the patches, as a view shaped like the convolution's weight."""
        rows = matrix.flatten(0, 1)
        if channels_last:
            return rows.unflatten(1, (*self.kernel, -1)).movedim(-1, 1)
        return rows.unflatten(1, (-1, *self.kernel))


def _pads_explicitly(conv: _ConvNd) -> bool:
    return isinstance(conv.padding, str) or conv.padding_mode != "zeros"


def pad_explicitly(conv: _ConvNd, x: Tensor) -> Tensor:
    """Apply the padding that ``Windows`` cannot express: 'same' (it may be lopsided), reflect, replicate, circular."""
    if not _pads_explicitly(conv):
        return x
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    return F.pad(x, conv._reversed_padding_repeated_twice, mode=mode)
