"""The GPU kernel for a convolution's gradient and squares, for every convolution of ResNet-18 at batch 128.

python -m benchmarks.speed.conv_kernel --device cuda     # beside cuDNN's gradient alone, for a few tilings

The ratio is to cuDNN's weight gradient. The last lines add up all convolutions of the network, each with its number of
uses: what the whole network would take with one tiling, and with the best tiling for each shape.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from benchmarks.speed.harness import Bench, run
from posterity.curvature.conv_kernel import WAVES
from posterity.curvature.patches import Windows

BATCH = 128
# Channels in and out, kernel, side of the input, stride, and how often the network has it.
LAYERS = [
    (3, 64, 3, 32, 1, 1),
    (64, 64, 3, 32, 1, 4),
    (64, 128, 3, 32, 2, 1),
    (64, 128, 1, 32, 2, 1),
    (128, 128, 3, 16, 1, 3),
    (128, 256, 3, 16, 2, 1),
    (128, 256, 1, 16, 2, 1),
    (256, 256, 3, 8, 1, 3),
    (256, 512, 3, 8, 2, 1),
    (256, 512, 1, 8, 2, 1),
    (512, 512, 3, 4, 1, 3),
]


def cudnn(d: Tensor, x: Tensor, weight: Tensor, windows: Windows) -> Tensor:
    geometry = (windows.stride, windows.padding, windows.dilation, False, (0, 0), 1, (False, True, False))
    return torch.ops.aten.convolution_backward(d, x, weight, None, *geometry)[1]


def kernel(bench: Bench, dtype: torch.dtype) -> None:
    if bench.device.type != "cuda":
        return
    from posterity.curvature.triton_conv import Tiling, conv_moments

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    programs = torch.cuda.get_device_properties(bench.device).multi_processor_count
    tilings = {
        f"{rows} x {columns}, {positions} positions, {warps} warps, {stages} stages, {waves} waves": (
            Tiling(rows, columns, positions, warps, stages),
            waves * programs,
        )
        for rows, columns, positions, warps, stages, waves in [
            (64, 64, 32, 4, 3, WAVES), (64, 64, 64, 4, 3, WAVES), (64, 64, 64, 4, 2, WAVES), (64, 64, 32, 4, 5, WAVES),
            (64, 64, 32, 4, 3, 8), (128, 64, 32, 4, 3, WAVES), (128, 64, 32, 8, 3, WAVES), (128, 64, 64, 8, 2, WAVES),
            (128, 128, 32, 8, 3, WAVES), (64, 64, 32, 8, 3, WAVES),
        ]
    }  # fmt: skip
    totals = dict.fromkeys(["cuDNN, gradient alone", *tilings, "best of each"], 0.0)
    name = str(dtype).removeprefix("torch.")
    for inputs, outputs, size, side, stride, uses in LAYERS:
        windows = Windows((size, size), (stride, stride), (size // 2, size // 2), (1, 1), 1)
        x = torch.randn(BATCH, inputs, side, side, device=bench.device, dtype=dtype)
        weight = torch.randn(outputs, inputs, size, size, device=bench.device)
        d = torch.randn(BATCH, outputs, *windows.positions((side, side)), device=bench.device, dtype=dtype)
        x, d = (t.contiguous(memory_format=torch.channels_last) for t in (x, d))
        out = torch.zeros_like(weight)
        works = {"cuDNN, gradient alone": partial(cudnn, d, x, weight.to(dtype), windows)}
        works |= {key: partial(conv_moments, out, windows, d, x, 1.0, p, t) for key, (t, p) in tilings.items()}
        case = f"{inputs} -> {outputs}, {size} x {size}, side {side}, stride {stride}, {uses} times, {name}"
        bench.compare(case, works, calls=10)
        rows = bench.results[case]
        for key, row in rows.items():
            totals[key] += uses * row.seconds
        totals["best of each"] += uses * min(rows[key].seconds for key in tilings)
    for key, seconds in totals.items():
        bench.figure(f"all convolutions, {name}: {key}", 1e3 * seconds, "ms")


if __name__ == "__main__":
    types = (torch.float32, torch.bfloat16)
    run(__doc__, {str(dtype).removeprefix("torch."): partial(kernel, dtype=dtype) for dtype in types})
