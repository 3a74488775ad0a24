"""The GPU kernel against example-by-example gradients: on a GPU, or in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from posterity.curvature import conv_kernel, squared_gradients
from posterity.curvature.patches import Windows

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("the kernel needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

CASES = {
    "plain": ((3, 7, 6), 20, Windows((3, 3), (1, 1), (0, 0), (1, 1), 1)),
    "padded": ((5, 9, 8), 70, Windows((3, 2), (2, 1), (1, 0), (1, 2), 1)),
    "strided": ((16, 6, 6), 8, Windows((3, 3), (2, 2), (2, 2), (2, 2), 1)),
    "one by one": ((64, 4, 4), 32, Windows((1, 1), (1, 1), (0, 0), (1, 1), 1)),
    "one pixel": ((64, 1, 1), 32, Windows((3, 3), (1, 1), (1, 1), (1, 1), 1)),
    "to one pixel": ((64, 2, 2), 32, Windows((3, 3), (2, 2), (1, 1), (1, 1), 1)),
    "one dimension": ((4, 20), 6, Windows((5,), (2,), (2,), (1,), 1)),
}


@pytest.fixture
def exact(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("programs", [1, 50])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_kernel_sums_gradients_and_their_squares(case, channels_last, programs, exact):
    from posterity.curvature.triton_conv import conv_moments

    shape, outputs, windows = case
    g = torch.Generator().manual_seed(0)
    x = torch.randn(6, *shape, generator=g).to(DEVICE)
    weight = torch.randn(outputs, shape[0], *windows.kernel, generator=g).to(DEVICE).requires_grad_()
    if channels_last and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    convolve = F.conv2d if len(windows.kernel) == 2 else F.conv1d

    def forward(x):
        return convolve(x, weight, None, windows.stride, windows.padding, windows.dilation)

    d = torch.randn(forward(x).shape, generator=g).to(DEVICE)
    each = torch.stack([torch.autograd.grad(forward(x[i : i + 1]), weight, d[i : i + 1])[0] for i in range(6)])
    out = torch.ones_like(weight).detach()
    total = conv_moments(out, windows, d, x, 2.0, programs)
    torch.testing.assert_close(total, each.sum(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out, 1 + 2 * each.square().sum(0), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("case", ["one by one", "one pixel", "to one pixel"])
def test_half_precision_and_maps_of_one_pixel(case, dtype):
    from posterity.curvature.triton_conv import Tiling, conv_moments

    shape, outputs, windows = CASES[case]
    g = torch.Generator().manual_seed(0)
    x = torch.randn(6, *shape, generator=g).to(DEVICE, dtype)
    d = torch.randn(6, outputs, *windows.positions(shape[1:]), generator=g).to(DEVICE, dtype)
    out = torch.zeros(outputs, shape[0], *windows.kernel, device=DEVICE)
    geometry = windows.stride, windows.padding, windows.dilation, False, (0, 0), 1, (False, True, False)
    each = [
        torch.ops.aten.convolution_backward(d[i, None].float(), x[i, None].float(), out, None, *geometry)[1]
        for i in range(6)
    ]
    total = conv_moments(out.clone(), windows, d, x, 1.0, 50, Tiling())
    expected = torch.stack(each).sum(0)
    assert (total - expected).norm() / expected.norm() < 2.0**-10  # float32 is rounded to ten digits in both factors


@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e6])
def test_with_tf32_allowed_ten_digits_are_kept_whatever_the_size(size, tiled):
    from posterity.curvature.triton_conv import Tiling, conv_moments

    shape, outputs, windows = CASES["padded"]
    g = torch.Generator().manual_seed(0)
    x = torch.randn(6, *shape, generator=g).to(DEVICE)
    d = torch.randn(6, outputs, *windows.positions(shape[1:]), generator=g).to(DEVICE)
    out = torch.zeros(outputs, shape[0], *windows.kernel, device=DEVICE)
    weight = torch.zeros_like(out)
    geometry = windows.stride, windows.padding, windows.dilation, False, (0, 0), 1, (False, True, False)
    each = [torch.ops.aten.convolution_backward(d[i, None], x[i, None], weight, None, *geometry)[1] for i in range(6)]
    total = conv_moments(out, windows, size * d, 100 * x, 1.0, 50, Tiling() if tiled else None) / (100 * size)
    expected, squares = torch.stack(each).sum(0), torch.stack(each).square().sum(0)
    error = 2.0**-11 * 2  # of a product, rounded to ten digits in both factors
    assert (total - expected).norm() / expected.norm() < error
    assert (out / (100 * size) ** 2 - squares).norm() / squares.norm() < 2 * error


@pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter has no part in whole networks")
def test_both_paths_agree_on_a_network(monkeypatch, exact):
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.Flatten(), nn.Linear(32 * 49, 10)
    ).cuda()
    g = torch.Generator().manual_seed(0)
    batch = torch.randn(8, 3, 16, 16, generator=g).cuda(), torch.arange(8).cuda()
    fused = squared_gradients(net, F.cross_entropy, batch)
    monkeypatch.setattr(conv_kernel, "_kernel", lambda: None)
    plain = squared_gradients(net, F.cross_entropy, batch)
    for name, value in plain.items():
        assert (fused[name] - value).norm() / value.norm() < 1e-4, name
