"""Every method and every posterior, once: whoever adds one here inherits all checks of this folder."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import posterity as pst
from posterity.methods import Method
from posterity.posteriors import (
    Conformal,
    DiagonalGaussian,
    Empirical,
    FullGaussian,
    Implicit,
    KroneckerGaussian,
    Linearised,
    LowRankGaussian,
    Mixture,
    Posterior,
    Stochastic,
)
from posterity.posteriors.kronecker import MatrixBlock
from posterity.posteriors.stochastic import with_dropout


@dataclass(frozen=True)
class MethodCase:
    """A method, small enough to fit in a fraction of a second.

    Attributes:
        name: Its name in the shell.
        method: The method.
        noiseless: Whether training draws no noise, so that micro-batches and ranks must reproduce it exactly.
        training: What its training needs besides the contract's own settings.
    """

    name: str
    method: Method
    noiseless: bool = False
    training: dict[str, object] = field(default_factory=dict)


METHOD_CASES = [
    MethodCase("map", pst.MAP(), noiseless=True),
    MethodCase("hwa", pst.HWA(start=0, every=1), training={"lr": 0.02}),
    MethodCase("sparse-vd", pst.SparseVD(temperature=0.1), training={"lr": 0.02}),
    MethodCase("ard", pst.ARD(temperature=0.1, clip_start=0.5), training={"lr": 0.02}),
    MethodCase("group-sparse", pst.GroupSparse(temperature=0.1), training={"lr": 0.02}),
    MethodCase("mnf", pst.MNF(hidden=8), training={"lr": 0.02}),
    MethodCase("mean-field", pst.MeanField(), training={"lr": 0.02}),
    MethodCase("dropout", pst.Dropout(rate=0.2, insert=("2",))),
    MethodCase("swa", pst.SWA(start=0, every=1, lr=0.01), noiseless=True, training={"lr": 0.01}),
    MethodCase("swag", pst.SWAG(rank=3, start=0, every=1, lr=0.01), noiseless=True, training={"lr": 0.01}),
    MethodCase("sgld", pst.SGLD(lr=0.1, burn_in=0, thin=1), noiseless=True),
    MethodCase("psgld", pst.PSGLD(lr=0.01, burn_in=0, thin=1), noiseless=True),
    MethodCase("sghmc", pst.SGHMC(burn_in=0, thin=1), noiseless=True),
    MethodCase("cyclical", pst.Cyclical(of=pst.SGLD(lr=0.3), cycles=1, explore=0.0), noiseless=True),
    MethodCase("snapshot", pst.Snapshot(cycles=2), noiseless=True),
    MethodCase("fast-geometric", pst.FastGeometric(start=1, cycles=2, peak=1.0), noiseless=True),
    MethodCase("pruning", pst.Pruning(keep=0.5), noiseless=True),
    MethodCase("vogn", pst.VOGN(lr=0.1)),
    MethodCase("ogn", pst.OGN(lr=0.1), noiseless=True),
    MethodCase("ivon", pst.IVON()),
    MethodCase("kfac", pst.KFAC(lr=0.01)),
    MethodCase("noisy-kfac", pst.NoisyKFAC(lr=0.01)),
    MethodCase("laplace", pst.Laplace(), noiseless=True, training={"lr": 0.02}),
]


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    """A small network with fixed weights."""
    with torch.random.fork_rng():
        net = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 3)).to(dtype)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.3)
    return net


def data(dtype: torch.dtype = torch.float64, n: int = 96) -> tuple[Tensor, Tensor]:
    """Three classes that a line can almost tell apart."""
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    targets = (inputs[:, :3] + 0.3 * torch.randn(n, 3, generator=generator, dtype=torch.float64)).argmax(1)
    return inputs.to(dtype), targets


def kronecker(net: nn.Module, generator: torch.Generator) -> KroneckerGaussian:
    """A matrix-normal first layer, an independent last weight, a fixed last bias."""

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    mean = {name: p.detach() for name, p in net.named_parameters()}
    left, right = torch.eye(12).double() + 0.2 * randn(12, 12), torch.eye(5).double() + 0.2 * randn(5, 5)
    block = MatrixBlock("0.weight", "0.bias", left, right, 0.05 + 0.05 * randn(12, 5).abs())
    std = {"2.weight": torch.full_like(mean["2.weight"], 0.1)}
    return KroneckerGaussian(net, pst.likelihoods.Categorical(), mean, [block], std)


def posteriors() -> dict[str, Posterior]:
    """One of each kind, over the small network."""
    net, likelihood = network(), pst.likelihoods.Categorical()
    generator = torch.Generator().manual_seed(5)
    mean = {name: p.detach() for name, p in net.named_parameters()}
    std = {name: 0.05 + 0.1 * torch.rand(p.shape, generator=generator, dtype=p.dtype) for name, p in mean.items()}
    weights_only = {name: s for name, s in std.items() if name.endswith("weight")}
    total = sum(p.numel() for p in mean.values())
    deviations = 0.1 * torch.randn(4, total, generator=generator, dtype=torch.float64)
    factor = torch.eye(total, dtype=torch.float64) * 0.1 + 0.01 * torch.randn(
        total, total, generator=generator, dtype=torch.float64
    )
    points = [{n: p + 0.1 * i for n, p in mean.items()} for i in range(5)]
    diagonal = DiagonalGaussian(net, likelihood, mean, std, seed=1)
    return {
        "diagonal": diagonal,
        "diagonal, biases fixed": DiagonalGaussian(net, likelihood, mean, weights_only),
        "low-rank": LowRankGaussian(net, likelihood, mean, std, deviations, 0.5),
        "full": FullGaussian(net, likelihood, mean, torch.linalg.cholesky(factor @ factor.T)),
        "empirical": Empirical(net, likelihood, points),
        "implicit": Implicit(net, likelihood, pst.variational(net, family="radial", init_std=0.3), "radial"),
        "stochastic": Stochastic(with_dropout(net, {"2": 0.3}), likelihood),
        "conformal": Conformal(diagonal, 0.9, 0.7, 8),
        "kronecker": kronecker(net, generator),
        "linearised": Linearised(kronecker(net, generator)),
        "mixture": Mixture([diagonal, DiagonalGaussian(net, likelihood, points[3], std, seed=2)]),
    }
