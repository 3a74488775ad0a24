"""The vectorised forms are torch's own, and hold at the edges."""

import pytest
import torch

from posterity.probability.simplex import entropy, moments, softmax

G = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("classes", [2, 10, 15, 16, 100])
def test_softmax_is_torchs_and_so_is_its_gradient(classes):
    logits = (30 * torch.randn(3, 5, classes, generator=G, dtype=torch.float64)).requires_grad_()
    torch.testing.assert_close(softmax(logits), logits.softmax(-1))
    ours, theirs = (torch.autograd.grad(f.square().sum(), logits) for f in (softmax(logits), logits.softmax(-1)))
    torch.testing.assert_close(ours, theirs)


def test_softmax_of_large_and_forbidden_logits():
    torch.testing.assert_close(softmax(torch.tensor([1e30, 0.0])), torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(softmax(torch.tensor([0.0, -torch.inf])), torch.tensor([1.0, 0.0]))
    assert softmax(torch.tensor([0.0, torch.nan])).isnan().all()


def test_entropy_is_torchs_and_zero_for_certainty():
    probs = torch.randn(6, 4, generator=G, dtype=torch.float64).softmax(-1)
    torch.testing.assert_close(entropy(probs), torch.distributions.Categorical(probs).entropy())
    assert entropy(torch.tensor([1.0, 0.0, 0.0])) == 0
    assert entropy(torch.tensor([torch.nan, 0.5])).isnan()


def test_moments_are_torchs_and_do_not_cancel():
    values = 1e4 + torch.randn(9, 3, 2, generator=G, dtype=torch.float32)
    mean, variance = moments(values)
    exact = values.double()
    torch.testing.assert_close(mean.double(), exact.mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(variance.double(), exact.var(0, correction=0), rtol=1e-3, atol=0)


def test_equal_values_have_no_variance():
    values = torch.rand(1, 50, generator=G).expand(7, 50)
    torch.testing.assert_close(moments(values), (values[0], torch.zeros(50)), rtol=0, atol=0)
