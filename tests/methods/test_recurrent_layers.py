"""cuDNN differentiates recurrent layers that ran in training mode only: here a layer that is as particular on a CPU."""

import pytest
import torch
from torch import Tensor, nn

import posterity as pst
from posterity.evaluation.connection import connect
from posterity.networks import differentiable

X = torch.randn(12, 5, 2, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 2


class Particular(nn.GRU):
    """Refuses, as cuDNN does, the backward pass of a forward pass in eval mode."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        outputs, state = super().forward(input, hx)
        if not self.training and outputs.requires_grad:
            outputs.register_hook(_refuse)
        return outputs, state


def _refuse(gradient: Tensor) -> None:
    raise RuntimeError("cudnn RNN backward can only be called in training mode")


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.recurrent = Particular(3, 4, num_layers=2, dropout=0.5, batch_first=True)
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.recurrent(self.first(x))[0][:, -1])


def _reader(frozen: bool = False) -> Reader:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Reader()
    network.recurrent.requires_grad_(not frozen)
    return network


def test_inside_a_network_in_eval_mode_computes_the_same_and_can_be_differentiated():
    network = _reader().eval()
    before = network(X)
    with differentiable(network):
        outputs = network(X)
    outputs.sum().backward()
    torch.testing.assert_close(outputs, before, rtol=0, atol=0)
    assert not network.recurrent.training and network.recurrent.dropout == 0.5
    with differentiable(network.train()):
        assert network.recurrent.dropout == 0.5  # a pass of training keeps its own


def test_solutions_of_a_recurrent_network_are_connected():
    ends = [pst.fit(_reader(), pst.MAP(), (X, Y), epochs=1, seed=seed) for seed in (0, 1)]
    found = connect(*ends, (X, Y), steps=2, points=3)
    again = connect(*ends, (X, Y), steps=2, points=3)
    torch.testing.assert_close(found.curve_loss, again.curve_loss, rtol=0, atol=0)


@pytest.mark.parametrize("method", [pst.VOGN(), pst.KFAC(), pst.Laplace(linearised=False)], ids=repr)
def test_curvature_goes_through_recurrent_layers_that_are_frozen(method):
    pst.fit(_reader(frozen=True), method, (X, Y), epochs=1)
