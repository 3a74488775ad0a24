"""The decision boundaries of the natural-gradient guide: Adam's one network, and draws from VOGN's posterior.

python docs/figures/vogn.py            # writes docs/images/vogn.png
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
PANELS: dict[str, tuple[pst.Method, float | None]] = {
    "Adam: one boundary": (pst.MAP(prior=PRIOR), 0.01),
    "VOGN: 12 draws and their mean": (pst.VOGN(prior=PRIOR), None),
    "IVON: 12 draws and their mean": (pst.IVON(prior=PRIOR, beta2=0.999), None),
}
PLANE = Plane(reach=3.0, side=120)


def draw(axis: plt.Axes, title: str, posterior: pst.Posterior, moons: data.DataSet) -> plt.AxesImage:
    """The probability of the second class, every draw's boundary, and the boundary of their mean."""
    probs = posterior.predict(PLANE.inputs, draws=64).probs[:, 1]
    with torch.no_grad():
        for network in posterior.draws(12):
            PLANE.boundary(axis, network(PLANE.inputs).softmax(-1)[:, 1], linewidths=0.5, alpha=0.5)
    PLANE.boundary(axis, probs, linewidths=2)
    examples(axis, moons, ("#2166ac", "#b2182b"), s=8, edgecolors="white")
    return PLANE.show(axis, title, probs, cmap="RdBu_r", vmin=0, vmax=1, alpha=0.8)


def main() -> None:
    """Fit the three and draw them."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "images" / "vogn.png")
    out = arguments.parse_args().out
    moons = data.load("two-moons").subset(torch.arange(200))
    network = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 2))
    figure, axes = plt.subplots(1, len(PANELS), figsize=(11, 3.5), layout="constrained")
    for axis, (title, (method, lr)) in zip(axes, PANELS.items(), strict=True):
        training = pst.Training(batch_size=50, lr=lr, progress=False)
        posterior = pst.fit(network, method, moons.train, epochs=400, training=training)
        image = draw(axis, title, posterior, moons)
    figure.colorbar(image, ax=axes, label="probability of the red class", shrink=0.85)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=100)


if __name__ == "__main__":
    main()
