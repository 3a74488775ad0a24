"""BatchNorm: the statistics of every draw are those of a plain pass over the data with its weights."""

import copy

import pytest
import torch
from torch import nn

import posterity as pst
from posterity.posteriors import DiagonalGaussian, Mixture, with_bank
from posterity.types import Batch

G = torch.Generator().manual_seed(0)
X = torch.randn(64, 3, generator=G, dtype=torch.float64)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)).double()


def posterior():
    net = network()
    mean = {n: p.detach() for n, p in net.named_parameters()}
    std = {n: torch.full_like(p, 0.2) for n, p in mean.items() if not n.startswith("1.")}
    batches = [Batch(x, torch.zeros(16, dtype=torch.long)) for x in X.split(16)]
    return with_bank(DiagonalGaussian(net, pst.likelihoods.Categorical(), mean, std), batches, draws=6)


def test_buffers_of_a_draw_are_those_of_a_plain_pass():
    q = posterior()
    for params, buffers in q.samples(6):
        net = copy.deepcopy(network())
        net.load_state_dict(params, strict=False)
        net[1].momentum = None
        net[1].reset_running_stats()
        for x in X.split(16):
            net.train()(x)
        torch.testing.assert_close(buffers["1.running_mean"], net[1].running_mean)
        torch.testing.assert_close(buffers["1.running_var"], net[1].running_var)


def test_the_bank_is_saved_and_bounded(tmp_path):
    q = posterior()
    pst.save(q, tmp_path / "q")
    loaded = pst.load(tmp_path / "q", network())
    drawn = [torch.stack([d(X) for d in p.draws(6)]) for p in (q, loaded)]
    torch.testing.assert_close(*drawn, rtol=0, atol=0)
    with pytest.raises(pst.PosterityError, match=r"the bank has 6: posterior\.refresh\(loader, draws=7\)"):
        list(q.draws(7))
    more = q.refresh([(X, torch.zeros(64))], draws=7)
    assert len(list(more.draws(7))) == 7


def test_automatic_draws_end_with_the_bank():
    """1024 were asked for, which the bank refused."""
    q = posterior()
    exact = q.predict(X, draws=6).probs
    torch.testing.assert_close(q.predict(X, "auto", tolerance=1e-9).probs, exact)
    with pytest.raises(pst.PosterityError, match="32 draws were asked for, but the bank has 6"):
        posterior().predict(X)  # not the eight of its first chunk
    few = q.refresh([(X, torch.zeros(64))], draws=3)
    for whole, most in ((pst.conformal(q, (X, torch.zeros(64).long()), draws=6), 6), (Mixture([q, few]), 6)):
        found = whole.predict(X, "auto", tolerance=1e-9)
        assert found.draws == most
        torch.testing.assert_close(found.probs, whole.predict(X, draws=most).probs)


def test_batched_draws_use_their_own_buffers():
    q = posterior()
    looped = torch.stack([d(X).softmax(-1) for d in q.draws(6)]).mean(0)
    torch.testing.assert_close(q.predict(X, draws=6, compute=pst.Compute(batched=True, chunk=4)).probs, looped)


@pytest.mark.parametrize("method", [pst.MAP(), pst.IVON(), pst.SGLD(burn_in=2, thin=1), pst.MeanField()], ids=repr)
@pytest.mark.parametrize("members", [1, 2])
def test_a_frozen_layer_keeps_its_statistics_and_uses_them(method, members):
    """As in fine-tuning: the layer is in eval mode, the network is not. It is then a fixed slope and offset."""
    net = network()
    net[1].running_mean.copy_(torch.arange(5.0))
    net[1].running_var.copy_(torch.arange(1.0, 6.0))
    net[1].eval()
    data = X, (X[:, 0] > 0).long()
    training = pst.Training(batch_size=21, validation=data, progress=False)  # a last batch of one is no trouble to it
    q = pst.fit(net, method, data, epochs=6, members=members, training=training)
    for part in q.parts or [q]:
        assert torch.equal(part.module[1].running_mean, torch.arange(5.0).double()) and not part.bank
    for params, buffers in q.samples(4):
        hidden = nn.functional.linear(X, params["0.weight"], params["0.bias"])
        z = (hidden - torch.arange(5.0)) / (torch.arange(1.0, 6.0) + net[1].eps).double().sqrt()
        z = (z * params["1.weight"] + params["1.bias"]).relu()
        expected = nn.functional.linear(z, params["3.weight"], params["3.bias"])
        torch.testing.assert_close(torch.func.functional_call(q.module, {**params, **buffers}, (X,)), expected)


def test_a_frozen_instance_norm_keeps_its_statistics_and_uses_them():
    """Its running statistics, which in training mode it would move and not use."""
    net = nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 2), nn.InstanceNorm1d(2, track_running_stats=True))
    net = net.append(nn.Flatten()).append(nn.Linear(4, 2)).double()
    kept = net[2].running_mean.copy_(torch.tensor([3.0, -2.0])).clone()
    net[2].eval()
    seen = []
    net[2].register_forward_hook(lambda layer, x, out: seen.append((x[0].detach(), out.detach())))
    q = pst.fit(net, pst.SWAG(rank=2, start=0, every=1), (X, (X[:, 0] > 0).long()), epochs=12)
    assert torch.equal(q.module[2].running_mean, kept) and not q.bank
    for x, out in seen:
        torch.testing.assert_close(out, (x - kept[:, None]) / (1 + net[2].eps) ** 0.5)


def test_a_frozen_layer_trains_as_a_fixed_map_does():
    """The same fit with the statistics folded into a layer that has none."""

    class Fixed(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.weight, self.bias = nn.Parameter(layer.weight.detach()), nn.Parameter(layer.bias.detach())
            self.center, self.scale = layer.running_mean, (layer.running_var + layer.eps).sqrt()

        def forward(self, x):
            return (x - self.center) / self.scale * self.weight + self.bias

    net = network()
    net[1].running_mean.copy_(torch.arange(5.0))
    plain = nn.Sequential(net[0], Fixed(net[1]), net[2], net[3])
    net[1].eval()
    found = [
        pst.fit(n, pst.MAP(), (X, (X[:, 0] > 0).long()), epochs=5, training=pst.Training(lr=0.01, progress=False))
        for n in (net, plain)
    ]
    torch.testing.assert_close(found[0].predict(X).probs, found[1].predict(X).probs)


def test_map_keeps_the_training_statistics():
    q = pst.fit(network(), pst.MAP(), (X, (X[:, 0] > 0).long()), epochs=3, training=pst.Training(progress=False))
    assert q.module[1].num_batches_tracked == 3
    assert q.module[1].running_mean.abs().sum() > 0
