"""The rows of the MNIST sparsity table: which network, which method, and how it is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

import posterity as pst
from posterity.methods.tempering import LinearKL
from posterity.models import lenet5_caffe, lenet_300_100, mlp

RAMP = LinearKL(fraction=0.1, delay=1 / 30)
SHAPE = (1, 28, 28)


@dataclass(frozen=True)
class Row:
    """One row of the table: what is trained, and how."""

    network: Callable[[], nn.Module]
    method: pst.Method
    epochs: int
    lr: float
    batch: int = 100
    shift: int = 0
    random_labels: bool = False


def wide(units: int) -> nn.Module:
    """A fully connected network that can hold 60,000 random labels."""
    return mlp(784, 10, (units, units, units))


CAFFE = Row(
    lambda: lenet5_caffe(SHAPE),
    pst.SparseVD(kl_schedule=RAMP, clip_start=0.2, finetune=1 / 8, decay_start=0.0, temperature=1.303),
    epochs=400,
    lr=2e-3,
    batch=200,
)
ROWS = {
    "lenet-300-100": Row(
        lambda: lenet_300_100(SHAPE),
        pst.SparseVD(kl_schedule=RAMP, clip_start=0.4, finetune=20 / 150, temperature=1.15),
        epochs=150,
        lr=1e-3,
    ),
    "lenet-5-caffe": CAFFE,
    "lenet-5-caffe-shifted": replace(CAFFE, method=replace(CAFFE.method, temperature=1.179), lr=4e-3, shift=1),
    "ard": Row(
        lambda: lenet_300_100(SHAPE),
        pst.ARD(kl_schedule=RAMP, clip_start=0.4, finetune=20 / 150),
        epochs=150,
        lr=1e-3,
    ),
    "structured": Row(
        lambda: lenet5_caffe(SHAPE),
        pst.GroupSparse(
            prior=pst.priors.LogUniform(),
            temperature=0.1,
            unit_weight={"conv1*": 1000, "conv2*": 400, "fc*": 8},  # about as the operations of a unit
            kl_schedule=RAMP,
            clip_start=0.4,
            finetune=0.15,
            decay_start=0.3,
        ),
        epochs=200,
        lr=2e-3,
        batch=200,
    ),
    "random-labels": Row(
        lambda: wide(2048),
        pst.SparseVD(kl_schedule="constant", clip_start=0.5, finetune=0.05),
        epochs=60,
        lr=1e-3,
        batch=200,
        random_labels=True,
    ),
    "random-labels-dropout": Row(
        lambda: wide(1024),
        pst.Dropout(rate=0.5, insert=("fc4",), prior=pst.priors.Normal(100.0)),
        epochs=200,
        lr=5e-4,
        batch=200,
        random_labels=True,
    ),
}
