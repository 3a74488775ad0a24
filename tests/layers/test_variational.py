"""A converted network at work: its KL and ELBO, copies and pickles, what it leaves alone, and who reads its weights."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import posterity as pst
from posterity.layers import Moped, elbo, kl, plain_moments, variational
from posterity.probability import priors
from tests.layers.networks import NETWORKS, made


def test_the_module_is_not_changed():
    module, x = made(*NETWORKS["LeNet"])
    before, classes = copy.deepcopy(module.state_dict()), [type(m) for m in module.modules()]
    net = variational(module, estimator="local", init_std=0.5)
    net(x).sum().backward()
    torch.testing.assert_close(dict(module.state_dict()), dict(before), rtol=0, atol=0)
    assert [type(m) for m in module.modules()] == classes
    assert all(p.grad is None for p in module.parameters())


def test_the_places_are_empty_again_after_an_error():
    net = variational(nn.Linear(4, 3), estimator="local")
    with pytest.raises(RuntimeError):
        net(torch.randn(2, 5))
    copy.deepcopy(net)(torch.randn(2, 4))
    assert net.net.weight is None and net.net.weight_mean is None


class Reads(nn.Module):
    """A layer whose forward is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return nn.functional.linear(x, self.layer.weight, self.layer.bias)


class Shifts(Reads):
    def forward(self, x):
        return x[:, :3] + self.layer.bias


class Saves(Reads):
    """Gradient checkpointing inside the network: the layer runs again when the pass is over."""

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=False)


def test_reading_the_weight_past_the_layer_is_refused():
    x = torch.randn(2, 4)
    for estimator in ("local", "flipout"):
        with pytest.raises(pst.PosterityError, match="weight of a Linear layer"):
            variational(Reads(), estimator=estimator)(x)
        with pytest.raises(pst.PosterityError, match="bias of a Linear layer"):
            variational(Shifts(), estimator=estimator, bayesian_bias=True)(x)
        with pytest.raises(pst.PosterityError, match="checkpoint"):
            variational(Saves(), estimator=estimator)(x).sum().backward()
    net = Reads()
    torch.testing.assert_close(variational(net, estimator="reparameterised").eval()(x), net(x))


class Looks(Reads):
    """Reads what its weight is like, as to bring inputs to its type."""

    def forward(self, x):
        weight, bias = self.layer.weight, self.layer.bias
        assert weight.shape == (len(weight), weight.size(1)) and weight.numel() == weight.shape.numel()
        assert weight.dim() == 2 and bias.ndim == 1 and weight.requires_grad and weight.is_floating_point()
        return self.layer(x.to(weight.dtype).to(weight.device))


@pytest.mark.parametrize("estimator", ["auto", "local", "flipout"])
def test_what_a_weight_is_like_can_be_read_and_its_values_cannot(estimator):
    x = torch.randn(2, 4)
    noisy = [
        variational(net, estimator=estimator, bayesian_bias=True) for net in (Looks(), nn.Sequential(Looks().layer))
    ]
    noisy[1].load_state_dict(dict(zip(noisy[1].state_dict(), noisy[0].state_dict().values(), strict=True)))
    outputs = []
    for net in noisy:
        torch.manual_seed(0)
        outputs.append(net(x.double() if net is noisy[0] else x))
    torch.testing.assert_close(*outputs, rtol=0, atol=0)
    layer = noisy[0].net.layer
    for values in (
        lambda w: w + 1,
        lambda w: w[0],
        lambda w: w.data,
        lambda w: torch.cat([w, w]),
        lambda w: w.tolist(),
    ):
        layer.register_forward_pre_hook(lambda layer, _, values=values: values(layer.weight) and None)
        with pytest.raises(pst.PosterityError, match="weight of a Linear layer"):
            noisy[0](x)
        layer._forward_pre_hooks.clear()


def test_state_dict_round_trip():
    module, _ = made(*NETWORKS["LeNet"])
    net, other = variational(module, init_std=0.1), variational(module, init_std=0.3)
    other.load_state_dict(net.state_dict())
    torch.testing.assert_close(plain_moments(other), plain_moments(net))


def test_moped_starts_at_the_weights_and_its_prior_can_be_centred_there():
    torch.manual_seed(0)
    module = nn.Linear(6, 5)
    with torch.no_grad():
        module.weight[0, 0] = 0
    net = variational(module, init_std=Moped(delta=0.2), prior=priors.Normal(0.3))
    mean, std = plain_moments(net)
    torch.testing.assert_close(mean["weight"], module.weight.detach())
    expected = 0.2 * module.weight.detach().abs()
    large = expected > 0.2 * 0.01 * module.weight.square().mean().sqrt()
    torch.testing.assert_close(std["weight"][large], expected[large])
    rms = module.weight.detach().square().mean().sqrt()
    torch.testing.assert_close(std["weight"][0, 0], 0.2 * 0.01 * rms)
    floored = plain_moments(variational(module, init_std=Moped(delta=0.2, floor=1.0), prior=priors.Normal(0.3)))[1]
    torch.testing.assert_close(floored["weight"], expected.maximum(0.2 * rms))
    torch.testing.assert_close(net.blocks[0].prior.mean, module.weight.detach().flatten())
    q = torch.distributions.Normal(mean["weight"], std["weight"])
    p = torch.distributions.Normal(module.weight.detach(), 0.3)
    torch.testing.assert_close(kl(net), torch.distributions.kl_divergence(q, p).sum())
    plain = variational(module, init_std=Moped(centred=False), prior=priors.Normal(0.3))
    assert plain.blocks[0].prior.mean == 0.0


def test_elbo_is_the_likelihood_of_all_data_less_the_kl():
    net = variational(nn.Linear(3, 1), estimator="local")
    log_likelihood = torch.tensor([-1.0, -3.0])
    torch.testing.assert_close(elbo(net, log_likelihood, 50, temperature=0.5), 50 * -2.0 - 0.5 * kl(net))


@pytest.mark.parametrize("estimator", ["local", "reparameterised", "flipout"])
def test_the_kl_can_go_backward_by_itself_after_micro_batches(estimator):
    torch.manual_seed(0)
    x, nets = torch.randn(6, 4), [variational(nn.Linear(4, 3), estimator=estimator) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    for net in nets:
        torch.manual_seed(1)
        together = net is nets[0]
        for i, part in enumerate(x.split(3)):
            loss = net(part).square().mean()
            (loss + kl(net) if together and i == 1 else loss).backward()
        if not together:
            kl(net).backward()
    for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_kl_of_a_network_with_a_converted_part():
    body, head = nn.Linear(4, 3), variational(nn.Linear(3, 2))
    torch.testing.assert_close(kl(nn.Sequential(body, head)), head.kl())


class Bare(nn.Module):
    """Gives its weight away."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 2)

    def forward(self, x):
        return self.line.weight


@pytest.mark.parametrize("family", ["diagonal", "full", "low-rank", "radial"])
def test_weights_are_drawn_in_their_own_precision_under_autocast(family):
    net = variational(Bare(), family=family, estimator="reparameterised", init_std=0.3)

    def drawn():
        torch.manual_seed(0)
        return net(torch.zeros(1)), kl(net)

    plain = drawn()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(drawn(), plain, rtol=0, atol=0)


@pytest.mark.parametrize("estimator", ["local", "flipout"])
@pytest.mark.parametrize("layer", [nn.Linear(3, 2), nn.Conv1d(1, 2, 3), nn.ConvTranspose2d(1, 2, 3)], ids=repr)
def test_a_converted_network_can_be_pickled(estimator, layer):
    net = variational(layer, estimator=estimator)
    again = pickle.loads(pickle.dumps(net))
    x = torch.randn(4, *{nn.Linear: (3,), nn.Conv1d: (1, 5), nn.ConvTranspose2d: (1, 5, 5)}[type(layer)])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = net(x)
        torch.manual_seed(0)
        torch.testing.assert_close(again(x), first, rtol=0, atol=0)
