"""On a GPU a step can be recorded and replayed; every method then ends where it would have ended anyway."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import posterity as pst
from tests.contract.cases import METHOD_CASES, data, network

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="recording is for GPUs"),
    pytest.mark.filterwarnings("ignore::posterity.types.PosterityWarning"),  # such short runs alarm the doctor
]


def outputs(net: nn.Module, method: pst.Method, examples, **changes) -> torch.Tensor:
    training = pst.Training(batch_size=32, device="cuda", progress=False, **changes)
    posterior = pst.fit(net, method, examples, epochs=4, seed=7, training=training)
    with torch.no_grad():
        return torch.stack([draw(examples[0][:20].cuda()) for draw in posterior.draws(3)])


@pytest.mark.parametrize("case", METHOD_CASES, ids=lambda case: case.name)
def test_a_recorded_fit_is_the_plain_one(case):
    inputs, targets = data(n=150)  # the last batch of an epoch is shorter
    plain = outputs(network(), case.method, (inputs, targets), **case.training)
    recorded = outputs(network(), case.method, (inputs, targets), record=True, **case.training)
    torch.testing.assert_close(recorded, plain, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "method", [pst.MAP(), pst.MeanField(), pst.VOGN(lr=0.01, mc_samples=2)], ids=lambda m: type(m).__name__
)
def test_with_convolutions_batchnorm_micro_batches_and_augmentation(method):
    def net() -> nn.Module:
        torch.manual_seed(0)
        layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)
        return nn.Sequential(*layers).double()

    def noisy(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return x + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)

    g = torch.Generator().manual_seed(2)
    images = torch.randn(100, 1, 8, 8, generator=g, dtype=torch.float64), torch.arange(100) % 3
    plain = outputs(net(), method, images, accumulate=2, augment=noisy)
    recorded = outputs(net(), method, images, accumulate=2, augment=noisy, record=True)
    torch.testing.assert_close(recorded, plain, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", [pst.MAP(), pst.IVON(), pst.SGHMC(lr=0.01)], ids=lambda m: type(m).__name__)
def test_compiled_and_recorded_it_is_the_plain_one(method):
    inputs, targets = data(n=150)
    plain = outputs(network(), method, (inputs, targets))
    compiled = outputs(network(), method, (inputs, targets), compile=True, record=True)
    torch.testing.assert_close(compiled, plain, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", [pst.MeanField(), pst.SparseVD(), pst.MNF(hidden=4)], ids=lambda m: type(m).__name__)
def test_noise_in_layers_is_compiled_and_recorded(method):
    """The compiler draws numbers of its own, so that it is not the plain fit; it learns as well."""
    training = pst.Training(batch_size=32, lr=0.02, device="cuda", progress=False, compile=True, record=True)
    history = pst.fit(network(), method, data(n=150), epochs=20, training=training).history
    assert history[-1]["loss"] < 0.7 * history[0]["loss"]


def test_batches_of_a_loader_are_checked_in_the_first_epoch_and_recorded_after_it():
    inputs, targets = data(n=96)
    batches = list(zip(inputs.split(32), targets.split(32), strict=True))
    plain, recorded = (
        pst.fit(
            network(),
            pst.MAP(),
            batches,
            epochs=4,
            training=pst.Training(device="cuda", progress=False, record=record),
        ).mean()
        for record in (False, True)
    )
    torch.testing.assert_close(recorded, plain, rtol=1e-7, atol=1e-9)
    with pytest.raises(pst.PosterityError, match="NaN"):
        pst.fit(
            network(),
            pst.MAP(),
            [(inputs * torch.nan, targets)],
            epochs=1,
            training=pst.Training(device="cuda", progress=False, record=True),
        )


def test_a_network_that_waits_for_the_device_is_refused():
    class Waits(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (1.0 if float(x.sum()) > -1e9 else 0.0)

    with pytest.raises(pst.PosterityError, match="cannot be recorded"):
        outputs(Waits(4, 3).double(), pst.MAP(), data(n=100), record=True)
    torch.randn(3, device="cuda")  # torch's own generator has not been left in the middle of a recording
