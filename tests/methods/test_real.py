"""Real MNIST: every way to a posterior learns it, calibrated, with hardly a setting changed. Slow; needs the data.

After four epochs of 20,000 images a plain LeNet-5 has an accuracy of 97.3%, an NLL of 0.09 and an ECE of 0.008 on the
10,000 test images, where a standard error of the accuracy is 0.2%. The bounds leave twice the errors for a method.
"""

from __future__ import annotations

import pytest

import posterity as pst
from posterity import data
from posterity.methods.tempering import LinearKL
from posterity.models import lenet5, lenet_300_100

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not any(d.name == "mnist" and d.here for d in data.describe()), reason="no MNIST here"),
]
SHAPE = (1, 28, 28)
METHODS = [
    pst.MAP(),
    pst.Dropout(rate=0.1, insert=("fc*",)),
    pst.SWAG(rank=5, start=0.5, every=20),
    pst.MeanField(),
    pst.HWA(),
    pst.VOGN(),
    pst.IVON(hess_init=0.1),
    pst.NoisyKFAC(),
    pst.SGHMC(lr=0.01),
    pst.Cyclical(),
    pst.Laplace(structure="last-layer"),
    pst.SparseVD(),
    pst.MNF(),
]


@pytest.fixture(scope="module")
def mnist() -> data.DataSet:
    return data.load("mnist")


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_mnist_is_learned_and_calibrated(method: pst.Method, mnist: data.DataSet) -> None:
    few = tuple(part[:20_000] for part in mnist.training())
    training = pst.Training(batch_size=100, progress=False)
    posterior = pst.fit(lambda: lenet5(SHAPE), method, few, epochs=4, seed=0, training=training)
    scores = pst.evaluate(posterior, mnist, draws=16)
    assert scores["accuracy"] > 0.945 and scores["nll"] < 0.18 and scores["ece"] < 0.04


def test_sparse_vd_leaves_a_small_network_that_is_as_good(mnist: data.DataSet) -> None:
    """Twenty epochs of the published 200: 25 times fewer weights at 1.6% test error."""
    method = pst.SparseVD(kl_schedule=LinearKL(fraction=0.3, delay=0.1), clip_start=0.6, finetune=0.15)
    training = pst.Training(batch_size=200, lr=2e-3, progress=False)
    posterior = pst.fit(lambda: lenet_300_100(SHAPE), method, mnist.training(), epochs=20, seed=0, training=training)
    report = pst.compress(posterior, validation=[mnist.test]).compression
    before, after = report.accuracy or (0.0, 0.0)
    assert after == before > 0.98
    assert report.bytes[0] > 15 * report.bytes[1]
    weights = [w for name, w in posterior.mean().items() if name.endswith("weight")]
    assert sum(w.numel() for w in weights) > 20 * sum(int((w != 0).sum()) for w in weights)
