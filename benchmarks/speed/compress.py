"""What compaction gains: masked dense against compacted, as ratios, on one CPU thread (or the GPU).

python benchmarks/speed/compress.py

Three kinds of zeros: whole filters and neurons (the widths that SBP reports for LeNet-5-Caffe, 3-18-284-283 of
20-50-800-500), scattered ones as SparseVD leaves them (its published sparsity of each layer of LeNet-300-100), and half
the filters of a ResNet-18 and a VGG.
"""

import torch
from torch import nn

from posterity.compression import compress
from posterity.models.convolutional import lenet5_caffe, vgg_like
from posterity.models.dense import lenet_300_100
from posterity.models.residual import resnet18


@torch.no_grad()
def sbp_widths() -> nn.Module:
    """Three of 20 filters, 18 of 50, 284 of the 800 inputs of fc1, 283 of its 500 outputs."""
    module = lenet5_caffe((1, 28, 28))
    module.conv1.weight[3:] = 0
    module.conv2.weight[18:] = 0
    module.fc1.weight[:, 284:] = 0
    module.fc1.weight[283:] = 0
    module.fc2.weight[:, 283:] = 0
    return module


@torch.no_grad()
def sparse_vd_zeros() -> nn.Module:
    """98.9%, 97.2% and 62% zeros, scattered."""
    module, generator = lenet_300_100((1, 28, 28)), torch.Generator().manual_seed(0)
    for layer, zeros in ((module.fc1, 0.989), (module.fc2, 0.972), (module.fc3, 0.62)):
        layer.weight *= torch.rand(layer.weight.shape, generator=generator) >= zeros
    return module


@torch.no_grad()
def half_the_filters(module: nn.Module) -> nn.Module:
    for p in module.parameters():
        if p.dim() == 4:
            p[len(p) // 2 :] = 0
    return module


CASES = {
    "LeNet-5-Caffe at SBP's widths": (sbp_widths, (1, 28, 28)),
    "LeNet-300-100 at SparseVD's zeros": (sparse_vd_zeros, (1, 28, 28)),
    "VGG-like, k = 0.5, half the filters": (lambda: half_the_filters(vgg_like((3, 32, 32), width=0.5)), (3, 32, 32)),
    "ResNet-18, half the filters": (lambda: half_the_filters(resnet18((3, 32, 32))), (3, 32, 32)),
}


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name, (make, shape) in CASES.items():
        torch.manual_seed(0)
        module = make().to(device)
        report = compress(module, example=torch.randn(2, *shape, device=device)).compression
        gains = ", ".join(f"batch {batch} {old / new:.2f}x" for batch, (old, new) in report.latency.items())
        smaller = {"parameters": report.parameters, "FLOPs": report.flops, "bytes": report.bytes}
        sizes = ", ".join(f"{what} {old / new:.1f}x" for what, (old, new) in smaller.items())
        print(f"{name} ({device}): weights {report.ratio:.1f}x, {sizes}; time: {gains} [{report.form}]")


if __name__ == "__main__":
    main()
