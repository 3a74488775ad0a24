"""A training step by us and by the peers, in one run: each as a ratio to the plain PyTorch step.

python -m benchmarks.speed.peers --out benchmarks/results/peers_cpu.json
python -m benchmarks.speed.peers --device cuda --out benchmarks/results/peers_h200.json

Peers live in an environment of their own, .bench-venv, which the command makes: they are installed without their
dependencies on top of the torch that is here, so that none brings another. Where the peers can be imported already, as
on a machine without a network to which they were copied, they are taken from there. What cannot be imported is shown as
broken, with the reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.speed.harness import Bench, Work, run
from posterity.curvature import squared_gradients
from posterity.layers import kl, variational
from posterity.methods import SparseVD
from posterity.models import lenet5_caffe, lenet_300_100
from posterity.optim import IVON, SGLD, VOGN

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".bench-venv"
PACKAGES = (
    *("bayesian-torch", "blitz-bayesian-pytorch", "torchbnn", "cplxmodule", "ivon-opt", "posteriors", "opacus"),
    *("backpack-for-pytorch", "laplace-torch", "torch-uncertainty", "lightning-uq-box"),
    # what some of them need besides torch
    *("unfoldNd", "opt_einsum", "einops", "optree", "tensordict", "pyvers", "torchopt", "graphviz", "scipy"),
)
NUM_DATA, BATCH, SHAPE = 60_000, 128, (1, 28, 28)
NETWORKS = {"LeNet-300-100": (lenet_300_100, 5), "LeNet-5-Caffe": (lenet5_caffe, 1)}


def ready() -> None:
    """Go on inside the peers' environment, made if it is not there, unless peers are to be had here."""
    if Path(sys.prefix).resolve() == HOME.resolve() or find_spec("bayesian_torch"):
        return
    python = HOME / "bin" / "python"
    if not python.exists():
        venv.create(HOME, with_pip=True)
        here = sysconfig.get_paths()["purelib"]
        there = next(HOME.glob("lib/python*/site-packages"))
        (there / "torch_from_the_project.pth").write_text(f"{here}\n{ROOT / 'src'}\n")
        for package in PACKAGES:
            done = subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", package], check=False)
            print(f"{package}: {'installed' if done.returncode == 0 else 'does not install'}", flush=True)
    os.execv(python, [str(python), "-m", "benchmarks.speed.peers", *sys.argv[1:]])


def replaced(network: nn.Module, linear: Callable[[nn.Linear], nn.Module], conv: Callable[[nn.Conv2d], nn.Module]):
    """The network with a peer's layers in place of the plain ones."""
    for name, layer in list(network.named_children()):
        if isinstance(layer, nn.Linear):
            setattr(network, name, linear(layer))
        elif isinstance(layer, nn.Conv2d):
            setattr(network, name, conv(layer))
    return network.to(torch.get_default_device())


def adam_step(network: nn.Module, x: Tensor, y: Tensor, penalty: Callable[[], Tensor] | None = None) -> Work:
    """Forward, backward and Adam; a KL divided by N where there is one. Peers are given the fused Adam, too."""
    optimizer = torch.optim.Adam(network.parameters(), 1e-3, fused=penalty is not None)

    def step() -> None:
        loss = F.cross_entropy(network(x), y)
        if penalty is not None:
            loss = loss + penalty() / NUM_DATA
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def bayesian_torch(kind: str) -> Callable[[nn.Module, Tensor, Tensor], Work]:
    layers, models = import_module("bayesian_torch.layers"), import_module("bayesian_torch.models.dnn_to_bnn")

    def quiet(layer: nn.Module) -> nn.Module:
        layer.dnn_to_bnn_flag = True  # the output alone, without the KL beside it
        return layer

    def step(network: nn.Module, x: Tensor, y: Tensor) -> Work:
        net = replaced(
            network,
            lambda a: quiet(getattr(layers, f"Linear{kind}")(a.in_features, a.out_features)),
            lambda a: quiet(getattr(layers, f"Conv2d{kind}")(a.in_channels, a.out_channels, a.kernel_size[0])),
        )
        return adam_step(net, x, y, lambda: models.get_kl_loss(net))

    return step


def blitz(network: nn.Module, x: Tensor, y: Tensor) -> Work:
    modules, losses = import_module("blitz.modules"), import_module("blitz.losses")
    net = replaced(
        network,
        lambda a: modules.BayesianLinear(a.in_features, a.out_features),
        lambda a: modules.BayesianConv2d(a.in_channels, a.out_channels, a.kernel_size),
    )
    return adam_step(net, x, y, lambda: losses.kl_divergence_from_nn(net))


def torchbnn(network: nn.Module, x: Tensor, y: Tensor) -> Work:
    bnn = import_module("torchbnn")
    net = replaced(
        network,
        lambda a: bnn.BayesLinear(0, 0.1, a.in_features, a.out_features),
        lambda a: bnn.BayesConv2d(0, 0.1, a.in_channels, a.out_channels, a.kernel_size),
    )
    divergence = bnn.BKLLoss(reduction="sum")
    return adam_step(net, x, y, lambda: divergence(net))


def cplxmodule(network: nn.Module, x: Tensor, y: Tensor) -> Work:
    relevance = import_module("cplxmodule.nn.relevance")
    net = replaced(
        network,
        lambda a: relevance.LinearVD(a.in_features, a.out_features),
        lambda a: relevance.Conv2dVD(a.in_channels, a.out_channels, a.kernel_size),
    )
    return adam_step(net, x, y, lambda: sum(relevance.penalties(net)))


def ivon_opt(network: nn.Module, x: Tensor, y: Tensor) -> Work:
    optimizer = import_module("ivon").IVON(network.parameters(), lr=0.1, ess=NUM_DATA)

    def step() -> None:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
        optimizer.step()

    return step


def posteriors_sgld(network: nn.Module, x: Tensor, y: Tensor) -> Work:
    posteriors = import_module("posteriors")
    params = dict(network.named_parameters())

    def log_posterior(p: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        outputs = torch.func.functional_call(network, p, (batch[0],))
        prior = sum(w.square().sum() for w in p.values()) / (2 * NUM_DATA)
        return -F.cross_entropy(outputs, batch[1]) - prior, outputs

    transform = posteriors.sgmcmc.sgld.build(log_posterior, lr=1e-3, temperature=1 / NUM_DATA)
    state = [transform.init(params)]

    def step() -> None:
        state[0] = transform.update(state[0], (x, y), inplace=True)[0]

    return step


def squares_by_backpack(network: nn.Module, x: Tensor, y: Tensor) -> Work:
    backpack, extensions = import_module("backpack"), import_module("backpack.extensions")
    net, loss = backpack.extend(network), backpack.extend(nn.CrossEntropyLoss())

    def step() -> None:
        with backpack.backpack(extensions.SumGradSquared()):
            loss(net(x), y).backward()
        net.zero_grad()

    return step


def squares_by_opacus(network: nn.Module, x: Tensor, y: Tensor) -> Work:
    net = import_module("opacus.grad_sample").GradSampleModule(network)

    def step() -> None:
        F.cross_entropy(net(x), y).backward()
        for p in net.parameters():
            p.grad_sample.square().mean(0)  # type: ignore[attr-defined]
            p.grad_sample = None  # type: ignore[attr-defined]
        net.zero_grad()

    return step


def ours(estimator: str) -> Callable[[nn.Module, Tensor, Tensor], Work]:
    def step(network: nn.Module, x: Tensor, y: Tensor) -> Work:
        net = variational(network, estimator=estimator)
        return adam_step(net, x, y, lambda: kl(net))

    return step


def our_sparse(network: nn.Module, x: Tensor, y: Tensor) -> Work:
    net = SparseVD().prepare(network)
    return adam_step(net, x, y, lambda: kl(net))


def our_sampled(kind: Callable[[nn.Module], torch.optim.Optimizer]) -> Callable[[nn.Module, Tensor, Tensor], Work]:
    def step(network: nn.Module, x: Tensor, y: Tensor) -> Work:
        optimizer = kind(network)

        def one() -> None:
            with optimizer.sampled_weights():  # type: ignore[attr-defined]
                F.cross_entropy(network(x), y).backward()
            optimizer.step()

        return one

    return step


def our_sgld(network: nn.Module, x: Tensor, y: Tensor) -> Work:
    optimizer = SGLD(network.parameters(), 1e-3, NUM_DATA, weight_decay=1 / NUM_DATA)

    def step() -> None:
        F.cross_entropy(network(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def plain_sgd(network: nn.Module, x: Tensor, y: Tensor) -> Work:
    optimizer = torch.optim.SGD(network.parameters(), 1e-3)

    def step() -> None:
        F.cross_entropy(network(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


CASES: dict[str, dict[str, Callable[..., object]]] = {
    "variational, weights drawn": {
        "Adam, plain network": lambda: adam_step,
        "posterity, reparameterised": lambda: ours("reparameterised"),
        "bayesian-torch": lambda: bayesian_torch("Reparameterization"),
        "blitz": lambda: blitz,
        "torchbnn": lambda: torchbnn,
    },
    "variational, noise by activations": {
        "Adam, plain network": lambda: adam_step,
        "posterity, local": lambda: ours("local"),
        "posterity, flipout": lambda: ours("flipout"),
        "bayesian-torch, flipout": lambda: bayesian_torch("Flipout"),
        "posterity, SparseVD": lambda: our_sparse,
        "cplxmodule, variational dropout": lambda: cplxmodule,
    },
    "natural gradient": {
        "Adam, plain network": lambda: adam_step,
        "posterity, IVON": lambda: our_sampled(lambda net: IVON(net.parameters(), 0.1, NUM_DATA)),
        "ivon-opt": lambda: ivon_opt,
        "posterity, VOGN": lambda: our_sampled(lambda net: VOGN(net, 1e-3, NUM_DATA)),
    },
    "Langevin sampling": {
        "SGD, plain network": lambda: plain_sgd,
        "posterity, SGLD": lambda: our_sgld,
        "posteriors, SGLD": lambda: posteriors_sgld,
    },
    "squared gradients": {
        "SGD, plain network": lambda: plain_sgd,
        "posterity": lambda: lambda net, x, y: lambda: squared_gradients(net, F.cross_entropy, (x, y)),
        "backpack": lambda: squares_by_backpack,
        "opacus": lambda: squares_by_opacus,
    },
}


def contestants(case: str, make: Callable[..., nn.Module], device: torch.device) -> Iterator[tuple[str, Work]]:
    """Those of a case that work here; the others are named with the reason."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, *SHAPE, generator=generator).to(device)
    y = torch.randint(10, (BATCH,), generator=generator).to(device)
    for name, build in CASES[case].items():
        try:
            with device:  # what a contestant makes is made there
                work = build()(make(SHAPE), x, y)  # type: ignore[operator]
                work()
        except Exception as error:  # whatever a peer raises is its result
            print(f"  {name}: broken, {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        else:
            yield name, work


def compared(case: str) -> Callable[[Bench], None]:
    def part(bench: Bench) -> None:
        for title, (make, calls) in NETWORKS.items():
            bench.compare(f"{case}, {title}", dict(contestants(case, make, bench.device)), calls)

    return part


if __name__ == "__main__":
    ready()
    warnings.simplefilter("ignore")  # the peers' own
    run(__doc__, {case: compared(case) for case in CASES})
