"""A user's own loop on two gloo ranks, each with half of the batch, is one process with the whole of it.

IVON shares its noise over ranks, so DistributedDataParallel's averaged gradient is the gradient at the shared draw.
VOGN needs its statistics averaged, one line in the loop. Posteriors are over the network inside the wrapper.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import torch

from tests.optim.worker import INPUTS, TARGETS, after, ivon, network, swag, vogn


def test_two_ranks_are_one_process_on_the_whole_batch(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.optim.worker", str(tmp_path)]
    ranks = [subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(r)}) for r in range(2)]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for name, alone in (("ivon", ivon), ("vogn", vogn), ("swag", swag), ("after", after)):
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], alone(network(), INPUTS, TARGETS), rtol=1e-10, atol=1e-12)
