"""The pictures of the guide to variational networks: a rotated digit, uncertainty while training, foreign images.

python docs/figures/variational.py                       # 5,000 images, a few minutes on one core, into docs/images
python docs/figures/variational.py --train 60000 --epochs 40 --device cuda
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

import posterity as pst
from posterity import data
from posterity.models import lenet5

METHODS = {
    "MAP": pst.MAP(),
    "MeanField": pst.MeanField(prior=pst.priors.Normal(0.3), init_std=0.02),
    "MNF": pst.MNF(prior=pst.priors.Normal(0.3), init_std=0.02),
}
ANGLES = torch.arange(0, 181, 10)


class Uncertainty:
    """The training accuracy of each epoch, and the test images' uncertainty after it."""

    def __init__(self, method: pst.Method, test: torch.Tensor) -> None:
        self.method, self.test = method, test
        self.rows: list[tuple[float, float, float]] = []

    def on_epoch(self, run, figures) -> None:
        """Look."""
        posterior = self.method.posterior(run, pst.likelihoods.Categorical(), ())
        p = posterior.predict(self.test.to(posterior.device), draws=16)
        self.rows.append((figures["accuracy"], p.aleatoric.mean().item(), p.epistemic.mean().item()))


def fitted(images: data.DataSet, options: argparse.Namespace) -> tuple[dict[str, pst.Posterior], Uncertainty]:
    """A posterior of each method, and what was seen on the way."""
    pair = tuple(t[: options.train] for t in images.training())
    watch = Uncertainty(METHODS["MeanField"], images.test[0][:500])
    posteriors = {}
    for name, method in METHODS.items():
        callbacks = (watch,) if name == "MeanField" else ()
        training = pst.Training(lr=2e-3, progress=False, device=options.device, callbacks=callbacks)
        network = lambda: lenet5((1, 28, 28), 10)  # noqa: E731
        posteriors[name] = pst.fit(network, method, pair, epochs=options.epochs, training=training)
    return posteriors, watch


def rotated(image: torch.Tensor, background: float) -> torch.Tensor:
    """The image at every angle, counter-clockwise, the corners filled with the background."""
    radians = torch.deg2rad(ANGLES.float())
    cos, sin, zero = radians.cos(), radians.sin(), torch.zeros(len(ANGLES))
    maps = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)
    grid = F.affine_grid(maps, [len(ANGLES), 1, 28, 28], align_corners=False)
    many = (image - background).expand(len(ANGLES), 1, 28, 28)
    return F.grid_sample(many, grid, align_corners=False) + background


def draw_rotation(axes, posteriors: dict[str, pst.Posterior], images: data.DataSet) -> None:
    """Class probabilities of a turning 3."""
    threes = images.test[0][images.test[1] == 3]
    three = threes[(threes - threes.mean(0)).flatten(1).norm(dim=1).argmin()]  # the most ordinary one
    turned = rotated(three, float(three.min()))
    for axis, (name, posterior) in zip(axes, posteriors.items(), strict=True):
        p = posterior.predict(turned, draws=64)
        shown = p.probs.mean(0).topk(4).indices.tolist()
        for c in sorted(shown):
            low, high = p.probs[:, c] - p.std[:, c], p.probs[:, c] + p.std[:, c]
            axis.plot(ANGLES, p.probs[:, c], color=f"C{c}", label=str(c))
            axis.fill_between(ANGLES, low, high, color=f"C{c}", alpha=0.15)
        axis.set(title=name, xlabel="a 3, turned by … degrees", ylim=(0, 1.02), xlim=(0, 180))
        axis.legend(title="class", fontsize=7, title_fontsize=7)
    axes[0].set_ylabel("probability ± std over draws")


def draw_training(axis, watch: Uncertainty) -> None:
    """Accuracy and uncertainty by epoch."""
    accuracy, aleatoric, epistemic = zip(*watch.rows, strict=True)
    epochs = range(1, len(accuracy) + 1)
    axis.plot(epochs, aleatoric, label="aleatoric")
    axis.plot(epochs, epistemic, label="epistemic")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(xlabel="epoch", ylabel="nats, mean over test images", title="MeanField while it learns")
    axis.legend(fontsize=7, loc="center right")
    twin = axis.twinx()
    twin.plot(epochs, accuracy, color="grey", ls=":")
    twin.set_ylabel("accuracy in training (dotted)")


def draw_foreign(axes, posteriors: dict[str, pst.Posterior], images: data.DataSet) -> None:
    """Entropies on other sets."""
    sets = {"MNIST": images.test[0][:1000]}
    for name in ("kmnist", "notmnist"):
        sets[name] = data.load(name).in_units_of(images).test[0][:1000]
    for axis, name in zip(axes, ("MAP", "MeanField"), strict=True):
        for label, x in sets.items():
            entropy = posteriors[name].predict(x, draws=32).entropy.sort().values
            axis.plot(entropy, torch.linspace(0, 1, len(entropy)), label=label)
        axis.set(title=name, xlabel="entropy of the prediction (nats)", xlim=(0, 2.3), ylim=(0, 1))
    axes[0].set_ylabel("share of images below")
    axes[0].legend(fontsize=7)


def main() -> None:
    """Fit and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "images")
    options = parser.parse_args()
    images = data.load("mnist")
    posteriors, watch = fitted(images, options)
    posteriors = {name: q.to("cpu") for name, q in posteriors.items()}
    made = Figure(figsize=(9, 2.8), layout="constrained")
    draw_rotation(made.subplots(1, 3, sharey=True), posteriors, images)
    made.savefig(options.out / "variational-rotation.png", dpi=110)
    made = Figure(figsize=(9, 2.8), layout="constrained")
    axes = made.subplots(1, 3)
    draw_training(axes[0], watch)
    draw_foreign(axes[1:], posteriors, images)
    made.savefig(options.out / "variational-uncertainty.png", dpi=110)


if __name__ == "__main__":
    main()
