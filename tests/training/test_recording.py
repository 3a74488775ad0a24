"""A recording is freed with its fit, and nothing is freed while one is made."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import nn

from posterity.optim.config import OptimizerConfig
from posterity.random import RandomStreams
from posterity.recorded import _no_collection
from posterity.run import NoCollector, Run
from posterity.training.recording import RecordedGradients
from posterity.types import Batch, Plan


def test_recordings_go_with_their_owner():
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    plan = Plan(num_data=2, steps=1, steps_per_epoch=1, batch_size=2, algorithm=OptimizerConfig("sgd"))
    run = Run(net, optimizer, NoCollector(), plan, RandomStreams.from_seed(0))

    def gradients(batch: Batch, size: int):
        loss = (net(batch.inputs) - batch.targets).square().sum() / size
        loss.backward()
        return loss.detach(), 0, 0

    recorded = RecordedGradients(run, gradients)
    recorded(Batch(torch.ones(2, 3), torch.zeros(2, 1)), 2)
    assert net.bias.grad is not None and torch.allclose(net.bias.grad, 2 * net(torch.ones(1, 3))[0])
    alive = weakref.ref(next(iter(recorded.sizes.values())))
    with _no_collection():
        del recorded
        assert alive() is None


def test_the_collector_rests_during_a_recording_and_is_back_after_an_error():
    assert gc.isenabled()
    try:
        with _no_collection():
            assert not gc.isenabled()
            raise RuntimeError
    except RuntimeError:
        pass
    assert gc.isenabled()
