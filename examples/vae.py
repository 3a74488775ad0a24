"""A variational autoencoder with a Bayesian decoder: it draws digits, and knows which pictures are none of its own.

python examples/vae.py --out vae            # MNIST: two minutes on a GPU

Encoder q(z | x) and decoder p(x | z, w) are ordinary networks. The decoder gets a distribution over its weights by one
line, and its KL joins the loss, once for the whole training set:

    loss = −mean_i [log p(x_i | z_i, w) − KL(q(z | x_i)‖N(0, 1))] + KL(q(w)‖p(w))/N,   z_i ~ q(z | x_i),  w ~ q(w)
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import posterity as pst
from posterity import data, models

BATCH = 128
PIXELS = pst.likelihoods.Bernoulli()
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def binary(images: data.DataSet, x: Tensor) -> Tensor:
    """Black and white pixels, flat."""
    raw = x if images.standardiser is None else images.standardiser.invert(x)
    return (raw.flatten(1) > 0.5).float().to(DEVICE)


def encode(encoder: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = encoder(x).chunk(2, -1)
    return mean, log_std.exp()


def bound(encoder: nn.Module, decoder: nn.Module, x: Tensor) -> Tensor:
    """log p(x | z) − KL(q(z | x)‖N(0, 1)) of each picture, with one z."""
    mean, std = encode(encoder, x)
    kl = (0.5 * (mean**2 + std**2 - 1) - std.log()).sum(1)
    return PIXELS.log_prob(decoder(mean + std * torch.randn_like(std)), x) - kl


def train(x: Tensor, latent: int, options: argparse.Namespace, bayesian: bool) -> tuple[nn.Module, pst.Posterior, dict]:
    """An encoder, and the posterior of a decoder: a Gaussian, or for comparison a point."""
    encoder = models.mlp(x.shape[1], 2 * latent, hidden=(options.width,)).to(DEVICE)
    plain = models.mlp(latent, x.shape[1], hidden=(options.width, options.width)).to(DEVICE)
    decoder = pst.variational(plain, prior=pst.priors.Normal(0.3), init_std=0.02) if bayesian else plain  # the line
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps := options.epochs * len(x) // BATCH)
    for _ in range(steps):
        batch = x[torch.randint(len(x), (BATCH,), device=DEVICE)]
        loss = -bound(encoder, decoder, batch).mean() + (pst.kl(decoder) / len(x) if bayesian else 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    if not bayesian:
        point = {name: p.detach() for name, p in plain.named_parameters()}
        return encoder, pst.posteriors.Empirical(plain, PIXELS, [point]), {}
    posterior = pst.posteriors.DiagonalGaussian(plain, PIXELS, *pst.plain_moments(decoder))
    return encoder, posterior, {"KL of the weights / N": pst.kl(decoder).item() / len(x)}


@torch.no_grad()
def judged(encoder: nn.Module, posterior: pst.Posterior, test: Tensor, foreign: dict[str, Tensor]) -> dict:
    """The bound on test pictures, and how well each score tells foreign pictures from them (AUROC)."""

    def scores(x: Tensor) -> dict[str, Tensor]:
        parts = [of_few(few) for few in x.split(1000)]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def of_few(x: Tensor) -> dict[str, Tensor]:
        z, _ = encode(encoder, x)
        found = {"-ELBO": -torch.stack([bound(encoder, draw, x) for draw in posterior.draws(8)]).mean(0)}
        if posterior.distinct != 1:  # draws disagree about the pixels at z; about this picture, given z
            found["variance of pixels"] = posterior.predict(z, draws=32).variance[..., 1].sum(1)
            about = [PIXELS.log_prob(draw(z), x) for draw in posterior.draws(32)]
            found["variance of log p(x | z)"] = torch.stack(about).var(0)
        return found

    own = scores(test)
    figures = {"ELBO": -own["-ELBO"].mean().item()}
    for name, x in foreign.items():
        for score, values in scores(x).items():
            below = torch.searchsorted(own[score].sort().values, values)  # test pictures that look more at home
            figures[f"AUROC {name}, {score}"] = below.double().mean().item() / len(test)
    return figures


@torch.no_grad()
def draw(encoder: nn.Module, posterior: pst.Posterior, x: Tensor, y: Tensor, side: int, path: Path) -> None:
    """Reconstructions, the plane of the two latents, and how unsure the decoder is over it."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, middle, right, last = figure.subplots(1, 4, subplot_kw={"xticks": [], "yticks": []})
    p = posterior.predict(encode(encoder, x[:6])[0], draws=32)
    columns = torch.stack([x[:6].cpu(), p.probs[..., 1].cpu(), 4 * p.std[..., 1].cpu()])
    sheet = columns.view(3, 6, side, side).permute(1, 2, 0, 3).reshape(6 * side, 3 * side)
    left.imshow(sheet.numpy(), cmap="gray", vmin=0, vmax=1)
    left.set_title("input, mean, 4 × std")
    ticks = torch.linspace(-4, 4, 17)
    plane = torch.stack(torch.meshgrid(ticks, ticks.flip(0), indexing="xy"), -1).view(-1, 2).to(DEVICE)
    p = posterior.predict(plane, draws=32)
    tiles = p.probs[..., 1].cpu().view(17, 17, side, side).permute(0, 2, 1, 3).reshape(17 * side, 17 * side)
    middle.imshow(tiles.numpy(), cmap="gray", extent=(-4.25, 4.25, -4.25, 4.25))
    middle.set_title("what each z decodes to")
    right.scatter(*encode(encoder, x[:2000])[0].T.cpu().numpy(), c=y[:2000].numpy(), cmap="tab10", s=3)
    right.set(title="test pictures, by class", xlim=(-4.25, 4.25), ylim=(-4.25, 4.25), aspect="equal")
    unsure = p.variance[..., 1].sum(1).sqrt().view(17, 17).cpu().numpy()
    last.set_title("std over draws, all pixels")
    figure.colorbar(last.imshow(unsure, cmap="magma", extent=(-4.25, 4.25, -4.25, 4.25)), ax=last, shrink=0.7)
    figure.savefig(path, dpi=110)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("vae"))
    arguments.add_argument("--epochs", type=int, default=40)
    arguments.add_argument("--width", type=int, default=400)
    arguments.add_argument("--tiny", action="store_true", help="embedded digits, a few seconds")
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    images = data.load("digits" if options.tiny else "mnist")
    x, test = binary(images, images.training()[0]), binary(images, images.test[0])
    if options.tiny:
        options.epochs, options.width, foreign = 2, 20, {"negatives": 1 - test}
    else:
        others = {name: data.load(name) for name in ("fashion-mnist", "kmnist", "notmnist")}
        foreign = {name: binary(other, other.test[0]) for name, other in others.items()}
    figures = {}
    for latent, bayesian in ((2, True), (2, False), (20, True), (20, False)):
        name = f"{latent} latents, {'Bayesian' if bayesian else 'plain'} decoder"
        encoder, posterior, kl = train(x, latent, options, bayesian)
        figures[name] = {**judged(encoder, posterior, test, foreign), **kl}
        (options.out / "figures.json").write_text(json.dumps(figures, indent=2))
        print(name, json.dumps(figures[name], indent=1))
        if (latent, bayesian) == (2, True):
            draw(encoder, posterior, test, images.test[1], images.shape[-1], options.out / "vae.png")


if __name__ == "__main__":
    try:
        main()
    except pst.PosterityError as error:
        sys.exit(str(error))
