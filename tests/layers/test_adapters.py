"""Low-rank adapters: nothing but they are trained, and without them the network is the one they were put into."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import posterity as pst
from posterity import models
from tests.contract.cases import data, network

pytestmark = pytest.mark.filterwarnings("ignore::posterity.types.PosterityWarning")  # such short runs alarm the doctor
TRAINING = pst.Training(batch_size=32, lr=0.02, progress=False)


def randomised(net: nn.Module) -> nn.Module:
    """With adapters that do something."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            if p.requires_grad:
                p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return net


def test_at_the_start_and_switched_off_the_network_is_the_base_exactly():
    base, inputs = network(), data()[0]
    net = pst.adapters(base, rank=2)
    assert torch.equal(net(inputs), base(inputs))
    randomised(net)
    assert not torch.allclose(net(inputs), base(inputs))
    with pst.adapters_off(net):
        assert torch.equal(net(inputs), base(inputs))
    assert not torch.allclose(net(inputs), base(inputs))


def test_an_adapter_adds_its_low_rank_matrix_to_the_weight():
    base, inputs = nn.Linear(4, 3).double(), data()[0]
    net = randomised(pst.adapters(base, rank=2, alpha=6.0))
    weight = base.weight + 3.0 * net.up.weight @ net.down.weight
    torch.testing.assert_close(net(inputs), inputs @ weight.T + base.bias)


def test_only_adapters_need_gradients_and_the_original_is_left_alone():
    base = models.Transformer(20, 8, 3, width=16, heads=2, depth=2)
    net = pst.adapters(base, rank=3, which="blocks.*.attention")
    trained = {name: p.shape for name, p in net.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 4 * 2
    assert trained["blocks.1.attention.query.down.weight"] == (3, 16)
    assert all(p.requires_grad for p in base.parameters())
    assert not any(isinstance(m, pst.layers.Adapted) for m in base.modules())


def test_a_frozen_network_can_be_adapted_and_a_shared_layer_keeps_one_adapter():
    shared = nn.Linear(4, 4)
    net = pst.adapters(nn.Sequential(shared, nn.Tanh(), shared).requires_grad_(False), rank=1)
    assert net[0] is net[2]
    assert sum(p.numel() for p in net.parameters() if p.requires_grad) == 8


def test_the_fused_transformer_layer_of_torch_does_not_read_past_its_adapters():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0).double()
    net = randomised(pst.adapters(layer, rank=2)).eval()
    inputs = torch.randn(3, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    slow = net(inputs)
    with torch.no_grad():  # where torch would take its fused kernel
        torch.testing.assert_close(net(inputs), slow)


@pytest.mark.parametrize(
    "method",
    [pst.IVON(), pst.SWAG(rank=2), pst.Laplace(), pst.Laplace(structure="diagonal"), pst.MeanField(), pst.VOGN()],
    ids=lambda method: repr(method),
)
def test_a_posterior_over_adapters_alone(method, tmp_path):
    base = network()
    net = pst.adapters(base, rank=2)
    lr = None if isinstance(method, pst.IVON | pst.VOGN) else 0.02
    training = pst.Training(batch_size=32, lr=lr, progress=False)
    posterior = pst.fit(net, method, data(), epochs=20, training=training)
    random = {name for name, variance in posterior.variance().items() if bool((variance > 0).any())}
    assert random == {f"{i}.{part}.weight" for i in (0, 2) for part in ("down", "up")}
    mean = posterior.mean()
    for name, p in base.named_parameters():
        assert torch.equal(mean[name.replace(".", ".base.")], p)
    inputs, targets = data()
    log_prob = pst.likelihoods.Categorical().log_prob
    assert posterior.predict(inputs).log_prob(targets).mean() > log_prob(base(inputs), targets).mean() + 0.02
    pst.save(posterior, tmp_path / "q.safetensors")
    loaded = pst.load(tmp_path / "q.safetensors", pst.adapters(base, rank=2))
    torch.testing.assert_close(loaded.predict(inputs).probs, posterior.predict(inputs).probs)


class Lora(nn.Module):
    """An adapter as another library puts it in: parameters of its own beside a frozen layer."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, 2, bias=False).double()})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, base.out_features, bias=False).double()})

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


@pytest.mark.parametrize("method", [pst.IVON(), pst.SWAG(rank=2), pst.Laplace()], ids=lambda method: repr(method))
def test_adapters_of_another_library_work_as_well(method):
    net = network()
    net[0], net[2] = Lora(net[0]), Lora(net[2])
    posterior = pst.fit(net, method, data(), epochs=4, training=pst.Training(batch_size=32, progress=False))
    random = {name for name, variance in posterior.variance().items() if bool((variance > 0).any())}
    assert random == {f"{i}.lora_{part}.default.weight" for i in (0, 2) for part in "AB"}


def test_restarts_begin_with_adapters_that_add_nothing():
    net = pst.adapters(network(), rank=2)
    mixture = pst.fit(net, pst.MAP(), data(), epochs=1, members=2, training=TRAINING)
    means = [part.mean() for part in mixture.parts]
    assert torch.equal(means[0]["0.base.weight"], means[1]["0.base.weight"])
    assert not torch.equal(means[0]["0.down.weight"], means[1]["0.down.weight"])


BY_BATCH = nn.BatchNorm1d(8)
BY_EXAMPLE = nn.Sequential(nn.Unflatten(1, (4, 2)), nn.InstanceNorm1d(4, track_running_stats=True), nn.Flatten())


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("norm", [BY_BATCH, BY_EXAMPLE], ids=["batch", "instance"])
def test_a_fit_leaves_the_statistics_under_the_adapters_alone(norm, members):
    """They moved with the new data, and restarts wiped them out: the base was off by 0.4."""
    inputs, targets = data()
    base = nn.Sequential(nn.Linear(4, 8), copy.deepcopy(norm), nn.ReLU(), nn.Linear(8, 3)).double()
    base(3 * inputs + 1)
    expected, net = base.eval()(inputs), pst.adapters(base, rank=2)
    posterior = pst.fit(net, pst.IVON(), (inputs, targets), epochs=3, members=members, training=TRAINING)
    for part in posterior.parts or [posterior]:
        with pst.adapters_off(part.module):
            assert torch.equal(part.module(inputs), expected)


def test_bad_input_is_refused():
    with pytest.raises(pst.PosterityError, match="rank must be a whole number above 0, got 0"):
        pst.adapters(network(), rank=0)
    with pytest.raises(pst.PosterityError, match="selects no Linear layer"):
        pst.adapters(nn.Sequential(nn.Conv1d(1, 1, 1)))
    with pytest.raises(pst.PosterityError, match="alpha must be positive"):
        pst.adapters(network(), alpha=-1.0)
