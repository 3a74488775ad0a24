"""The Bayesian CNN talk (Shridhar et al. 2019) and multiplicative normalizing flows (Louizos & Welling 2017).

LeNet-5 and AlexNet, plain and Bayesian; and two ways to pay for the second parameter of every weight: half of the
filters, or a quarter of the weights, by L1 or by signal to noise. ``stored`` counts the numbers that a posterior keeps.
AlexNet sees MNIST padded to 32 × 32. CIFAR-5 is the first five classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

import posterity as pst
from benchmarks.quality.poster_cifar10 import cifar10
from benchmarks.quality.tables import Finished, Network, Row, Table, only, own, row
from posterity import data, masks
from posterity.data import DataSet
from posterity.models import lenet5_caffe
from posterity.posteriors import Empirical

QUARTER = 0.25
STILL = math.exp(-9.0)
"""The std of the weights with which the flows' authors begin."""


def lenet5(width: float) -> Network:
    """LeNet-5 with all hidden widths times ``width``."""
    first, second, third, fourth = (round(width * w) for w in (6, 16, 120, 84))
    return lambda dataset: nn.Sequential(
        nn.Conv2d(dataset.shape[0], first, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.LazyLinear(third), nn.ReLU(), nn.Linear(third, fourth), nn.ReLU(),
        nn.Linear(fourth, dataset.outputs),
    )  # fmt: skip


def alexnet(width: float) -> Network:
    """The AlexNet of the VOGN table with all hidden widths times ``width``, for images padded to 32 × 32."""
    a, b, c, d = (round(width * w) for w in (64, 192, 384, 256))
    return lambda dataset: nn.Sequential(
        nn.ZeroPad2d((32 - dataset.shape[1]) // 2),
        nn.Conv2d(dataset.shape[0], a, 11, stride=4, padding=5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(a, b, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(b, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, d, 3, padding=1), nn.ReLU(),
        nn.Conv2d(d, d, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(d, dataset.outputs),
    )  # fmt: skip


def quarter(finished: Finished) -> pst.Posterior:
    """The quarter of the weights with the most signal to noise, at their means."""
    q = finished.posterior
    assert isinstance(q, pst.WeightPosterior)
    mean = q.mean()
    best = masks.top_fraction(masks.signal_to_noise(mean, q.variance()), QUARTER)
    point = mean | {name: mean[name].masked_fill(~kept, 0) for name, kept in best.items()}
    return Empirical(q.module, q.likelihood, [point])


def talk(network: Callable[[float], Network]) -> dict[str, Row]:
    """The rows of the talk for a network of any width."""
    # Prior and weight of the KL (0.1) are those of the talk's code; a weight of 1 is the Bayes posterior.
    cold = pst.MeanField(prior=pst.priors.Normal(0.1), temperature=0.1)
    bayesian = row(cold, *(replace(cold, temperature=t) for t in (1.0, 0.01, 0.3)), lr=1e-3)
    plain = row(*(pst.MAP(prior=pst.priors.Normal(std)) for std in (1.0, 0.3, 0.1, 0.05)), lr=1e-3)
    return {
        "Plain": plain,
        "Plain, half width": replace(plain, network=network(0.5), follows="Plain"),
        "Bayesian": replace(bayesian, lines={"Bayesian": own, "Bayesian, a quarter by signal to noise": quarter}),
        "Bayesian, half width": replace(bayesian, network=network(0.5), follows="Bayesian"),
        "Plain, a quarter by L1": row(
            *(pst.Pruning(keep=QUARTER, prior=pst.priors.Laplace(scale)) for scale in (0.1, 1.0, 10.0)), lr=1e-3
        ),
    }


def mnist(seed: int) -> DataSet:
    """The same for every seed."""
    return data.load("mnist")


def table(
    name: str, title: str, network: Callable[[float], Network], of: Callable[[int], DataSet], **options: Any
) -> Table:
    """One of the talk's four."""
    plain, bayesian = options.pop("published")
    return Table(
        name=name,
        title=title,
        about="Mean field and two ways to pay for the second number of every weight.",
        data=of,
        network=network(1.0),
        rows=talk(network),
        figures=("accuracy", "nll", "ece", "stored"),
        published={"Plain": {"accuracy": plain}, "Bayesian": {"accuracy": bayesian}},
        source="the Bayesian CNN talk (recalled, whole percents)",
        **options,
    )


def louizos_cifar(dataset: DataSet) -> nn.Module:
    """The paper's network for CIFAR-5: two convolutions of 192 filters and a dense layer of 1,000 units."""
    return nn.Sequential(
        nn.Conv2d(3, 192, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(192, 192, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(192 * 25, 1000), nn.ReLU(), nn.Linear(1000, dataset.outputs),
    )  # fmt: skip


def flows(dense: str, lr: float) -> dict[str, Row]:
    """Flows and what they are compared with.

    Args:
        dense: Names the layers whose inputs are dropped.
        lr: Of all rows.
    """
    mean_field, flow = pst.MeanField(kl_schedule="linear"), pst.MNF(kl_schedule="linear")
    return {
        "L2": row(pst.MAP(), lr=lr),
        "Dropout": row(pst.Dropout(rate=0.5, insert=(dense,)), lr=lr),
        "MeanField": row(mean_field, replace(mean_field, temperature=0.1), lr=lr),
        "MNF": row(flow, replace(flow, temperature=0.1), replace(flow, init_std=STILL), lr=lr),
    }


def errors(**percent: float) -> dict[str, dict[str, float]]:
    """Published test errors as accuracies."""
    return {name: {"accuracy": 1 - value / 100} for name, value in percent.items()}


FLOWS = "Louizos & Welling 2017, 100 epochs"
TABLES = (
    table(
        "bcnn_lenet5_mnist",
        "Bayesian LeNet-5 on MNIST",
        lenet5,
        mnist,
        epochs=20,
        published=(0.98, 0.98),
        remarks="Of L1's scales (0.1, 1 and 10) the weakest penalty was best on held-out images.",
    ),
    table(
        "bcnn_lenet5_cifar10",
        "Bayesian LeNet-5 on CIFAR-10",
        lenet5,
        cifar10,
        epochs=40,
        published=(0.68, 0.69),
        remarks="The talk has 200 epochs. Plain's prior (0.05) and the temperature (0.3) were chosen in trials of 40 "
        "epochs on held-out images; temperatures of 1 and 0.01 were left after 15. With a standard normal prior and "
        "a temperature of 0.1 the two had accuracy 65.4% and 67.4%, NLL 1.163 and 0.971. At half the "
        "width the same prior is too narrow for the plain network, which had 57.0% with the standard normal one. By "
        "signal to noise a quarter of the weights loses more here than by L1, which is trained for it.",
    ),
    table("bcnn_alexnet_mnist", "Bayesian AlexNet on MNIST", alexnet, mnist, epochs=10, published=(0.99, 0.99)),
    table(
        "bcnn_alexnet_cifar10",
        "Bayesian AlexNet on CIFAR-10",
        alexnet,
        cifar10,
        epochs=40,
        published=(0.73, 0.73),
        same_load=False,
        remarks="40 of the talk's 200 epochs. Plain's prior (0.05) and the temperature (0.3) were chosen by NLL in "
        "trials of 15 epochs on held-out images, two of each; a prior of 0.1 had accuracy 68.4% and NLL 1.066 there, "
        "0.05 had 64.8% and 1.013. With a standard normal prior and a temperature of 0.1 accuracy was 68.2% and 69.2%, "
        "NLL 4.462 and 1.244 (seed 0). Without augmentation all rows learn the training images by heart, the Bayesian "
        "ones least; both accuracies stay behind. Runs shared two cores, so their seconds do not compare.",
    ),
    Table(
        name="mnf_mnist",
        title="Multiplicative normalizing flows on MNIST",
        about="LeNet-5 of Caffe's size; notMNIST is the foreign set.",
        data=mnist,
        network=lambda dataset: lenet5_caffe(dataset.shape, dataset.outputs),
        rows=flows("fc*", lr=1e-3),
        epochs=20,
        figures=("accuracy", "nll", "ece", "notMNIST/auroc_entropy"),
        ood=lambda known: {"notMNIST": data.load("notmnist").in_units_of(known)},
        published=errors(L2=0.6, Dropout=0.5, Ensemble=0.7, MeanField=0.9, MNF=0.7),
        source=FLOWS,
        ensembles={"Ensemble": "L2"},
    ),
    Table(
        name="mnf_cifar5",
        title="Multiplicative normalizing flows on CIFAR-5",
        about="The first five classes of CIFAR-10; the other five are the foreign set.",
        data=lambda seed: only(cifar10(seed), (0, 1, 2, 3, 4)),
        network=louizos_cifar,
        rows=flows("[79]", lr=3e-4),
        epochs=30,
        held=2500,
        figures=("accuracy", "nll", "ece", "other five/auroc_entropy"),
        ood=lambda known: {"other five": only(cifar10(0), (5, 6, 7, 8, 9)).in_units_of(known)},
        published=errors(L2=24, Dropout=16, Ensemble=21, MeanField=22, MNF=16),
        source=FLOWS,
        same_load=False,
        remarks="30 of the published 100 epochs. The runs shown had a learning rate of 1e-3, at which luck decides how "
        "well the network trains: of the three seeds of L2 one ends at a training loss of 0.004 and 78.4%, the others "
        "at 0.51 and 0.64 with 72.3% and 70.4%, and one of Dropout's stayed at the loss of a guess for ten epochs. "
        "Such a step of Adam's is too long for sums over 4,800 inputs: on held-out images L2 had 55.6% and NLL 1.032 "
        "after four of six epochs, and 79.2% and 0.561 with 3e-4; with that MeanField had 77.6% and 0.627 after four "
        "epochs, where it had 70.1% and 0.784 after thirty with 1e-3, and MNF a training loss of 0.70, where the runs "
        "shown end at 0.90 to 1.12 (one seed each, on a CPU in bfloat16). All rows of the table have 3e-4 now; these "
        "runs wait for a GPU. MeanField and MNF "
        "had trials at temperatures 1, which was chosen by NLL, and 0.1. At 1 the KL of five million weights weighs "
        "more than 25,000 images: MNF's training loss rises again as the KL sets in, from 0.87 to 0.90 with seed 0 "
        "and from 0.96 and 1.03 to 1.05 and 1.12 with the others; at 0.1 its trial had accuracy 78.8% and NLL 0.819, "
        "against 76.6% and 0.693. MNF's runs here are from before every example of a batch had scales of its own and "
        "these began with the std of the paper's code. A network of a thirtieth of the size learned these classes the "
        "same with the first change (held-out NLL 0.546, before 0.534, one seed); on 2,000 images the second took it "
        "from 1.031 and 1.020 to 0.980 and 0.943 (two seeds). On MNIST both together changed nothing that the spread "
        "over seeds does not hold.",
        ensembles={"Ensemble": "L2"},
    ),
)
