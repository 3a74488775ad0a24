"""A Bayesian GAN: generator and discriminator are both distributions over networks.

python examples/gan.py --out gan            # MNIST: three minutes on a GPU

An ordinary adversarial loop; `variational` makes both networks random, and their KLs join the losses. One latent then
has several pictures, one for each draw of the generator, and the discriminator knows where it is only guessing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

import posterity as pst
from posterity import data, models

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LATENTS, BATCH = 64, 128


def generator(side: int, width: int) -> nn.Sequential:
    """Latents → pictures in [−1, 1], by two transposed convolutions."""
    return nn.Sequential(
        nn.Linear(LATENTS, 2 * width * (side // 4) ** 2),
        nn.Unflatten(1, (2 * width, side // 4, side // 4)),
        nn.GroupNorm(4, 2 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
        nn.GroupNorm(4, width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
        nn.Tanh(),
    )


def discriminator(side: int, width: int) -> nn.Sequential:
    """Pictures → the logit of being real."""
    return nn.Sequential(
        nn.Conv2d(1, width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(2 * width * (side // 4) ** 2, 1),
    )


def slope(judge: nn.Module, real: Tensor) -> Tensor:
    """The squared gradient of the logit at real pictures, which keeps the game from running away (Mescheder 2018)."""
    real = real.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(judge(real).sum(), real, create_graph=True)
    return gradient.square().flatten(1).sum(1).mean()


def play(x: Tensor, options: argparse.Namespace) -> tuple[pst.Posterior, pst.Posterior]:
    """Train both; their posteriors."""
    plain = generator(x.shape[-1], options.width).to(DEVICE), discriminator(x.shape[-1], options.width).to(DEVICE)
    # Weights drawn once a pass: the slope below is differentiated twice, which noise by activations does not allow.
    prior, drawn = pst.priors.Normal(0.1), "reparameterised"
    maker, judge = (pst.variational(net, prior=prior, init_std=0.02, estimator=drawn) for net in plain)
    optimizers = [torch.optim.Adam(net.parameters(), 5e-4, betas=(0.5, 0.99)) for net in (maker, judge)]
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, options.steps) for o in optimizers]

    def descend(which: int, loss: Tensor) -> None:
        optimizers[which].zero_grad()
        loss.backward()
        optimizers[which].step()
        schedules[which].step()

    cold = options.temperature / len(x)  # a loss is a mean over pictures, so the KL is divided by their number
    for step in range(options.steps):
        real = x[torch.randint(len(x), (BATCH,), device=DEVICE)]
        fake = maker(torch.randn(BATCH, LATENTS, device=DEVICE))
        told_apart = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
        descend(1, told_apart + (2.0 * slope(judge, real) if step % 4 == 0 else 0) + cold * pst.kl(judge))
        descend(0, F.softplus(-judge(fake)).mean() + cold * pst.kl(maker))
    made = pst.posteriors.DiagonalGaussian(plain[0], pst.likelihoods.Gaussian(0.1), *pst.plain_moments(maker))
    return made, pst.posteriors.DiagonalGaussian(plain[1], pst.likelihoods.Bernoulli(), *pst.plain_moments(judge))


@torch.no_grad()
def examined(made: pst.Posterior, classifier: pst.Posterior) -> tuple[Tensor, dict]:
    """100 samples of each of 20 generators: what a classifier sees in them, and how much generators differ."""
    samples = torch.cat([network(torch.randn(100, LATENTS, device=DEVICE)) for network in made.draws(20)])
    p = classifier.predict(samples, draws=1)
    counts = torch.bincount(p.label[p.confidence > 0.9].cpu(), minlength=10).tolist()  # those that it is sure of
    latent = torch.randn(100, LATENTS, device=DEVICE)
    spread = torch.stack([network(latent) for network in made.draws(20)]).std(0).mean().item()
    figures = {"classes that appear": sum(n > 0 for n in counts), "of 2,000 samples, recognised": counts}
    return samples, figures | {"confidence": p.confidence.mean().item(), "pixel std over generators": spread}


@torch.no_grad()
def draw(made: pst.Posterior, sets: dict[str, pst.Prediction], side: int, path: Path) -> None:
    """Samples; one latent in a row, one generator in a column; what the discriminator says."""
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    many, few = torch.randn(100, LATENTS, device=DEVICE), torch.randn(6, LATENTS, device=DEVICE)
    for axis, tiles, title in (
        (left, next(made.draws(1))(many).view(10, 10, side, side), "samples of one generator"),
        (middle, torch.stack([net(few)[:, 0] for net in made.draws(8)], 1), "a latent a row, a generator a column"),
    ):
        axis.imshow(tiles.permute(0, 2, 1, 3).flatten(2).flatten(0, 1).cpu().numpy(), cmap="gray", vmin=-1, vmax=1)
        axis.set(title=title, xticks=[], yticks=[])
    for name, p in sets.items():
        right.scatter(p.probs[:300, 1].cpu(), p.epistemic[:300].cpu(), s=5, alpha=0.6, label=name)
    right.set(title="the discriminator", xlabel="P(real)", ylabel="epistemic, nats")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("gan"))
    arguments.add_argument("--steps", type=int, default=10_000)
    arguments.add_argument("--width", type=int, default=64)
    arguments.add_argument("--temperature", type=float, default=0.01, help="what the KL is multiplied by")
    arguments.add_argument("--tiny", action="store_true", help="embedded digits, a few seconds")
    options = arguments.parse_args()
    if options.tiny:
        options.steps, options.width = 30, 8
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    images = data.load("digits" if options.tiny else "mnist")
    x, test = (2 * images.standardiser.invert(part[0]).to(DEVICE) - 1 for part in (images.train, images.test))
    made, judged = play(x, options)
    classifier = pst.fit(models.make("mlp", images), pst.MAP(), (x, images.train[1].to(DEVICE)), epochs=5)
    samples, figures = examined(made, classifier)
    figures["accuracy of the classifier"] = pst.evaluate(classifier, (test, images.test[1]), resamples=0)["accuracy"]
    shown = {"test": test, "samples": samples, "noise": 2 * torch.rand_like(test) - 1}
    sets = {name: judged.predict(pictures) for name, pictures in shown.items()}
    for name, p in sets.items():
        figures |= {f"P(real) of {name}": p.mean[:, 1].mean().item(), f"epistemic of {name}": p.epistemic.mean().item()}
    (options.out / "figures.json").write_text(json.dumps(figures, indent=2))
    print(json.dumps(figures, indent=1))
    draw(made, sets, x.shape[-1], options.out / "gan.png")


if __name__ == "__main__":
    try:
        main()
    except pst.PosterityError as error:
        sys.exit(str(error))
