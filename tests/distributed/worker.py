"""What each rank of the distributed tests runs: ``python worker.py TASK FOLDER``, with torchrun's variables set."""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the group is opened, or its default arguments keep it alive
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, Sampler, TensorDataset

import posterity as pst
from tests.contract.cases import METHOD_CASES, data, network

TRAINING = {"batch_size": 32, "progress": False, "device": "cpu"}
INPUTS = data(n=20)[0]
SAMPLED = {"vogn": pst.VOGN(lr=0.1), "ivon": pst.IVON(), "noisy-kfac": pst.NoisyKFAC(lr=0.01)}


def outputs(posterior):
    with torch.no_grad():
        return torch.stack([draw(INPUTS) for draw in posterior.draws(3)])


def methods(folder: Path) -> None:
    """Every method: the same posterior on all ranks; rank 0 leaves it for comparison with one process."""
    for case in METHOD_CASES:
        training = pst.Training(**TRAINING | case.training)
        own = outputs(pst.fit(network(), case.method, data(), epochs=4, seed=7, training=training))
        every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(every, own)
        assert all(torch.equal(own, other) for other in every), f"{case.name}: the replicas differ"
        if dist.get_rank() == 0:
            torch.save(own, folder / f"{case.name}.pt")


def members(folder: Path) -> None:
    """Three members over the ranks: every rank ends with all of them, as one process would have."""
    mixture = pst.fit(network(), pst.MAP(), data(), epochs=2, members=3, seed=7, training=pst.Training(**TRAINING))
    torch.save(outputs(mixture), folder / f"members{dist.get_rank()}.pt")


def by_loader(method: pst.Method, sampler: Sampler[int] | None = None, members: int = 1) -> Tensor:
    """Outputs of a fit by a user's own loader, which shuffles unless it has a sampler."""
    examples = TensorDataset(*data())
    size = 32 // (dist.get_world_size() if isinstance(sampler, DistributedSampler) else 1)
    loader = DataLoader(examples, size, shuffle=sampler is None, sampler=sampler)
    training = pst.Training(lr=0.05, progress=False, device="cpu")
    return outputs(pst.fit(network(), method, loader, epochs=2, members=members, seed=7, training=training))


def loaders(folder: Path) -> None:
    """A loader on every rank that shuffles, one for members, and one that gives each rank a part of the data."""
    every = {
        "shuffled": by_loader(pst.MAP()),
        "members": by_loader(pst.MAP(), members=2),
        "sharded": by_loader(pst.Laplace(structure="full"), DistributedSampler(range(96), shuffle=False)),
    }
    torch.save(every, folder / f"{dist.get_rank()}.pt")


def shared_draw(folder: Path) -> None:
    """All ranks share each draw, so that together they are one process."""
    training = pst.Training(**TRAINING, ranks_per_draw=dist.get_world_size())
    for name, method in SAMPLED.items():
        posterior = pst.fit(network(), method, data(), epochs=2, seed=7, training=training)
        if dist.get_rank() == 0:
            torch.save((outputs(posterior), posterior.history), folder / f"{name}.pt")


class Branching(nn.Module):
    """A part of it is for rare examples alone, of which a rank may have none in a batch; and one is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.common, self.rare, self.never = network(), nn.Linear(4, 3).double(), nn.Linear(2, 2).double()
        with torch.no_grad():
            for p in (*self.rare.parameters(), *self.never.parameters()):
                p.fill_(0.1)

    def forward(self, x: Tensor) -> Tensor:
        chosen = x[:, 0] > 1.3
        if not chosen.any():
            return self.common(x)
        return self.common(x).index_add(0, chosen.nonzero().squeeze(1), self.rare(x[chosen]))


def by_branches() -> dict[str, Tensor]:
    """The weights of a network whose parts see some examples only."""
    q = pst.fit(Branching(), pst.MAP(), data(), epochs=4, seed=7, training=pst.Training(**TRAINING))
    return dict(q.module.state_dict())


def branches(folder: Path) -> None:
    """On some steps one rank alone has a gradient for the rare part."""
    torch.save(by_branches(), folder / f"{dist.get_rank()}.pt")


def different(folder: Path) -> None:
    """Every process with something of its own, as a seed of its rank, or a part of the data."""
    rank = dist.get_rank()
    inputs, targets = data()
    fits = {
        "its seed is 0 on process 0 and 1 on process 1": lambda: fitted(network(), data(), rank),
        "its num_data is 96 on process 0 and 95 on process 1": lambda: fitted(
            network(), (inputs[rank:], targets[rank:]), 7
        ),
        r"its parameter '0.weight' is [12, 4] on process 0 and [3, 4]": lambda: fitted(
            network() if rank == 0 else nn.Sequential(nn.Linear(4, 3)).double(), data(), 7
        ),
    }
    for message, fit in fits.items():
        try:
            fit()
        except pst.PosterityError as error:
            assert message in str(error), error
        else:
            raise AssertionError(f"accepted: {message}")


def fitted(module: nn.Module, examples: tuple[Tensor, Tensor], seed: int) -> pst.Posterior:
    return pst.fit(module, pst.SGLD(burn_in=0, thin=1), examples, seed=seed, training=pst.Training(**TRAINING))


class StopError(Exception):
    """Stands for a kill in the middle of an epoch."""


class StopAfter:
    """As an augmentation that changes nothing, stops every rank after so many batches."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise StopError
        return inputs


def normed_fit(file: Path, **options: object) -> pst.Posterior:
    """A network with BatchNorm, whose statistics are those of a rank's own examples until an epoch ends."""
    first, *rest = network()
    net = nn.Sequential(first, nn.BatchNorm1d(12, dtype=torch.float64), *rest)
    training = pst.Training(**TRAINING, checkpoint=file, checkpoint_every=1, **options)
    return pst.fit(net, pst.MAP(), data(), epochs=3, seed=7, training=training)


def resumed(folder: Path) -> None:
    """Stopped in the middle of an epoch and taken up again; and once where the file is on one machine only."""
    whole = normed_fit(folder / "whole")
    try:
        normed_fit(folder / "run", augment=StopAfter(5))
    except StopError:
        again = normed_fit(folder / "run", resume=True)
    else:
        raise AssertionError("the run was not stopped")
    torch.testing.assert_close(again.module.state_dict(), whole.module.state_dict(), rtol=0, atol=0)
    try:
        normed_fit(folder / ("run" if dist.get_rank() == 0 else "nowhere"), resume=True)
    except pst.PosterityError as error:
        assert "is there for some of the processes only" in str(error)
    else:
        raise AssertionError("a rank went on alone")


def elastic(folder: Path) -> None:
    """Rank 0 is killed once in the middle; torchrun starts all again, and the run goes on from its checkpoint.

    The group is the fit's own: torch's finds the addresses of those killed, now and then, and waits for them.
    """
    rank = int(os.environ["RANK"])

    class Kill:
        def on_epoch(self, run, figures):
            marker = folder / "killed"
            if run.epoch == 2 and rank == 0 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    training = pst.Training(**TRAINING, checkpoint=folder / "run", checkpoint_every=1, resume=True, callbacks=(Kill(),))
    posterior = pst.fit(network(), pst.MAP(), data(), epochs=4, seed=7, training=training)
    if rank == 0:
        torch.save(outputs(posterior), folder / "elastic.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    work, out = sys.argv[1], Path(sys.argv[2])
    if work == "elastic":
        elastic(out)
    else:
        dist.init_process_group("gloo")
        try:
            {f.__name__: f for f in (methods, members, loaders, shared_draw, branches, different, resumed)}[work](out)
        finally:
            dist.destroy_process_group()
    threads = [thread.read_text() for thread in Path("/proc/self/task").glob("*/comm")]  # none where there is no /proc
    assert not any("gloo" in name for name in threads), f"the group lives on: {threads}"
