"""After training, by us and by the peers in one run: SWAG's snapshots and draws, predictions, Laplace, and imports.

python -m benchmarks.speed.peers_after --out benchmarks/results/peers_after_cpu.json
python -m benchmarks.speed.peers_after --device cuda --out benchmarks/results/peers_after_h200.json

What each is compared with: copying the parameters (SWAG), as many plain forward passes (predictions), an epoch of plain
training (fitting Laplace), one plain forward pass (its predictions).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as pst
from benchmarks.speed import core
from benchmarks.speed.harness import Bench, Work, run
from benchmarks.speed.peer_environment import ROOT, ready
from benchmarks.speed.peers import Bayesian, bayesian_torch, blitz, those_that_work, torch_uncertainty, torchbnn
from benchmarks.speed.trajectory import RANK, parameters
from posterity.flat import Layout
from posterity.methods.collect import Trajectory
from posterity.models import lenet5_caffe, resnet18
from posterity.probability.gaussians import LowRankNormal

DRAWS, INPUTS, EXAMPLES, FEW = core.DRAWS, core.INPUTS, 1024, 20


def our_path(device: torch.device) -> tuple[Work, Work]:
    params = parameters(device)
    layout = Layout.of(params)
    path = Trajectory(layout, RANK, device=device)
    for _ in range(RANK + 1):
        path.add(params)
    q = LowRankNormal(path.mean, path.variance.sqrt(), path.deviations, 0.16)
    generator = torch.Generator(device).manual_seed(0)
    return lambda: path.add(params), lambda: q.sample(generator)


def path_of_torch_uncertainty(device: torch.device) -> tuple[Work, Work]:
    kind = import_module("torch_uncertainty.methods").SWAG
    swag = kind(resnet18((3, 32, 32)).to(device), 0, 1, max_num_models=RANK, num_estimators=0)
    for _ in range(RANK + 1):
        swag.update_wrapper(1)
    return lambda: swag.update_wrapper(1), lambda: swag.sample(1.0, False)


def path_of_lightning_uq_box(device: torch.device) -> tuple[Work, Work]:
    kind = import_module("lightning_uq_box.uq_methods.swag").SWAGRegression
    swag = kind(resnet18((3, 32, 32)).to(device), RANK, 1, 1, 0.1, nn.MSELoss())
    for _ in range(RANK + 1):
        swag.update_uncertainty_buffers()
    return swag.update_uncertainty_buffers, swag.sample_state


PATHS = {
    "posterity": our_path,
    "torch-uncertainty": path_of_torch_uncertainty,
    "lightning-uq-box": path_of_lightning_uq_box,
}


def swag(bench: Bench) -> None:
    """A snapshot, and a draw, at rank 20."""
    flat = Layout.of(parameters(bench.device)).flatten(parameters(bench.device))
    room = flat.clone()
    for number, case in enumerate(("a snapshot for SWAG, ResNet-18", "a draw from SWAG, ResNet-18")):
        builders = {"copy of the parameters": lambda: lambda: room.copy_(flat)}
        builders |= {name: lambda make=make, n=number: make(bench.device)[n] for name, make in PATHS.items()}
        bench.compare(case, those_that_work(bench, case, builders), memory=True)


def forwards(bayesian: Callable[[], Bayesian], make: Callable[..., nn.Module], x: Tensor) -> Work:
    """A peer's predictions: a forward pass for each draw."""
    net = bayesian()(make(core.SHAPE))[0].eval()

    @torch.no_grad()
    def work() -> Tensor:
        return torch.stack([net(x).softmax(-1) for _ in range(DRAWS)]).mean(0)

    return work


def predict(bench: Bench) -> None:
    """The mean prediction of 32 draws on 1,000 images."""
    x, _ = core.images(bench, INPUTS)
    peers: dict[str, Callable[[], Bayesian]] = {
        "bayesian-torch": bayesian_torch,
        "blitz": lambda: blitz,
        "torchbnn": lambda: torchbnn,
        "torch-uncertainty": lambda: torch_uncertainty,
    }
    for title, make in core.NETWORKS.items():
        case, posterior = f"predictions of 32 draws, {title}", core.gaussian(title, bench.device)
        generator = torch.Generator(bench.device).manual_seed(1)
        builders: dict[str, Callable[[], Work]] = {
            "32 plain forwards": partial(forwards, lambda: lambda net: (net, nn.Identity()), make, x),
            "posterity": lambda q=posterior: lambda: q.predict(x, DRAWS).probs,
            "posterity, fresh draws": lambda q=posterior, g=generator: lambda: q.predict(x, DRAWS, generator=g).probs,
        }
        builders |= {name: partial(forwards, peer, make, x) for name, peer in peers.items()}
        fewer(bench).compare(case, those_that_work(bench, case, builders), memory=True)


def laplace_torch(network: nn.Module, x: Tensor, y: Tensor, subset: str, structure: str) -> Callable[[Tensor], Tensor]:
    """laplace-torch, fitted."""
    kind = import_module("laplace").Laplace
    found = kind(network, "classification", subset_of_weights=subset, hessian_structure=structure)
    with x.device:  # it makes tensors on the default device
        found.fit(DataLoader(TensorDataset(x, y), core.BATCH))
    return found


def epoch(network: nn.Module, x: Tensor, y: Tensor) -> None:
    """One epoch of plain training."""
    optimizer = torch.optim.Adam(network.parameters(), 1e-3, fused=True)
    for inputs, targets in zip(x.split(core.BATCH), y.split(core.BATCH), strict=True):
        F.cross_entropy(network(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def laplace(bench: Bench) -> None:
    """Curvature over 1,024 images, and predictions of the linearised network."""
    laplace_of(bench, "the last layer", "last-layer", ("last_layer", "full"), INPUTS)
    laplace_of(bench, "all layers", "kronecker", ("all", "kron"), FEW)


def laplace_of(bench: Bench, title: str, structure: str, theirs: tuple[str, str], inputs: int) -> None:
    """One structure by its name here and by laplace-torch's, fitted, and predicting so many images."""
    x, y = core.images(bench, EXAMPLES)
    network, few = lenet5_caffe(core.SHAPE).to(bench.device), fewer(bench)
    method, seen = pst.Laplace(structure=structure, tune_prior=False), x[:inputs]
    our_fit, their_fit = lambda: method.post_hoc(network, (x, y)), lambda: laplace_torch(network, x, y, *theirs)
    case = f"Laplace of {title}, LeNet-5-Caffe"
    builders: dict[str, Callable[[], Work]] = {
        "an epoch of training": lambda: partial(epoch, lenet5_caffe(core.SHAPE).to(bench.device), x, y),
        "posterity": lambda: our_fit,
        "laplace-torch": lambda: their_fit,
    }
    few.compare(case, those_that_work(few, case, builders), memory=True)
    case = f"predictions of {inputs:,} by Laplace of {title}, LeNet-5-Caffe"
    builders = {
        "one plain forward": lambda: torch.no_grad()(partial(network, seen)),
        "posterity": lambda: partial(lambda q: q.probit(seen), our_fit()),
        "laplace-torch": lambda: partial(their_fit(), seen),
    }
    few.compare(case, those_that_work(few, case, builders), memory=True)


def fewer(bench: Bench) -> Bench:
    """For what takes seconds: a quarter of the rounds, with the results in the same place."""
    return Bench(bench.device, max(3, bench.rounds // 4), bench.results, bench.figures, bench.broken)


MODULES = {
    "posterity": "posterity",
    "posterity, all methods": "posterity.methods",
    "bayesian-torch": "bayesian_torch.layers",
    "blitz": "blitz.modules",
    "torchbnn": "torchbnn",
    "cplxmodule": "cplxmodule.nn.relevance",
    "ivon-opt": "ivon",
    "posteriors": "posteriors",
    "backpack": "backpack",
    "opacus": "opacus",
    "laplace-torch": "laplace",
    "torch-uncertainty": "torch_uncertainty.methods",
    "lightning-uq-box": "lightning_uq_box.uq_methods",
}
IMPORT = """
import sys, time, torch
from benchmarks.speed.peer_environment import ready
ready("")
begin = time.process_time()
__import__(sys.argv[1])
print(time.process_time() - begin)
"""


def imports(bench: Bench) -> None:
    """CPU seconds of an import once torch is there."""
    for name, module in MODULES.items():
        command = [sys.executable, "-W", "ignore", "-c", IMPORT, module]
        found = [subprocess.run(command, capture_output=True, text=True, cwd=ROOT) for _ in range(5)]
        if any(run.returncode for run in found):
            bench.fail("imports", name, RuntimeError(found[0].stderr.strip().splitlines()[-1]))
            continue
        seconds = statistics.median(float(run.stdout.splitlines()[-1]) for run in found)
        bench.figure(f"import of {name}", seconds, "s")


if __name__ == "__main__":
    ready("benchmarks.speed.peers_after")
    run(__doc__, {"swag": swag, "predict": predict, "laplace": laplace, "imports": imports})
