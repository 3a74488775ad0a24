"""A recording is freed with its fit, and nothing is freed while one is made."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import torch
from torch import nn

from posterity.recorded import _no_collection
from posterity.training.recording import RecordedGradients
from posterity.types import Batch


def test_recordings_go_with_their_owner():
    net = nn.Linear(3, 1)
    streams = SimpleNamespace(shared=torch.Generator(), local=torch.Generator())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    run = SimpleNamespace(optimizer=optimizer, noise=None, streams=streams, temperature=1.0, phase=None, entries=1)

    def gradients(batch: Batch, size: int):
        loss = (net(batch.inputs) - batch.targets).square().sum() / size
        loss.backward()
        return loss.detach(), 0, 0

    recorded = RecordedGradients(run, gradients)  # type: ignore[arg-type]
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
