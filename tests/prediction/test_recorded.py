"""On a GPU a compiled prediction is recorded and replayed; it stays the prediction."""

import pytest
import torch
from torch import nn

import posterity as pst
from posterity.posteriors import DiagonalGaussian


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:TensorFloat32")  # torch.compile's own
def test_replayed_predictions_are_the_plain_ones_and_keep_their_numbers():
    network = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3)).cuda()
    mean = {name: p.detach() for name, p in network.named_parameters()}
    posterior = DiagonalGaussian(
        network, pst.likelihoods.Categorical(), mean, {name: torch.full_like(p, 0.1) for name, p in mean.items()}
    )
    compute = pst.Compute(compile=True, batched=True)
    batches = [torch.randn(50, 6, device="cuda", generator=torch.Generator("cuda").manual_seed(i)) for i in range(4)]
    replayed = [posterior.predict(x, 32, compute=compute).probs for x in batches]
    for x, probs in zip(batches, replayed, strict=True):
        torch.testing.assert_close(probs, posterior.predict(x, 32).probs, atol=1e-5, rtol=1e-4)
