"""How noisy the gradients of the three estimators are, on a LeNet-5 that has begun to learn MNIST.

    python benchmarks/quality/gradient_variance.py --out gradient_variance.json      # about a minute on one core

At fixed variational parameters and a fixed batch, the gradient of the expected log-likelihood is estimated many times
with one draw each. The figure is the variance of its components, averaged over weights, relative to reparameterised;
all three have the same mean, whose distance is shown in standard errors as a check.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F

import posterity as pst
from posterity import data
from posterity.layers import variational
from posterity.models import lenet5

ESTIMATORS = ("reparameterised", "flipout", "local")


def trained(images: data.DataSet, options: argparse.Namespace) -> pst.WeightPosterior:
    """Means and stds as they are in the middle of a fit."""
    method = pst.MeanField(prior=pst.priors.Normal(0.3), init_std=0.03)
    pair = tuple(t[: options.train] for t in images.training())
    training = pst.Training(lr=2e-3, progress=False, device=options.device)
    return pst.fit(lambda: lenet5((1, 28, 28), 10), method, pair, epochs=options.epochs, training=training)


def gradients(posterior: pst.WeightPosterior, estimator: str, batch: tuple, draws: int) -> dict[str, torch.Tensor]:
    """Gradients of the loss in means and log stds, [draws, weights]."""
    net = variational(posterior.module.requires_grad_(True), estimator=estimator)
    block = net.blocks[0]
    with torch.no_grad():
        block.mean.copy_(block.slots.layout.flatten(posterior.mean()))
        block.log_std.copy_(block.slots.layout.flatten(posterior.variance()).sqrt().log())
    net.train()
    rows: dict[str, list[torch.Tensor]] = {"mean": [], "log_std": []}
    for _ in range(draws):
        loss = F.cross_entropy(net(batch[0]), batch[1])
        for name, grad in zip(rows, torch.autograd.grad(loss, (block.mean, block.log_std)), strict=True):
            rows[name].append(grad)
    return {name: torch.stack(grads) for name, grads in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    images = data.load("mnist")
    posterior = trained(images, options)
    batch = tuple(t[: options.batch_size].to(options.device) for t in images.training())
    found = {e: gradients(posterior, e, batch, options.draws) for e in ESTIMATORS}
    results: dict[str, dict[str, dict[str, float]]] = {}
    for estimator, by_name in found.items():
        results[estimator] = {}
        for name, rows in by_name.items():
            base = found["reparameterised"][name]
            error = ((rows.var(0) + base.var(0)) / options.draws).sqrt().clamp_min(1e-20)
            gap = ((rows.mean(0) - base.mean(0)) / error).square().mean().sqrt()
            ratio = rows.var(0).mean() / base.var(0).mean()
            results[estimator][name] = {"variance": float(rows.var(0).mean()), "ratio": float(ratio), "gap": float(gap)}
            print(f"{estimator:16s} {name:8s} relative variance {ratio:.4f}   mean differs by {gap:.2f} s.e.")
    if options.out:
        settings = {key: str(value) for key, value in vars(options).items() if key != "out"}
        options.out.write_text(json.dumps({"settings": settings, "results": results}, indent=1))


if __name__ == "__main__":
    main()
