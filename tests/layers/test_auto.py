"""The default estimator trains with the noise of the draws by which a posterior predicts."""

import torch
from torch import nn

from posterity.layers import variational


def test_a_convolutions_noise_is_shared_by_all_positions_of_an_example_and_not_by_examples():
    net = variational(nn.Conv2d(2, 3, 3, bias=False, dtype=torch.float64), init_std=0.5)
    out = net(torch.ones(4, 2, 6, 6, dtype=torch.float64))
    torch.testing.assert_close(out, out[:, :, :1, :1].expand_as(out))
    assert out[:, :, 0, 0].unique().numel() > 3  # more than one draw of three channels


def test_a_linear_layers_noise_is_each_examples_own():
    net = variational(nn.Linear(2, 3, bias=False, dtype=torch.float64), init_std=0.5)
    assert net(torch.ones(4, 2, dtype=torch.float64)).unique().numel() == 12
