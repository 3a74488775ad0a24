"""Regression: a noisy sine with a gap, the bands of many methods, and the exact answer beside them.

The noise grows along the line, so the network has two outputs: the mean, and the noise around it. It is small enough
for Hamiltonian Monte Carlo on the full posterior: the answer that all other methods approximate.

python examples/regression.py            # writes regression.png and regression.json
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

import posterity as pst
from posterity import models
from posterity.posteriors import Empirical

LIKELIHOOD = pst.likelihoods.HeteroscedasticGaussian()
PRIOR = pst.priors.Normal(1.0)
GAP = (-0.5, 1.5)
METHODS: dict[str, tuple[pst.Method, int]] = {  # with how many members
    "MAP": (pst.MAP(prior=PRIOR), 1),
    "deep ensemble": (pst.MAP(prior=PRIOR), 10),
    "MC dropout": (pst.Dropout(prior=PRIOR, rate=0.1, insert=("fc2",)), 1),
    "SWAG": (pst.SWAG(prior=PRIOR, rank=20), 1),
    "MultiSWAG": (pst.SWAG(prior=PRIOR, rank=20), 4),
    "MeanField": (pst.MeanField(prior=PRIOR, bayesian_bias=True, init_std=0.05), 1),
    "IVON": (pst.IVON(prior=PRIOR, hess_init=100.0, beta2=0.999), 1),
    "VOGN": (pst.VOGN(prior=PRIOR), 1),
    "Laplace": (pst.Laplace(prior=PRIOR, structure="full", tune_prior=False), 1),
    "cyclical SGHMC": (pst.Cyclical(prior=PRIOR, of=pst.SGHMC(prior=PRIOR), cycles=8, explore=0.5), 1),
    "SGHMC": (pst.SGHMC(prior=PRIOR, thin=20), 4),
}
RATES = {"IVON": 0.02, "VOGN": 0.02, "cyclical SGHMC": 1e-3, "SGHMC": 5e-4}  # the others take 0.01


def fitted(title: str, network: nn.Module, train: tuple[Tensor, Tensor], epochs: int) -> pst.Posterior:
    method, members = METHODS[title]
    training = pst.Training(batch_size=60, lr=RATES.get(title, 0.01))
    return pst.fit(network, method, train, likelihood=LIKELIHOOD, epochs=epochs, members=members, training=training)


def observe(x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """y = sin x + noise whose std grows from 0.1 at the left end to 0.5 at the right."""
    return x, x.sin() + (0.1 + 0.05 * (x + 4)) * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))


def sine(n: int = 60) -> tuple[Tensor, Tensor]:
    u = torch.rand(n, 1, generator=torch.Generator().manual_seed(0))
    left, right = -4 + u * (GAP[0] + 4), GAP[1] + u * (4 - GAP[1])
    return observe(torch.where(torch.arange(n).unsqueeze(1) % 2 == 0, left, right), 1)


def hmc(network: nn.Module, train: tuple[Tensor, Tensor], *, draws: int, leaps: int, chains: int = 32) -> pst.Mixture:
    """The exact posterior, by Hamiltonian Monte Carlo; each chain first spends as many states on finding its step."""
    network, (x, y) = copy.deepcopy(network).double(), (t.double() for t in train)
    shapes = {name: p.shape for name, p in network.named_parameters()}

    def named(w: Tensor) -> dict[str, Tensor]:
        parts = w.split([shape.numel() for shape in shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    def slope(w: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient and value of log p(y | w) + log p(w), for every chain."""
        w = w.detach().requires_grad_()
        outputs = vmap(lambda own: functional_call(network, named(own), (x,)))(w)
        fit = LIKELIHOOD.log_prob(outputs.flatten(0, 1), y.repeat(chains, 1)).view(chains, -1).sum(1)
        height = fit - w.square().sum(1) / (2 * PRIOR.std**2)
        return torch.autograd.grad(height.sum(), w)[0], height.detach()

    random = torch.Generator().manual_seed(2)
    w = 0.5 * torch.randn(chains, sum(shape.numel() for shape in shapes.values()), generator=random, dtype=x.dtype)
    gradient, height = slope(w)
    step, kept = torch.full((chains, 1), 4e-3, dtype=x.dtype), []
    for state in range(2 * draws):
        momentum = torch.randn(w.shape, generator=random, dtype=w.dtype)
        energy = height - momentum.square().sum(1) / 2
        new, along = w, step * (0.8 + 0.4 * torch.rand(chains, 1, generator=random))  # so that no orbit closes
        momentum = momentum + along / 2 * gradient
        for leap in range(leaps):
            new = new + along * momentum
            g, value = slope(new)
            momentum = momentum + (along if leap < leaps - 1 else along / 2) * g
        odds = (value - momentum.square().sum(1) / 2 - energy).exp().nan_to_num(0.0).clamp(max=1)
        taken = torch.rand(chains, generator=random) < odds
        w, gradient = torch.where(taken[:, None], new, w), torch.where(taken[:, None], g, gradient)
        height = torch.where(taken, value, height)
        if state < draws:  # warm-up: the step grows while more than four in five are taken
            step = step * torch.exp(0.3 * (odds - 0.8))[:, None]
        else:
            kept.append(w)
    return pst.Mixture([Empirical(network, LIKELIHOOD, [named(w[c]) for w in kept]) for c in range(chains)])


def bands(axis: plt.Axes, title: str, x: Tensor, p: pst.Prediction, train: tuple[Tensor, Tensor]) -> None:
    """The mean, what the weights leave open (dark), and the noise on top of it (light): two standard deviations."""
    mean, line = p.mean.flatten(), x.flatten()
    for variance, alpha in ((p.variance, 0.2), (p.epistemic, 0.35)):
        reach = 2 * variance.flatten().sqrt()
        axis.fill_between(line, mean - reach, mean + reach, color="#0072B2", alpha=alpha, linewidth=0)
    axis.plot(line, mean, color="#0072B2")
    axis.plot(line, line.sin(), color="#222222", linewidth=1, linestyle=":")
    axis.scatter(*train, s=4, color="#D55E00", linewidths=0)
    axis.set(title=title, ylim=(-3, 3), xlim=(-6, 6))


def figures(p: pst.Prediction, exact: pst.Prediction, x: Tensor) -> dict[str, float]:
    """How far the mean is from the exact one at the data, and how wide the dark band is as a multiple of the exact."""
    gap = ((x > GAP[0]) & (x < GAP[1])).flatten()
    data = (x.abs() <= 4).flatten() & ~gap
    ratio = (p.epistemic / exact.epistemic).sqrt().flatten()
    error = (p.mean - exact.mean)[data].square().mean().sqrt().item()
    return {"mean off by": error, "band at data": ratio[data].median().item(), "gap": ratio[gap].median().item()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, default=Path())
    arguments.add_argument("--tiny", action="store_true", help="everything too short to mean anything")
    options = arguments.parse_args()
    epochs, draws, leaps = (100, 4, 10) if options.tiny else (4000, 60, 200)
    train, x = sine(), torch.linspace(-6, 6, 241).unsqueeze(1)
    inputs, targets = observe(torch.linspace(-4, 4, 401).unsqueeze(1), 3)
    torch.manual_seed(0)
    network = models.mlp(1, 2, hidden=(20,), activation=nn.Tanh)
    truth = hmc(network, train, draws=draws, leaps=leaps)
    chains = pst.diagnose(truth, (inputs.double(), targets.double()))
    print(f"HMC: split-R̂ at most {chains.rhat[0]:.2f}, worth {chains.ess[0]:.0f} independent draws or more", flush=True)
    canvas, axes = plt.subplots(3, 4, figsize=(13, 8), sharex=True, sharey=True, layout="constrained")
    truth, found = truth.to(dtype=torch.float32), {}
    for axis, title in zip(axes.flat, ("HMC: the exact answer", *METHODS), strict=True):
        q = fitted(title, network, train, epochs) if title in METHODS else truth
        bands(axis, title, x, p := q.predict(x, draws=1000), train)
        nll = -q.predict(inputs, draws=200).log_prob(targets).mean().item()
        found[title] = {"NLL": nll, **figures(p, truth.predict(x, draws=1000), x)}
        print(f"{title:<22}" + "   ".join(f"{name} {value:.3f}" for name, value in found[title].items()), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    canvas.savefig(options.out / "regression.png", dpi=110)
    (options.out / "regression.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
