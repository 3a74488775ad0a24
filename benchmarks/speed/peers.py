"""A training step by us and by the peers, in one run: each as a ratio to the plain PyTorch step.

python -m benchmarks.speed.peers --out benchmarks/results/peers_cpu.json
python -m benchmarks.speed.peers --device cuda --out benchmarks/results/peers_h200.json

Peers live in an environment of their own (``peer_environment``), which the command makes. What cannot be imported or
does not run is shown as broken, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.speed.harness import Bench, Work, run
from benchmarks.speed.peer_environment import ready
from posterity.curvature import squared_gradients
from posterity.layers import kl, variational
from posterity.methods import SparseVD
from posterity.models import lenet5_caffe, lenet_300_100
from posterity.optim import IVON, SGLD, VOGN

Build = Callable[[nn.Module, Tensor, Tensor], Work]
"""A training step of a network on one batch."""
Bayesian = Callable[[nn.Module], tuple[nn.Module, Callable[[], Tensor]]]
"""A network with a peer's layers, and its KL."""
NUM_DATA, BATCH, SHAPE = 60_000, 128, (1, 28, 28)
NETWORKS = {"LeNet-300-100": (lenet_300_100, 5), "LeNet-5-Caffe": (lenet5_caffe, 1)}


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


def elbo_step(bayesian: Bayesian) -> Build:
    """A training step of a peer's layers with the peer's own KL."""

    def step(network: nn.Module, x: Tensor, y: Tensor) -> Work:
        net, divergence = bayesian(network)
        return adam_step(net, x, y, divergence)

    return step


def bayesian_torch(kind: str = "Reparameterization") -> Bayesian:
    layers, models = import_module("bayesian_torch.layers"), import_module("bayesian_torch.models.dnn_to_bnn")

    def quiet(layer: nn.Module) -> nn.Module:
        layer.dnn_to_bnn_flag = True  # the output alone, without the KL beside it
        return layer

    def convert(network: nn.Module) -> tuple[nn.Module, Callable[[], Tensor]]:
        net = replaced(
            network,
            lambda a: quiet(getattr(layers, f"Linear{kind}")(a.in_features, a.out_features)),
            lambda a: quiet(getattr(layers, f"Conv2d{kind}")(a.in_channels, a.out_channels, a.kernel_size[0])),
        )
        return net, lambda: models.get_kl_loss(net)

    return convert


def blitz(network: nn.Module) -> tuple[nn.Module, Callable[[], Tensor]]:
    modules, losses = import_module("blitz.modules"), import_module("blitz.losses")
    net = replaced(
        network,
        lambda a: modules.BayesianLinear(a.in_features, a.out_features),
        lambda a: modules.BayesianConv2d(a.in_channels, a.out_channels, a.kernel_size),
    )
    return net, lambda: losses.kl_divergence_from_nn(net)


def torchbnn(network: nn.Module) -> tuple[nn.Module, Callable[[], Tensor]]:
    bnn = import_module("torchbnn")
    net = replaced(
        network,
        lambda a: bnn.BayesLinear(0, 0.1, a.in_features, a.out_features),
        lambda a: bnn.BayesConv2d(0, 0.1, a.in_channels, a.out_channels, a.kernel_size),
    )
    divergence = bnn.BKLLoss(reduction="sum")
    return net, lambda: divergence(net)


def torch_uncertainty(network: nn.Module) -> tuple[nn.Module, Callable[[], Tensor]]:
    layers = import_module("torch_uncertainty.layers.bayesian")
    net = replaced(
        network,
        lambda a: layers.BayesLinear(a.in_features, a.out_features),
        lambda a: layers.BayesConv2d(a.in_channels, a.out_channels, a.kernel_size),
    )
    return net, import_module("torch_uncertainty.losses.bayesian").KLDiv(net)


def cplxmodule(network: nn.Module) -> tuple[nn.Module, Callable[[], Tensor]]:
    relevance = import_module("cplxmodule.nn.relevance")
    net = replaced(
        network,
        lambda a: relevance.LinearVD(a.in_features, a.out_features),
        lambda a: relevance.Conv2dVD(a.in_channels, a.out_channels, a.kernel_size),
    )
    return net, lambda: sum(relevance.penalties(net))


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


def ours(estimator: str) -> Build:
    def step(network: nn.Module, x: Tensor, y: Tensor) -> Work:
        net = variational(network, estimator=estimator)
        return adam_step(net, x, y, lambda: kl(net))

    return step


def our_sparse(network: nn.Module, x: Tensor, y: Tensor) -> Work:
    net = SparseVD().prepare(network)
    return adam_step(net, x, y, lambda: kl(net))


def our_sampled(kind: Callable[[nn.Module], torch.optim.Optimizer]) -> Build:
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


CASES: dict[str, dict[str, Callable[[], Build]]] = {
    "variational, weights drawn": {
        "Adam, plain network": lambda: adam_step,
        "posterity, reparameterised": lambda: ours("reparameterised"),
        "bayesian-torch": lambda: elbo_step(bayesian_torch()),
        "blitz": lambda: elbo_step(blitz),
        "torchbnn": lambda: elbo_step(torchbnn),
        "torch-uncertainty": lambda: elbo_step(torch_uncertainty),
    },
    "variational, noise by activations": {
        "Adam, plain network": lambda: adam_step,
        "posterity, local": lambda: ours("local"),
        "posterity, flipout": lambda: ours("flipout"),
        "bayesian-torch, flipout": lambda: elbo_step(bayesian_torch("Flipout")),
        "posterity, SparseVD": lambda: our_sparse,
        "cplxmodule, variational dropout": lambda: elbo_step(cplxmodule),
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


def those_that_work(bench: Bench, case: str, builders: Mapping[str, Callable[[], Work]]) -> dict[str, Work]:
    """Contestants that could be built and called once; of the others the bench keeps the reason."""
    found = {}
    for name, build in builders.items():
        try:
            with bench.device:  # what a contestant makes is made there
                work = build()
                work()
        except Exception as error:  # whatever a peer raises is its result
            bench.fail(case, name, error)
        else:
            found[name] = work
    return found


def compared(case: str) -> Callable[[Bench], None]:
    def part(bench: Bench) -> None:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(BATCH, *SHAPE, generator=generator).to(bench.device)
        y = torch.randint(10, (BATCH,), generator=generator).to(bench.device)
        for title, (make, calls) in NETWORKS.items():
            builders = {name: partial(one, kind, make, x, y) for name, kind in CASES[case].items()}
            name = f"{case}, {title}"
            bench.compare(name, those_that_work(bench, name, builders), calls, memory=True)

    return part


def one(kind: Callable[[], Build], make: Callable[..., nn.Module], x: Tensor, y: Tensor) -> Work:
    """A contestant on a fresh network."""
    return kind()(make(SHAPE), x, y)


if __name__ == "__main__":
    ready("benchmarks.speed.peers")
    run(__doc__, {case: compared(case) for case in CASES})
