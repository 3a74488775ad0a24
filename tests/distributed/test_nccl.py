"""NCCL on one GPU: a group of one process, whose collectives leave everything as it is."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import posterity as pst
from posterity.training.distributed import Ranks
from tests.contract.cases import data

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="NCCL is for GPUs")


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def weights(method: pst.Method) -> torch.Tensor:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 3)).double()
    training = pst.Training(batch_size=32, device="cuda", progress=False)
    posterior = pst.fit(net, method, data(), epochs=2, seed=1, training=training)
    return torch.cat([w.flatten() for w in posterior.mean().values()])


@pytest.mark.parametrize("method", [pst.MAP(), pst.VOGN(), pst.IVON()], ids=lambda m: type(m).__name__)
@pytest.mark.filterwarnings("ignore::posterity.types.PosterityWarning")
def test_a_fit_in_a_group_of_one_is_the_fit_without_a_group(method, request):
    alone = weights(method)
    request.getfixturevalue("group")
    torch.testing.assert_close(weights(method), alone, rtol=0, atol=0)


def test_the_bucket_goes_through_nccl(group):
    tensors = [torch.arange(6.0, device="cuda").view(2, 3), torch.full((4,), 8.0, device="cuda")]
    Ranks(rank=0, world=2).average_(tensors)  # as if of two, so that it does not stand back; the sum is ours alone
    assert tensors[0].tolist() == [[0.0, 0.5, 1.0], [1.5, 2.0, 2.5]]
    assert tensors[1].tolist() == [4.0] * 4
    Ranks(rank=0, world=2).broadcast_(tensors)
    assert tensors[1].tolist() == [4.0] * 4
