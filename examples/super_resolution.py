"""Super-resolution with a Bayesian CNN: sharper pictures, and a map of where not to trust them.

python examples/super_resolution.py --out super-resolution        # CIFAR-10, ×2 and ×4: a few minutes on a GPU

A sub-pixel network (ESPCN, Shi et al. 2016) adds to bicubic interpolation what that misses. It says two things of each
pixel, a mean and a std; a variational posterior over its weights adds what the network itself does not know.
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
from torchmetrics.functional.image import structural_similarity_index_measure as ssim

import posterity as pst
from posterity import data


class SubPixel(nn.Module):
    """Convolutions at low resolution, whose channels become the pixels of the high one."""

    def __init__(self, channels: int, factor: int, outputs: int, width: int = 64) -> None:
        super().__init__()
        self.factor, self.outputs = factor, outputs
        self.conv1 = nn.Conv2d(channels, width, 5, padding=2)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.conv3 = nn.Conv2d(width, width, 3, padding=1)
        self.conv4 = nn.Conv2d(width, outputs * channels * factor**2, 3, padding=1)

    def forward(self, low: Tensor) -> Tensor:
        """Means [B, C, H, W]; with two outputs a raw std beside each, [B, C, H, 2W]."""
        hidden = F.relu(self.conv1(low - 0.5))
        hidden = F.relu(self.conv3(F.relu(self.conv2(hidden))))
        first, *rest = F.pixel_shuffle(self.conv4(hidden), self.factor).chunk(self.outputs, 1)
        mean = F.interpolate(low, scale_factor=self.factor, mode="bicubic") + 0.1 * first
        return torch.cat([mean, *(raw - 3 for raw in rest)], -1)  # softplus(−3) = 0.05: about the errors there are


def pictures(name: str, limit: int) -> tuple[Tensor, Tensor]:
    """Training and test pictures in [0, 1]."""
    images = data.load(name)
    train, test = images.training()[0][:limit], images.test[0][:2000]
    return images.standardiser.invert(train), images.standardiser.invert(test)


def shrunk(high: Tensor, factor: int) -> Tensor:
    return F.interpolate(high, scale_factor=1 / factor, mode="bicubic", antialias=True)


def predicted(posterior: pst.Posterior, low: Tensor, draws: int) -> list[Tensor]:
    """Mean, predictive std and epistemic std of every pixel, in batches."""
    parts = [posterior.predict(x, draws=draws) for x in low.split(250)]
    return [torch.cat(part) for part in zip(*((p.mean, p.std, p.epistemic.sqrt()) for p in parts), strict=True)]


def quality(guess: Tensor, high: Tensor) -> dict[str, float]:
    """Peak signal-to-noise ratio, the mean over pictures, and structural similarity."""
    errors = (guess - high).square().flatten(1).mean(1)
    return {"PSNR": -10 * errors.log10().mean().item(), "SSIM": float(ssim(guess, high, data_range=1.0))}


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's: the correlation of the ranks."""
    ranks = torch.stack([t.flatten().argsort().argsort().double() for t in (a, b)])
    return torch.corrcoef(ranks)[0, 1].item()


def draw(columns: dict[str, Tensor], path: Path) -> None:
    """One picture a row: what there was, three guesses, the last one's error and its std."""
    shown = columns["truth"].flatten(1).std(1).argsort(descending=True)[5:45:8]  # pictures with something in them
    top = columns["|error|"][shown].quantile(0.95).item()  # one scale for errors and stds
    figure = Figure(figsize=(1.35 * len(columns), 1.38 * len(shown) + 0.2), layout="constrained")
    grid = figure.subplots(len(shown), len(columns))
    for axes, index in zip(grid, shown.tolist(), strict=True):
        for axis, (name, column) in zip(axes, columns.items(), strict=True):
            picture = column[index].clamp(0, 1).permute(1, 2, 0).numpy()
            if name in ("|error|", "std"):
                axis.imshow(picture.mean(-1), cmap="magma", vmin=0, vmax=top)
            else:
                axis.imshow(picture, cmap="gray", vmin=0, vmax=1)
            axis.set_axis_off()
    for axis, name in zip(grid[0], columns, strict=True):
        axis.set_title(name, fontsize=9)
    figure.savefig(path, dpi=110)


def run(train: Tensor, test: Tensor, factor: int, options: argparse.Namespace) -> dict:
    """Three guesses at one factor: figures and a picture."""
    pair, low, channels = (shrunk(train, factor), train), shrunk(test, factor), train.shape[1]
    how = {"epochs": options.epochs, "training": pst.Training(batch_size=options.batch, lr=1e-3)}
    network, noise = SubPixel(channels, factor, 1, options.width), pst.likelihoods.Gaussian(0.05)
    plain = pst.fit(network, pst.MAP(), pair, likelihood=noise, **how)
    posterior = pst.fit(
        SubPixel(channels, factor, 2, options.width),
        pst.MeanField(prior=pst.priors.Normal(0.2), init_std=0.005),
        pair,
        likelihood=pst.likelihoods.HeteroscedasticGaussian(),
        **how,
    )
    guesses = {"bicubic": F.interpolate(low, scale_factor=factor, mode="bicubic")}
    guesses["deterministic"] = predicted(plain, low, 1)[0]
    guesses["Bayesian"], std, epistemic = predicted(posterior, low, options.draws)
    error = (guesses["Bayesian"] - test).abs()
    wide = F.interpolate(low, scale_factor=factor, mode="nearest")
    draw({"input": wide, **guesses, "truth": test, "|error|": error, "std": std}, options.out / f"x{factor}.png")
    figures = {name: quality(guess.clamp(0, 1), test) for name, guess in guesses.items()}
    figures["Bayesian"]["rank correlation of |error| and std"] = rank_correlation(error, std)
    figures["Bayesian"]["… and epistemic std"] = rank_correlation(error, epistemic)
    figures["Bayesian"]["truth within two std"] = (error < 2 * std).float().mean().item()
    return figures


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("super-resolution"))
    arguments.add_argument("--data", default="cifar10")
    arguments.add_argument("--examples", type=int, default=50_000)
    arguments.add_argument("--epochs", type=int, default=40)
    arguments.add_argument("--batch", type=int, default=128)
    arguments.add_argument("--factors", type=int, nargs="+", default=[2, 4])
    arguments.add_argument("--width", type=int, default=64)
    arguments.add_argument("--draws", type=int, default=32)
    arguments.add_argument("--tiny", action="store_true", help="embedded digits, ×2, a few seconds")
    options = arguments.parse_args()
    if options.tiny:
        options.data, options.factors, options.epochs, options.width, options.draws = "digits", [2], 2, 8, 4
    options.out.mkdir(parents=True, exist_ok=True)
    train, test = pictures(options.data, options.examples)
    figures = {}
    for factor in options.factors:
        figures[f"x{factor}"] = run(train, test, factor, options)
        (options.out / "figures.json").write_text(json.dumps(figures, indent=2))
        for name, row in figures[f"x{factor}"].items():
            print(f"×{factor} {name:<14}" + ", ".join(f"{key} {value:.3f}" for key, value in row.items()))


if __name__ == "__main__":
    try:
        main()
    except pst.PosterityError as error:
        sys.exit(str(error))
