"""When a convolution's moments can be had from one GPU kernel, and getting them there."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from posterity.curvature.patches import Windows

WAVES = 4  # programs for each multiprocessor, so that none waits for a slow one


@cache
def _kernel() -> ModuleType | None:
    """The Triton kernel, imported when first needed; None where Triton is not installed."""
    return import_module("posterity.curvature.triton_conv") if find_spec("triton") else None


def fused_moments(out: Tensor, windows: Windows, d: Tensor, x: Tensor, scale: float) -> Tensor | None:
    """Add ``scale`` times the summed squares to ``out`` and return the weight gradient, or None to do it another way.

    The kernel is for CUDA, one or two dimensions, one group, and float32 sums; it adds up in no fixed order, so it
    stands back when deterministic algorithms are asked for.
    """
    suits = x.is_cuda and len(windows.kernel) <= 2 and windows.groups == 1 and out.dtype == torch.float32
    suits = suits and out.is_contiguous() and not torch.are_deterministic_algorithms_enabled()
    kernel = _kernel() if suits else None
    if kernel is None:
        return None
    programs = WAVES * torch.cuda.get_device_properties(x.device).multi_processor_count
    return kernel.conv_moments(out, windows, d, x.to(d.dtype), scale, programs)
