"""Compaction of the library's own networks."""

import pytest
import torch

from posterity.compression import compact
from posterity.models.convolutional import alexnet, lenet5_caffe, vgg_like
from posterity.models.dense import lenet_300_100
from posterity.models.residual import resnet18
from posterity.models.text import LSTM, Transformer

G = torch.Generator().manual_seed(0)
IMAGE, DIGIT = torch.randn(2, 3, 32, 32, generator=G), torch.randn(2, 1, 28, 28, generator=G)
WORDS = torch.randint(1, 50, (2, 16), generator=G)
CASES = {
    "lenet_300_100": (lambda: lenet_300_100((1, 28, 28)), DIGIT, 0.4),
    "lenet5_caffe": (lambda: lenet5_caffe((1, 28, 28)), DIGIT, 0.3),
    "alexnet": (lambda: alexnet((3, 32, 32)), IMAGE, 0.3),
    "vgg_like": (lambda: vgg_like((3, 32, 32), width=0.25), IMAGE, 0.3),
    "resnet18": (lambda: resnet18((3, 32, 32)), IMAGE, 0.4),
    "transformer": (lambda: Transformer(50, 16, 2), WORDS, 0.7),  # attention and the residual stream keep their size
    "lstm": (lambda: LSTM(50, 2), WORDS, 1.0),
}


@pytest.mark.parametrize("name", CASES)
def test_forty_percent_of_the_units_left(name):
    make, x, share = CASES[name]
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = make().eval()
    with torch.no_grad():
        for p in module.parameters():
            if p.dim() > 1:
                p *= torch.rand(len(p), *[1] * (p.dim() - 1), generator=generator) < 0.4
        result = compact(module, x)
        torch.testing.assert_close(result.module(x), module(x), rtol=0, atol=1e-6)
    sizes = [sum(p.numel() for p in network.parameters()) for network in (result.module, module)]
    assert sizes[0] <= share * sizes[1]
    assert bool(result.not_followed) == (name in ("transformer", "lstm"))
