"""Two and four gloo ranks equal one process on the same global batch."""

import os
import socket
import subprocess
import sys

import pytest
import torch
from torch.utils.data import SequentialSampler

import posterity as pst
from tests.contract.cases import METHOD_CASES, data, network
from tests.distributed.worker import SAMPLED, TRAINING, by_branches, by_loader, normed_fit, outputs


def launch(task, folder, world=2):
    """Run the worker on ``world`` ranks of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.distributed.worker", task, str(folder)]
    ranks = [
        subprocess.Popen(command, env={**base, "RANK": str(r), "LOCAL_RANK": str(r)}, stderr=subprocess.PIPE, text=True)
        for r in range(world)
    ]
    errors = [rank.communicate(timeout=600)[1] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(errors)


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)], ids="{} ranks".format)
def ranks(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    launch("methods", folder, request.param)
    return folder


@pytest.mark.parametrize("case", METHOD_CASES, ids=lambda case: case.name)
def test_ranks_equal_one_process(case, ranks):
    together = torch.load(ranks / f"{case.name}.pt")  # that the replicas agree is asserted by the ranks
    alone = outputs(
        pst.fit(network(), case.method, data(), epochs=4, seed=7, training=pst.Training(**TRAINING | case.training))
    )
    if case.noiseless:
        torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    else:
        assert together.isfinite().all() and not torch.equal(together, alone)


def test_members_are_spread_over_the_ranks(tmp_path):
    launch("members", tmp_path)
    alone = pst.fit(network(), pst.MAP(), data(), epochs=2, members=3, seed=7, training=pst.Training(**TRAINING))
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"members{rank}.pt"), outputs(alone), rtol=1e-8, atol=1e-9)


def test_ranks_that_share_a_draw_are_one_process(tmp_path):
    launch("shared_draw", tmp_path)
    for name, method in SAMPLED.items():
        alone = pst.fit(network(), method, data(), epochs=2, seed=7, training=pst.Training(**TRAINING))
        own, history = torch.load(tmp_path / f"{name}.pt")
        torch.testing.assert_close(own, outputs(alone), rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(history, alone.history)


def test_a_loader_is_shuffled_alike_and_what_follows_training_sees_all_of_it(tmp_path):
    """Members are trained on whole batches, and a Laplace posterior has the curvature of all examples."""
    launch("loaders", tmp_path)
    alone = {
        "shuffled": by_loader(pst.MAP()),
        "members": by_loader(pst.MAP(), members=2),
        "sharded": by_loader(pst.Laplace(structure="full"), SequentialSampler(range(96))),
    }
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), alone, rtol=1e-8, atol=1e-9)


def test_a_part_that_few_examples_go_through_is_trained_as_by_one_process(tmp_path):
    """Ranks averaged the gradients that they had, of other weights, or of another number of them."""
    launch("branches", tmp_path)
    alone = by_branches()
    assert bool((alone["never.weight"] == 0.1).all()) and not bool((alone["rare.weight"] == 0.1).any())
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), alone, rtol=1e-8, atol=1e-9)


def test_processes_that_were_asked_for_different_fits_are_refused(tmp_path):
    """With a seed of its own each one's chain went its own way."""
    launch("different", tmp_path)


def test_ranks_resume_in_the_middle_of_an_epoch_and_as_many_as_they_were(tmp_path):
    launch("resumed", tmp_path)
    with pytest.raises(pst.PosterityError, match="of a run on 2 processes, got 1: resume on as many"):
        normed_fit(tmp_path / "run", resume=True)


def torchrun(*words, folder):
    """Two processes by torchrun itself, in this folder."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *map(str, words)]
    found = os.pathsep.join(path for path in sys.path if path)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": found}
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def test_a_script_may_fit_twice(tmp_path):
    (tmp_path / "twice.py").write_text(
        "import posterity as pst\n"
        "from tests.contract.cases import data, network\n"
        "training = pst.Training(batch_size=32, progress=False, device='cpu')\n"
        "for _ in range(3):\n"
        "    pst.fit(network(), pst.MAP(), data(), epochs=1, training=training)\n"
    )
    done = torchrun("twice.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_commands_other_than_fit_are_the_work_of_one_process(tmp_path):
    short = ("--data", "two-moons", "--methods", "map", "--seeds", 1, "--epochs", 2, "--no-tune", "--no-shift")
    done = torchrun("-m", "posterity", "compare", *short, "--out", "found", folder=tmp_path)
    assert done.returncode == 0 and done.stdout.count("map seed 0: accuracy") == 1, done.stderr
    assert (tmp_path / "found" / "report.html").is_file()
    done = torchrun("-m", "posterity", "evaluate", "nowhere", folder=tmp_path)
    assert done.stderr.count("posterity: nowhere is not a run folder") == 1


@pytest.mark.slow
def test_a_killed_rank_comes_back_and_nothing_is_lost(tmp_path):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "2",
    ]
    done = subprocess.run(
        [*command, "-m", "tests.distributed.worker", "elastic", str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists()
    alone = pst.fit(network(), pst.MAP(), data(), epochs=4, seed=7, training=pst.Training(**TRAINING))
    torch.testing.assert_close(torch.load(tmp_path / "elastic.pt"), outputs(alone), rtol=1e-8, atol=1e-9)
