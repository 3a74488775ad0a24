"""On a GPU images reach a network with their channels last, where the network can take them so."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import posterity as pst
from posterity import devices
from posterity.devices import channels_last, device_order

pytestmark = pytest.mark.filterwarnings("ignore::posterity.types.PosterityWarning")  # short runs alarm the doctor
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IMAGES = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 3


@pytest.fixture(autouse=True)
def anywhere(monkeypatch):
    """A CPU takes either order too, and refuses the same views, so it can stand in for a GPU here."""
    monkeypatch.setattr(devices, "_is_images", lambda t: t.ndim == 4 and t.is_floating_point())


class Convolutions(nn.Module):
    """Remembers, for all copies, how its feature maps lay in training."""

    last: ClassVar[list[bool]] = []

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn, self.conv2 = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 5, 3)
        self.head = nn.Linear(5 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv2(self.bn(self.conv1(x)).relu())
        if self.training:
            self.last.append(x.is_contiguous(memory_format=torch.channels_last))
        return self.head(self.flat(x))

    def flat(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class Viewing(Convolutions):
    """As many a tutorial has it; a view of a tensor with its channels last is refused by torch."""

    last: ClassVar[list[bool]] = []

    def flat(self, x: Tensor) -> Tensor:
        return x.view(-1, 5 * 16)


METHODS = {
    "map": pst.MAP(),
    "local": pst.MeanField(),
    "flipout": pst.MeanField(estimator="flipout"),
    "vogn": pst.VOGN(),
    "k-fac": pst.KFAC(),
    "swag": pst.SWAG(rank=2, every=1),
    "ivon": pst.IVON(),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize(("kind", "last"), [(Convolutions, True), (Viewing, False)])
def test_feature_maps_lie_as_the_network_can_take_them(kind, last, method):
    kind.last.clear()
    training = pst.Training(batch_size=32, device=DEVICE, progress=False)
    posterior = pst.fit(kind(), method, IMAGES, epochs=3, training=training)
    assert set(kind.last) == {last}
    assert torch.isfinite(posterior.predict(IMAGES[0], draws=3).probs).all()


def test_one_channel_counts_as_last_too():
    network = nn.Sequential(nn.Conv2d(1, 16, 3), nn.Conv2d(16, 4, 3)).to(DEVICE)
    order = device_order(network, torch.zeros(5, 1, 8, 8, device=DEVICE))
    image = order(torch.arange(128.0, device=DEVICE).view(2, 1, 8, 8))
    assert image.stride() == (64, 1, 8, 1) and image.sum() == 127 * 64
    assert network(image).is_contiguous(memory_format=torch.channels_last)


def test_few_channels_do_not_gain():
    image = torch.zeros(5, 1, 8, 8, device=DEVICE)
    assert device_order(nn.Sequential(nn.Conv2d(1, 6, 3), nn.Conv2d(6, 16, 3)).to(DEVICE), image)(image) is image


def test_what_is_no_image_stays_as_it_is():
    table = torch.zeros(5, 3, device=DEVICE)
    assert device_order(nn.Linear(3, 1).to(DEVICE), table)(table) is table
    tokens = torch.zeros(5, 3, 2, 2, dtype=torch.long, device=DEVICE)
    assert channels_last(tokens) is tokens
