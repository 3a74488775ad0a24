import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.optim.swa_utils import update_bn

import posterity as pst
from posterity.flat import Layout
from posterity.posteriors import DiagonalGaussian, load, save
from posterity.posteriors.batchnorm import batchnorm_layers, refreshed
from posterity.probability.likelihoods import Categorical
from posterity.types import Batch, PosterityError


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(),
        nn.Linear(64, 6), nn.BatchNorm1d(6, momentum=0.3), nn.Linear(6, 2),
    ).double()  # fmt: skip


def draws(module, n):
    generator = torch.Generator().manual_seed(1)
    return [
        {name: p.detach() + 0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
         for name, p in module.named_parameters()}
        for _ in range(n)
    ]  # fmt: skip


def batches(sizes):
    generator = torch.Generator().manual_seed(2)
    return [Batch(torch.randn(n, 1, 6, 6, generator=generator, dtype=torch.float64), torch.zeros(n)) for n in sizes]


def test_the_statistics_of_each_draw_are_those_of_a_separate_pass():
    """Against torch's own update_bn on a network that holds the draw's weights."""
    module, data = network(), batches([16, 16, 9])
    before = copy.deepcopy(module.state_dict())
    given = draws(module, 3)
    for params, buffers in zip(given, refreshed(module, given, data), strict=True):
        separate = copy.deepcopy(module)
        separate.load_state_dict(params, strict=False)
        separate[3].p = 0.0  # update_bn would leave dropout on
        update_bn([batch.inputs for batch in data], separate)
        for name, buffer in separate.named_buffers():
            torch.testing.assert_close(buffers[name], buffer, rtol=1e-12, atol=1e-14)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_at_most_the_stated_number_of_batches_is_read():
    module = network()

    def endless():
        while True:
            yield from batches([8, 8])

    (limited,) = refreshed(module, draws(module, 1), endless(), limit=4)
    (plain,) = refreshed(module, draws(module, 1), batches([8, 8]))
    assert int(limited["1.num_batches_tracked"]) == 4
    torch.testing.assert_close(limited["1.running_mean"], plain["1.running_mean"])


def test_the_buffers_fit_the_network():
    module, data = network(), batches([32])
    (params,) = draws(module, 1)
    (buffers,) = refreshed(module, [params], data)
    outputs = functional_call(module.eval()[:2], {k: v for k, v in {**params, **buffers}.items() if k[0] in "01"},
                              (data[0].inputs,))  # fmt: skip
    weight, bias = params["1.weight"], params["1.bias"]
    normalised = (outputs - bias[:, None, None]) / weight[:, None, None]
    torch.testing.assert_close(normalised.mean((0, 2, 3)), torch.zeros(4, dtype=torch.float64), atol=1e-12, rtol=0)
    unbiased = normalised.transpose(0, 1).reshape(4, -1).var(1)
    torch.testing.assert_close(unbiased, torch.ones(4, dtype=torch.float64), atol=1e-4, rtol=0)  # BatchNorm's own eps


def test_instance_norm_with_running_statistics_is_refreshed_too():
    """Averages over batches of what each example has by itself, and so a bank that fits each draw."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True), nn.Flatten())
    module, data = module.append(nn.Linear(32, 2)).double(), batches([8, 8])
    for params, buffers in zip(given := draws(module, 2), refreshed(module, given, data), strict=True):
        convolved = nn.functional.conv2d(torch.cat([b.inputs for b in data]), params["0.weight"], params["0.bias"])
        torch.testing.assert_close(buffers["1.running_mean"], convolved.mean((2, 3)).mean(0))
        torch.testing.assert_close(buffers["1.running_var"], convolved.flatten(2).var(2).mean(0))
    trained = pst.fit(module, pst.SWAG(rank=2, start=0, every=1), (data[0].inputs, torch.arange(8) % 2), epochs=12)
    assert trained.bank["1.running_mean"].unique(dim=0).shape == (32, 2)


def test_tied_weights_stay_tied():
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    module[2].weight = module[0].weight
    (params,) = draws(module.double(), 1)
    data = [Batch(torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64), torch.zeros(8))]
    (buffers,) = refreshed(module, [params], data)
    hidden = data[0].inputs @ params["0.weight"].T + params["0.bias"]
    torch.testing.assert_close(buffers["1.running_mean"], hidden.mean(0))


def test_a_bank_does_not_serve_other_draws(tmp_path):
    """In another precision the same seed has other draws, which had the statistics of the first ones."""
    module, data = network(), batches([16, 16])
    mean = {name: p.detach() for name, p in module.named_parameters()}
    std = {name: torch.full_like(p, 0.3) for name, p in mean.items()}
    plain = DiagonalGaussian(module, Categorical(), mean, std)
    banked, x = plain.refresh(data, 4), data[0].inputs
    save(banked, tmp_path / "q.safetensors")
    again = load(tmp_path / "q.safetensors", network())
    torch.testing.assert_close(again.predict(x, 4).probs, banked.predict(x, 4).probs)
    single, floats = banked.to(dtype=torch.float32), [Batch(b.inputs.float(), b.targets) for b in data]
    with pytest.raises(PosterityError, match="draws on cpu float64, and the seed gives other draws on cpu float32"):
        single.predict(x.float(), 4)
    expected = plain.to(dtype=torch.float32).refresh(floats, 4).predict(x.float(), 4)
    torch.testing.assert_close(single.refresh(floats, 4).predict(x.float(), 4).probs, expected.probs)
    torch.testing.assert_close(
        single.to(dtype=torch.float64).predict(x, 4).probs, banked.predict(x, 4).probs, atol=1e-5, rtol=0
    )


def test_no_data_is_refused():
    with pytest.raises(PosterityError, match="at least one batch"):
        refreshed(network(), draws(network(), 1), [])


def test_layers_without_running_statistics_need_none():
    assert not batchnorm_layers(nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False), nn.LayerNorm(3)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="recording is for GPUs")
@pytest.mark.parametrize("waits", [False, True])
def test_recorded_passes_on_a_gpu_give_the_numbers_of_the_cpu(waits):
    """Also with a ragged last batch, and for a network that waits for the device and so cannot be recorded."""

    class Waits(nn.Module):
        def forward(self, x):
            return x if not waits else x * float(x.abs().max() > 0)

    module, data = nn.Sequential(Waits(), *network()), batches([16, 16, 16, 16, 9])
    given = draws(module, 3)
    plain = refreshed(module, given, data)
    on_gpu = refreshed(module.cuda(), [{k: v.cuda() for k, v in p.items()} for p in given], data)
    for one, other in zip(plain, on_gpu, strict=True):
        for name, buffer in one.items():
            torch.testing.assert_close(other[name].cpu(), buffer, rtol=1e-9, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the fault is cuDNN's")
def test_weights_that_begin_anywhere_in_a_long_vector_do_not_fault():
    """cuDNN's BatchNorm reads weights 16 bytes at a time; the rows of a chain have any length."""
    module = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.Conv2d(64, 1, 1)).cuda()
    params = dict(module.named_parameters())
    layout = Layout.of(params)
    flat = torch.stack([layout.flatten(params)] * 3)
    assert flat.shape[1] % 4, "the second row must begin between two multiples of 16 bytes"
    x = torch.randn(32, 3, 16, 16, device="cuda").contiguous(memory_format=torch.channels_last)
    batch = Batch(x, torch.zeros(32, device="cuda"))
    with torch.autocast("cuda", torch.bfloat16):
        first, *others = refreshed(module, [layout.unflatten(row) for row in flat], [batch])
    for other in others:
        for name, buffer in first.items():
            torch.testing.assert_close(other[name], buffer)
