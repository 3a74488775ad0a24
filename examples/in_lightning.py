"""Bayesian training without leaving Lightning: one callback in the Trainer, and three methods.

pip install '.[lightning]'
python examples/in_lightning.py            # lightning.png
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import posterity as pst
from posterity import data, models

try:
    from lightning.pytorch import LightningModule, Trainer

    from posterity.integrations.lightning import Bayesian
except ImportError:
    sys.exit("this example needs Lightning: pip install lightning")


class Digits(LightningModule):
    """A module like any other: nothing in it knows of posteriors."""

    def __init__(self) -> None:
        super().__init__()
        self.net = models.mlp(64, 10, hidden=(100,))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        inputs, targets = batch
        return F.cross_entropy(self.net(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


METHODS = {
    "MAP": pst.MAP(),
    "SWAG": pst.SWAG(rank=10),  # snapshots of Adam's path over the second half
    "MeanField": pst.MeanField(prior=pst.priors.Normal(0.3)),  # self.net becomes variational, the KL joins the loss
    "IVON": pst.IVON(lr=0.1),  # takes the place of Adam
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--epochs", type=int, default=30)
    epochs = arguments.parse_args().epochs
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    digits = data.load("digits")
    loader = DataLoader(TensorDataset(*digits.training()), batch_size=32, shuffle=True)
    figure, axes = plt.subplots(1, len(METHODS), figsize=(10, 2.8), sharey=True, layout="constrained")
    for axis, (name, method) in zip(axes, METHODS.items(), strict=True):
        torch.manual_seed(0)
        bayesian = Bayesian(method, network="net", likelihood=pst.likelihoods.Categorical())
        trainer = Trainer(
            max_epochs=epochs, callbacks=[bayesian], logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Digits(), loader)
        scores = pst.evaluate(bayesian.posterior, digits, resamples=0)
        print(
            f"{name:<12}accuracy {scores['accuracy']:.3f}   NLL {scores['nll']:.3f}   ECE {scores['ece']:.3f}",
            flush=True,
        )
        entropy = bayesian.posterior.predict(digits.test[0]).entropy
        noise = bayesian.posterior.predict(torch.randn_like(digits.test[0])).entropy
        axis.hist([entropy, noise], bins=24, range=(0, 2.3), label=["test digits", "noise"])
        axis.set(title=name, xlabel="entropy")
    axes[0].set_ylabel("images")
    axes[0].legend(frameon=False)
    figure.savefig("lightning.png", dpi=110)


if __name__ == "__main__":
    main()
