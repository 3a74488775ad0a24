"""The VOGN poster on CIFAR-10 (Osawa et al. 2019): LeNet-5, AlexNet with and without crops and flips, and ResNet-18.

The poster's protocol, for LeNet-5 with its 210 epochs at a constant learning rate, for AlexNet with its 160, for
ResNet-18 with 40, these with drops at half and three quarters; ResNet-18 has ImageNet's stem.
Adam, MC dropout and VOGN start from the poster's settings, and what was changed was chosen on held-out training images:
what meets most of the poster's figures there, and then by NLL. AUROC is that of telling right from wrong answers by
confidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import nn

import posterity as pst
from benchmarks.quality.tables import Row, Table, decay, row
from posterity import data
from posterity.data.augment import CropFlip
from posterity.models import alexnet, lenet5, resnet18
from posterity.optim.schedules import MultiStep

SOURCE = "the VOGN poster, where LeNet-5 had 210 epochs (Bayes by Backprop 800) and the others 160"
DROPS = MultiStep((0.5, 0.75))


def cifar10(seed: int) -> data.DataSet:
    """The same for every seed."""
    return data.load("cifar10")


def precision(value: float) -> pst.priors.Normal:
    """A prior of this precision."""
    return pst.priors.Normal(value**-0.5)


def cells(accuracy: float, nll: float, ece: float, auroc: float) -> Mapping[str, float]:
    """One line of the poster."""
    return {"accuracy": accuracy / 100, "nll": nll, "ece": ece, "misclassification_auroc": auroc}


# In the poster the curvature is that of the current batch (beta2 = 0), averaged over several draws; here it is averaged
# over about four steps of one draw. Four draws are better still, and four times as slow: on held-out images, after 210
# epochs, a precision of 30 gave NLL 0.876, ECE 0.050 and AUROC 0.811, and 10, at lr 1e-4, gave 0.927, 0.020 and 0.792.
VOGN = pst.VOGN(lr=2e-4, prior=precision(20), damping=1e-3, beta2=0.75, init_precision=None, warmup=0.1)
DROPOUT = pst.Dropout(rate=0.1, prior=decay(0.01), insert=("conv2", "fc*"))
LENET5: dict[str, Row] = {
    "Adam": row(pst.MAP(prior=decay(0.01)), lr=1e-3, schedule="constant"),
    "MeanField": row(
        pst.MeanField(prior=pst.priors.Normal(0.3)),
        pst.MeanField(prior=pst.priors.Normal(1.0)),
        pst.MeanField(prior=pst.priors.Normal(0.1)),
        lr=1e-3,
    ),
    "MC dropout": row(
        DROPOUT, replace(DROPOUT, prior=decay(1e-3)), replace(DROPOUT, prior=decay(3e-3)), lr=1e-3, schedule="constant"
    ),
    "VOGN": row(VOGN, replace(VOGN, prior=precision(30)), schedule="constant"),
    # At the default beta2 the Hessian has hardly left its first value when the run is over, and the network over-fits.
    "IVON": row(
        pst.IVON(lr=0.2, hess_init=0.1, prior=precision(10)),
        pst.IVON(lr=0.2, hess_init=0.02, prior=precision(10)),
        pst.IVON(lr=0.5, hess_init=0.1, prior=precision(10)),
        pst.IVON(lr=0.2, hess_init=0.02, beta2=0.9999, prior=precision(10)),
        pst.IVON(lr=0.2, hess_init=0.1, beta2=0.9999, prior=precision(10)),
        pst.IVON(lr=0.1, hess_init=0.02, beta2=0.9999, prior=precision(30)),
    ),
    "OGN": row(
        pst.OGN(lr=2e-4, prior=decay(0.01), damping=1e-3, beta2=0.9, init_precision=None),
        pst.OGN(lr=2e-4, prior=decay(1e-3), damping=1e-3, beta2=0.9, init_precision=None),
    ),
    "K-FAC": row(pst.KFAC(lr=1e-3, prior=decay(1e-3)), pst.KFAC(lr=1e-3, prior=decay(1e-2))),
    "Noisy K-FAC": row(
        pst.NoisyKFAC(lr=1e-3, prior=precision(30), warmup=0.1),
        pst.NoisyKFAC(lr=1e-3, prior=precision(100), warmup=0.1),
        pst.NoisyKFAC(lr=1e-3, prior=precision(30), damping=1e-3, warmup=0.1),  # damping narrows the posterior, too
        pst.NoisyKFAC(lr=2e-4, prior=precision(20), damping=1e-3, beta2=0.75, warmup=0.1),  # as VOGN's
    ),
}


# Each example counts for ten, as in the poster's files, also without augmentation: at one the noise drowns the start.
ALEXNET_VOGN = pst.VOGN(
    lr=1e-4,
    prior=precision(10),
    damping=1e-3,
    augmentation_factor=10,
    beta2=0.9,
    init_precision=None,
    warmup=0.06,
    warmup_start=0.5,
)
ALEXNET: dict[str, Row] = {
    "Adam": row(pst.MAP(prior=decay(1e-4)), lr=1e-3, schedule=DROPS),
    "MC dropout": row(pst.Dropout(rate=0.1, prior=decay(1e-4), insert=("3", "6", "8", "1?")), lr=1e-3, schedule=DROPS),
    "VOGN": row(
        ALEXNET_VOGN,
        replace(ALEXNET_VOGN, lr=3e-4, damping=3e-3),
        replace(ALEXNET_VOGN, lr=3e-4, damping=3e-3, augmentation_factor=3),
        replace(ALEXNET_VOGN, lr=1e-3, damping=1e-2),
        replace(ALEXNET_VOGN, lr=1e-3, damping=1e-2, augmentation_factor=3),
        replace(ALEXNET_VOGN, lr=1e-3, damping=3e-3, augmentation_factor=5),
        replace(ALEXNET_VOGN, lr=1e-3, damping=1e-2, augmentation_factor=2),
        replace(ALEXNET_VOGN, lr=1e-3, damping=1e-2, augmentation_factor=3, prior=precision(100)),
        replace(ALEXNET_VOGN, lr=1e-3, damping=1e-2, augmentation_factor=5),
        replace(ALEXNET_VOGN, lr=1e-3, damping=1e-2, augmentation_factor=2, mc_samples=4),
        replace(ALEXNET_VOGN, lr=1e-3, damping=1e-2, augmentation_factor=1, mc_samples=4),
        replace(ALEXNET_VOGN, lr=1e-3, damping=1e-2, augmentation_factor=5, mc_samples=2),
        replace(ALEXNET_VOGN, lr=1e-3, damping=1e-2, augmentation_factor=3, mc_samples=2),
        replace(ALEXNET_VOGN, lr=3e-4, damping=3e-3, augmentation_factor=3, mc_samples=4),  # the poster has 24 draws
        replace(ALEXNET_VOGN, lr=1e-3, damping=1e-2, augmentation_factor=1),
        replace(ALEXNET_VOGN, lr=1e-3, damping=1e-2, augmentation_factor=1, temperature=2.0),
        replace(ALEXNET_VOGN, lr=1e-3, damping=1e-2, augmentation_factor=1, temperature=2.0, mc_samples=2),
        replace(ALEXNET_VOGN, lr=1e-3, damping=1e-2, augmentation_factor=1, prior=precision(100)),
        replace(ALEXNET_VOGN, lr=1e-3, damping=1e-2, augmentation_factor=1, temperature=3.0, mc_samples=2),
        schedule=DROPS,
    ),
    "IVON": row(
        pst.IVON(lr=0.2, hess_init=0.1, prior=decay(2e-4)),
        pst.IVON(lr=0.2, hess_init=0.02, prior=decay(2e-4)),
        pst.IVON(lr=0.05, hess_init=0.5, prior=decay(2e-4)),
        pst.IVON(lr=0.2, hess_init=0.02, beta2=0.999, prior=decay(2e-4)),
        pst.IVON(lr=0.2, hess_init=0.1, beta2=0.9995, prior=decay(2e-4)),
    ),
    "OGN": row(pst.OGN(lr=3e-4, prior=decay(1e-3), damping=1e-2, beta2=0.9, init_precision=None), schedule=DROPS),
    "K-FAC": row(pst.KFAC(lr=1e-3, prior=decay(1e-3), damping=0.03), schedule=DROPS),
    "Noisy K-FAC": row(
        pst.NoisyKFAC(lr=1e-3, prior=precision(10), damping=0.03, warmup=0.06, warmup_start=0.5), schedule=DROPS
    ),
}


RESNET18_VOGN = pst.VOGN(
    lr=1e-4,
    prior=precision(50),
    damping=1e-3,
    augmentation_factor=10,
    beta2=0.9,
    init_precision=None,
    momentum_correction=True,
)
RESNET18: dict[str, Row] = {
    "Adam": row(pst.MAP(prior=decay(5e-4)), lr=1e-3, schedule=DROPS),
    "MC dropout": row(pst.Dropout(rate=0.1, prior=decay(5e-4), insert=("*.conv?", "14")), lr=1e-3, schedule=DROPS),
    "VOGN": row(
        RESNET18_VOGN,
        replace(RESNET18_VOGN, lr=3e-4),
        replace(RESNET18_VOGN, lr=1e-3, damping=1e-2),
        schedule=DROPS,
    ),
    "IVON": row(pst.IVON(lr=0.1, hess_init=0.5, prior=decay(5e-4)), pst.IVON(lr=0.2, hess_init=0.5, prior=decay(2e-4))),
}


def lenet5_bn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """LeNet-5 with BatchNorm after each convolution."""
    layers = list(lenet5(shape, outputs))
    return nn.Sequential(layers[0], nn.BatchNorm2d(6), *layers[1:4], nn.BatchNorm2d(16), *layers[4:])


def with_bn(dataset: data.DataSet) -> nn.Module:
    """For rows of the ablation."""
    return lenet5_bn(dataset.shape, dataset.outputs)


WITH_MOMENTUM = row(VOGN, schedule="constant")
WITHOUT = row(replace(VOGN, beta1=0.0, lr=2e-3), schedule="constant")
ABLATION: dict[str, Row] = {
    "VOGN": WITH_MOMENTUM,
    "without momentum": WITHOUT,
    "with BatchNorm": replace(WITH_MOMENTUM, network=with_bn),
    "with BatchNorm, without momentum": replace(WITHOUT, network=with_bn),
}

TABLES = (
    Table(
        name="poster_lenet5",
        title="LeNet-5 on CIFAR-10: the VOGN poster",
        about="No augmentation.",
        data=cifar10,
        network=lambda dataset: lenet5(dataset.shape, dataset.outputs),
        rows=LENET5,
        epochs=210,
        published={
            "Adam": cells(67.67, 0.937, 0.021, 0.794),
            "MeanField": cells(64.61, 1.018, 0.045, 0.784),
            "MC dropout": cells(67.65, 0.99, 0.087, 0.797),
            "VOGN": cells(67.32, 0.938, 0.046, 0.800),
        },
        source=SOURCE,
        remarks="IVON's beta2 matters ([how](guides/natural-gradient.md#how-fast-ivons-hessian-follows)): with the "
        "default it had accuracy 62.2%, NLL 1.403 and ECE 0.146 (seed 0). OGN's weight decay was "
        "chosen in trials of all 210 epochs on held-out images (NLL 0.916); with a tenth of it, which had been ahead "
        "after 20 epochs (1.034 for 1.142), it learned the images by heart (59.6%, 2.760), as K-FAC did (61.3%, "
        "2.584 on the test images, seed 0). The K-FACs, which "
        "need fewer epochs, had 50 and 20 on a CPU, beside up to five other runs, so that their seconds are left "
        "out. Noisy K-FAC's best setting on held-out images had NLL 0.851 after 20 epochs and 0.944 after 50; its "
        "first, in 210, had 64.8% and 1.765: there the damping (0.01, now 0.001), which counts as curvature, "
        "narrows the posterior. MC dropout has 0.3 of the poster's weight decay, chosen on held-out images; with "
        "all of it, it had accuracy 65.5%, NLL 1.025, ECE 0.091 and AUROC 0.781 (three seeds).",
    ),
    Table(
        name="poster_alexnet",
        title="AlexNet on CIFAR-10 without augmentation",
        about="As the poster's: one dense layer, 2.5 million weights.",
        data=cifar10,
        network=lambda dataset: alexnet(dataset.shape, dataset.outputs),
        rows=ALEXNET,
        epochs=160,
        batch_size=256,
        published={
            "Adam": cells(67.94, 2.83, 0.262, 0.793),
            "MC dropout": cells(72.20, 1.077, 0.140, 0.818),
            "VOGN": cells(69.03, 0.93, 0.024, 0.796),
        },
        source=SOURCE,
        same_load=False,
        remarks="VOGN meets all four figures; ECE by the mean alone (two of three seeds are at 0.026). Nine settings "
        "had trials of all 160 epochs on held-out images. The poster's own, ten-fold data and one draw a step, "
        "over-fits there (63.9%, NLL 2.146, ECE 0.222), as it does with three-fold data. The noise must be as wide as "
        "one-fold data makes it and wider, and then learning suffers unless it is averaged over draws: at temperature "
        "1 one draw had NLL 0.970 and ECE 0.081, four 1.019 and 0.104; at 2 one draw had 66.8%, 0.952 and 0.043, and "
        "two had 69.9%, 0.863, 0.037 and AUROC 0.805, and were chosen; at 3 two draws had 63.7%, 1.041 and 0.075. "
        "K-FAC and Noisy K-FAC had a quarter of the epochs: theirs cost five times as much. Neither they nor OGN had "
        "trials, and all three learn the images by heart. Rows ran beside more or fewer others, so their seconds do "
        "not compare.",
    ),
    Table(
        name="poster_alexnet_augmented",
        title="AlexNet on CIFAR-10 with crops and flips",
        about="As above, augmented. The poster prints the same ECE and AUROC for Adam as without augmentation.",
        data=cifar10,
        network=lambda dataset: alexnet(dataset.shape, dataset.outputs),
        rows=ALEXNET,
        epochs=160,
        batch_size=256,
        augment=CropFlip(),
        published={
            "Adam": cells(73.59, 1.480, 0.262, 0.793),
            "MC dropout": cells(77.04, 0.667, 0.114, 0.828),
            "VOGN": cells(75.48, 0.703, 0.016, 0.832),
        },
        source=SOURCE,
        same_load=False,
        remarks="VOGN meets all four figures with every seed. It has two-fold data and one draw a step, chosen in "
        "trials of all 160 epochs: 77.0%, NLL 0.670, ECE 0.011 and AUROC 0.835 on held-out images; three-fold data "
        "gave NLL 0.695 and ECE 0.029, with two draws 0.658 and 0.037, and less damping 0.771 and 0.034. In 80 "
        "epochs it had missed NLL, ECE and AUROC. K-FAC and Noisy K-FAC had half of the epochs, without trials, and "
        "two seeds and one: the GPU's time was over. IVON has the default beta2; with 0.9995 it had diverged in the "
        "32nd epoch. Rows ran beside more or fewer others, so their seconds do not compare.",
    ),
    Table(
        name="poster_resnet18",
        title="ResNet-18 with ImageNet's stem on CIFAR-10",
        about="The stem leaves 8 × 8 of 32 × 32 pixels, which is why the accuracy is so low.",
        data=cifar10,
        network=lambda dataset: resnet18(dataset.shape, dataset.outputs, stem="imagenet"),
        rows=RESNET18,
        epochs=40,
        batch_size=256,
        augment=CropFlip(),
        autocast=True,
        published={
            "Adam": cells(86.00, 0.55, 0.082, 0.877),
            "MC dropout": cells(82.85, 0.51, 0.166, 0.768),
            "VOGN": cells(84.27, 0.477, 0.040, 0.876),
        },
        source=SOURCE,
        same_load=False,
        remarks="In a quarter of the poster's epochs VOGN meets all of its figures, with every seed; Adam's accuracy "
        "is 0.4 points behind. Rows ran beside more or fewer others, so their seconds do not "
        "compare.",
    ),
    Table(
        name="poster_ablation",
        title="VOGN with and without momentum and BatchNorm",
        about="LeNet-5 on CIFAR-10. Without momentum the learning rate is ten times larger, as 1/(1 − 0.9) is.",
        data=cifar10,
        network=lambda dataset: lenet5(dataset.shape, dataset.outputs),
        rows=ABLATION,
        epochs=60,
        curves=True,
        remarks="Momentum is worth 1.9 points of accuracy with BatchNorm, more than the spread, and 1.0 without it, "
        "less than the spread. BatchNorm by itself is worth nothing here.",
    ),
)
