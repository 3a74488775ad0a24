"""The first picture of the documentation: how sure four posteriors are, around two moons.

python docs/figures/moons.py            # writes docs/images/compare.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from plane import Plane, examples
from torch import nn

import posterity as pst
from posterity import data

PRIOR = pst.priors.Normal(1.0)
PANELS: dict[str, tuple[pst.Method, int, int]] = {  # title: method, members, epochs
    "MAP: one network": (pst.MAP(prior=PRIOR), 1, 200),
    "Monte Carlo dropout": (pst.Dropout(prior=PRIOR, rate=0.2, insert=("2", "4")), 1, 200),
    "deep ensemble of 10": (pst.MAP(prior=PRIOR), 10, 200),
    "SGHMC: a chain of 30": (pst.SGHMC(prior=PRIOR), 1, 2000),
}
PLANE = Plane()


def draw(axis: plt.Axes, title: str, posterior: pst.Posterior, moons: data.DataSet) -> plt.AxesImage:
    """One panel: the entropy of the predicted class over the plane, and the training examples."""
    entropy = posterior.predict(PLANE.inputs, draws=64).entropy
    examples(axis, moons, ("#7fd1ff", "#ffe08a"), s=6, edgecolors="black")
    return PLANE.show(axis, title, entropy, cmap="magma", vmin=0, vmax=0.6931)


def main() -> None:
    """Fit the four and draw them."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "images" / "compare.png")
    out = arguments.parse_args().out
    moons = data.load("two-moons").subset(torch.arange(200))
    network = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 2))
    figure, axes = plt.subplots(1, len(PANELS), figsize=(12, 3.3), layout="constrained")
    for axis, (title, (method, members, epochs)) in zip(axes, PANELS.items(), strict=True):
        lr = None if isinstance(method, pst.SGHMC) else 0.01
        training = pst.Training(batch_size=50, lr=lr)
        posterior = pst.fit(network, method, moons.train, epochs=epochs, members=members, training=training)
        image = draw(axis, title, posterior, moons)
    figure.colorbar(image, ax=axes, label="entropy in nats: bright is unsure", shrink=0.85)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=100)


if __name__ == "__main__":
    main()
