"""Out of distribution: can a posterior tell foreign images from those it knows?

LeNet-5 on MNIST and on Fashion-MNIST against notMNIST, KMNIST and each other; AlexNet on CIFAR-10 against
Tiny-ImageNet-32. Foreign images are standardised as the known ones were. Two scores: the entropy of the prediction, and
its epistemic part, which a point such as MAP does not have (AUROC 0.5, FPR95 0.95).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import posterity as pst
from benchmarks.quality.poster_cifar10 import ALEXNET, cifar10
from benchmarks.quality.tables import Candidate, Finished, Line, Row, Table, decay, own, row
from posterity import data
from posterity.data import DataSet
from posterity.data.augment import CropFlip
from posterity.models import alexnet, lenet5

FOREIGN = {
    "notMNIST": "notmnist",
    "KMNIST": "kmnist",
    "Fashion": "fashion-mnist",
    "MNIST": "mnist",
    "Tiny-ImageNet": "tiny-imagenet-32",
}
SCORES = ("auroc_entropy", "auroc_epistemic", "fpr95_entropy", "fpr95_epistemic")


def against(*names: str) -> Callable[[DataSet], Mapping[str, DataSet]]:
    """Foreign sets in the units of the known one, as many images as that has to test on."""

    def foreign(known: DataSet) -> dict[str, DataSet]:
        found = {name: data.load(FOREIGN[name]).in_units_of(known) for name in names}
        count = len(known.test[1])
        return {
            name: replace(other, test=(other.test[0][:count], other.test[1][:count])) for name, other in found.items()
        }

    return foreign


def shown(*names: str) -> tuple[str, ...]:
    """Accuracy, NLL and ECE, and the scores against each foreign set."""
    return ("accuracy", "nll", "ece", *(f"{name}/{score}" for name in names for score in SCORES))


def last_layer(finished: Finished) -> pst.Posterior:
    """Laplace of the last layer alone, about the same weights."""
    method = replace(finished.method, structure="last-layer")
    return method.post_hoc(finished.posterior.module, finished.data.training(), finished.posterior.likelihood)


LAPLACES: dict[str, Line] = {"Laplace": own, "Laplace, last layer": last_layer}


def rows(prior: pst.priors.Normal, dropped: tuple[str, ...]) -> dict[str, Row]:
    """The methods; ``dropped`` names the layers whose inputs are dropped."""
    mean_field = pst.MeanField()
    return {
        "MAP": row(pst.MAP(prior=prior), lr=1e-3),
        "Ensemble": Row((Candidate(pst.MAP(prior=prior), pst.Training(lr=1e-3), members=5),)),
        "MC dropout": row(
            pst.Dropout(rate=0.1, prior=prior, insert=dropped),
            pst.Dropout(rate=0.3, prior=prior, insert=dropped),
            lr=1e-3,
        ),
        "MeanField": row(mean_field, pst.MeanField(prior=pst.priors.Normal(0.3)), lr=1e-3),
        "HWA": row(pst.HWA(of=mean_field, spread="moments"), pst.HWA(of=mean_field, spread="mixture"), lr=1e-3),
        "SWAG": row(pst.SWAG(rank=20, prior=prior, lr=0.02), lr=0.05, optimizer="sgd"),
        "Cyclical SGHMC": row(pst.Cyclical(of=pst.SGHMC(lr=0.05, prior=prior), cycles=4, explore=0.8, samples=8)),
        "VOGN": row(pst.VOGN(prior=prior), pst.VOGN(prior=prior, damping=0.01)),
        "IVON": row(pst.IVON(prior=prior, hess_init=0.5), pst.IVON(prior=prior, hess_init=0.1, lr=0.1)),
        "Laplace": replace(row(pst.Laplace(prior=prior), lr=1e-3), lines=LAPLACES),
    }


CIFAR = decay(5e-4)
CIFAR_MEAN_FIELD = pst.MeanField(prior=pst.priors.Normal(0.1))
CIFAR_ROWS = {  # deeper, with more weights, and without normalisation: smaller steps and a tighter prior
    "MeanField": row(CIFAR_MEAN_FIELD, replace(CIFAR_MEAN_FIELD, temperature=0.1), lr=1e-3),
    "HWA": row(pst.HWA(of=CIFAR_MEAN_FIELD, spread="moments"), lr=1e-3),
    "SWAG": row(pst.SWAG(rank=20, prior=CIFAR, lr=5e-4), lr=1e-3),
    "Cyclical SGHMC": row(
        pst.Cyclical(of=pst.SGHMC(lr=0.02, prior=CIFAR), cycles=4, explore=0.8, samples=8),
        pst.Cyclical(of=pst.SGHMC(lr=0.05, prior=CIFAR), cycles=4, explore=0.8, samples=8),
    ),
    "VOGN": ALEXNET["VOGN"],
    "IVON": ALEXNET["IVON"],
    "Laplace": row(pst.Laplace(prior=CIFAR, structure="last-layer"), lr=1e-3),
}


def digits(name: str, title: str, known: str, *foreign: str) -> Table:
    """LeNet-5 on a set of MNIST's size."""
    return Table(
        name=name,
        title=title,
        about="LeNet-5.",
        data=lambda seed: data.load(known),
        network=lambda dataset: lenet5(dataset.shape, dataset.outputs),
        rows=rows(pst.priors.Normal(1.0), ("conv2", "fc*")),
        epochs=15,
        batch_size=256,
        figures=shown(*foreign),
        ood=against(*foreign),
    )


TABLES = (
    digits("ood_mnist", "Out of distribution: MNIST", "mnist", "notMNIST", "KMNIST", "Fashion"),
    digits("ood_fashion", "Out of distribution: Fashion-MNIST", "fashion-mnist", "notMNIST", "KMNIST", "MNIST"),
    Table(
        name="ood_cifar10",
        title="Out of distribution: CIFAR-10",
        about="AlexNet with crops and flips; 2,000 images of Tiny-ImageNet-32, many of which show what CIFAR-10 shows.",
        data=cifar10,
        network=lambda dataset: alexnet(dataset.shape, dataset.outputs),
        rows=rows(CIFAR, ("3", "6", "8", "1?")) | CIFAR_ROWS,
        epochs=30,
        batch_size=256,
        augment=CropFlip(),
        figures=shown("Tiny-ImageNet"),
        ood=against("Tiny-ImageNet"),
    ),
)
