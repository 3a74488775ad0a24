"""Any network: with its stds at zero a converted network computes what the original did; the rest is refused."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

import posterity as pst
from posterity.layers import Moped, elbo, kl, plain_moments, variational
from posterity.probability import priors

DOUBLE = torch.float64
TINY = 1e-13
ESTIMATORS = ("reparameterised", "local", "flipout")


class Recurrent(nn.Module):
    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class Attention(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x, x.flip(1))


class Tied(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.output = nn.Linear(8, 11)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        return self.output(self.embedding(tokens))


class Own(nn.Module):
    """Parameters that belong to no layer of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.mix = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        return torch.cat([self.token.expand(len(x), 1, 8), x @ self.mix], 1)


def parametrised() -> nn.Module:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    nn.utils.parametrizations.weight_norm(net[0])
    return net


SEQUENCE = (2, 5, 8)
LAYERS = {
    "Linear": (lambda: nn.Linear(8, 3), (4, 8)),
    "Linear on sequences": (lambda: nn.Linear(8, 3), SEQUENCE),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 9)),
    "Conv2d groups, dilation": (lambda: nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2), (2, 4, 7, 7)),
    "Conv2d same": (lambda: nn.Conv2d(4, 6, (3, 5), padding="same", dilation=(1, 2)), (2, 4, 9, 9)),
    "Conv2d valid": (lambda: nn.Conv2d(4, 6, 2, padding="valid"), (2, 4, 7, 7)),
    "Conv2d reflect": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (2, 4, 7, 7)),
    "Conv2d circular": (lambda: nn.Conv2d(4, 6, 3, padding=(1, 2), padding_mode="circular"), (2, 4, 7, 7)),
    "Conv2d one image": (lambda: nn.Conv2d(4, 6, 3), (4, 7, 7)),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 3, padding=1, padding_mode="replicate"), (2, 2, 5, 5, 5)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1), (2, 4, 5)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 5, 5)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(2, 3, 3, dilation=2, bias=False), (2, 2, 3, 3, 3)),
    "Bilinear-free own parameters": (Own, SEQUENCE),
    "LSTM": (lambda: Recurrent(nn.LSTM(8, 6, 2, bidirectional=True, batch_first=True)), SEQUENCE),
    "LSTM with projection": (lambda: Recurrent(nn.LSTM(8, 6, proj_size=3, batch_first=True)), SEQUENCE),
    "GRU": (lambda: Recurrent(nn.GRU(8, 6, 2, batch_first=True)), SEQUENCE),
    "RNN": (lambda: Recurrent(nn.RNN(8, 6, bidirectional=True, batch_first=True)), SEQUENCE),
    "attention": (Attention, SEQUENCE),
    "attention, other widths": (lambda: Attention(kdim=8, vdim=8, add_bias_kv=True), SEQUENCE),
    "transformer decoder": (Decoder, SEQUENCE),
    "weight norm": (parametrised, (4, 8)),
}
NETWORKS = {
    "LeNet": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
        ),
        (6, 1, 8, 8),
    ),
    "transformer encoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
        ),
        SEQUENCE,
    ),
}


def made(factory, shape, seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    return factory().to(DOUBLE), torch.randn(shape, dtype=DOUBLE)


def converted(module: nn.Module, estimator: str, **options) -> nn.Module:
    """By this estimator, or by drawing where the layer has no other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pst.PosterityWarning)
        try:
            return variational(module, estimator=estimator, **options)
        except pst.PosterityError:
            return variational(module, estimator="auto", **options)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", [*LAYERS, *NETWORKS])
def test_at_std_zero_the_converted_network_is_the_original(name, estimator):
    module, x = made(*(LAYERS | NETWORKS)[name])
    expected = copy.deepcopy(module)(x)
    for options in ({}, {"bayesian_bias": True, "bayesian_norm": True}):
        net = converted(module, estimator, init_std=TINY, **options)
        torch.testing.assert_close(copy.deepcopy(net)(x), expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(copy.deepcopy(net).eval()(x), module.eval()(x), rtol=0, atol=1e-12)
        torch.testing.assert_close(net.plain().eval()(x), module.eval()(x), rtol=0, atol=0)
        module.train()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", [*LAYERS, *NETWORKS])
def test_every_bayesian_parameter_makes_noise_and_gets_a_gradient(name, estimator):
    module, x = made(*(LAYERS | NETWORKS)[name])
    net = converted(module, estimator, init_std=0.1, bayesian_bias=True)
    assert not torch.allclose(net(x), net(x))
    (net(x).square().sum() + 0 * kl(net)).backward()
    for block in net.blocks:
        for parameter in (block.mean, block.log_std):
            for name, grad in block.slots.layout.unflatten(parameter.grad).items():
                assert grad.abs().sum() > 0, name


def test_transposed_convolution_takes_an_output_size():
    module, x = made(lambda: nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 5))
    net = variational(module, estimator="local", init_std=TINY)
    torch.testing.assert_close(net(x, [12, 12]), module(x, [12, 12]), rtol=0, atol=1e-10)
    for estimator in ("local", "flipout"):
        net = variational(module, estimator=estimator, init_std=TINY)
        by_name = net(x, output_size=[12, 12])
        torch.testing.assert_close(by_name, module(x, output_size=[12, 12]), rtol=0, atol=1e-10)


def test_tied_weights_are_one_draw():
    torch.manual_seed(0)
    module, tokens = Tied().to(DOUBLE), torch.arange(11)
    net = converted(module, "local", init_std=TINY)
    torch.testing.assert_close(net(tokens), module(tokens), rtol=0, atol=1e-10)
    assert list(plain_moments(net)[1]) == ["embedding.weight"]
    noisy = variational(module, init_std=0.5)
    with torch.no_grad():
        noisy.net.output.bias.zero_()
        outputs = noisy(tokens)
    # E Eᵀ is symmetric only if both uses saw the same E.
    torch.testing.assert_close(outputs, outputs.T)
    plain = noisy.plain()
    assert plain.output.weight is plain.embedding.weight


def test_weights_tied_to_a_layer_that_was_not_selected_are_random_in_both():
    torch.manual_seed(0)
    net = variational(Tied().to(DOUBLE), which="output", init_std=0.5)
    with torch.no_grad():
        net.net.output.bias.zero_()
        outputs = net(torch.arange(11))
    torch.testing.assert_close(outputs, outputs.T)
    assert list(plain_moments(net)[1]) == ["embedding.weight"]


def test_a_shared_module_is_drawn_once():
    layer = nn.Linear(4, 4, bias=False).to(DOUBLE)
    module = nn.Sequential(layer, layer)
    with pytest.raises(pst.PosterityError, match="reparameterised"):
        variational(module, estimator="local")
    net = variational(module, init_std=0.3)
    with torch.no_grad():
        squares = torch.stack([net(torch.eye(4, dtype=DOUBLE)) for _ in range(30)])
    # The square of one matrix has no negative determinant; a product of two draws has one in half of all cases.
    assert (torch.linalg.det(squares) >= 0).all()


def test_parametrised_weights_keep_their_parametrisation():
    class Symmetric(nn.Module):
        def forward(self, weight):
            return weight.triu() + weight.triu(1).T

    layer = nn.Linear(5, 5, bias=False).to(DOUBLE)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    net = variational(layer, init_std=0.3)
    with torch.no_grad():
        drawn = net(torch.eye(5, dtype=DOUBLE))
    torch.testing.assert_close(drawn, drawn.T)


def test_padding_rows_of_an_embedding_stay_as_they_are():
    embedding = nn.Embedding(6, 3, padding_idx=2)
    net = variational(embedding, init_std=0.5)
    tokens = torch.arange(6)
    drawn = net(tokens)
    assert (drawn[2] == 0).all() and (drawn[[0, 1, 3, 4, 5]] != embedding(tokens)[[0, 1, 3, 4, 5]]).all()
    assert (plain_moments(net)[1]["weight"][2] == 0).all()


@pytest.mark.parametrize("family", ["diagonal", "low-rank", "radial"])
def test_padding_rows_have_no_noise_in_a_draw_or_a_std(family):
    net = variational(nn.Embedding(6, 3, padding_idx=2), family=family, init_std=0.5)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if "mean" not in name:
                p.fill_(0.5)  # as training does, by the KL alone
    others = [0, 1, 3, 4, 5]
    for table in (net.draw()["weight"] - net.mean()["weight"], net.std()["weight"]):
        assert (table[2] == 0).all() and (table[others] != 0).all()


@pytest.mark.parametrize("estimator", ["auto", "reparameterised"])
def test_a_bias_alone_can_be_bayesian(estimator):
    for layer, x in ((nn.Linear(4, 3), torch.randn(5, 4)), (nn.Conv1d(4, 3, 1), torch.randn(5, 4, 2))):
        layer.weight.requires_grad_(False)  # as where biases alone are tuned
        nn.init.constant_(layer.bias, 5.0)
        net = variational(layer, estimator=estimator, bayesian_bias=True, init_std=TINY)
        torch.testing.assert_close(net(x), layer(x))
        assert list(net.std()) == ["bias"]


def test_a_full_covariance_of_padding_rows_is_refused():
    with pytest.raises(pst.PosterityError, match="padding row"):
        variational(nn.Embedding(6, 3, padding_idx=2), family="full")


def test_lazy_modules_after_their_first_call():
    module = nn.Sequential(nn.LazyConv2d(3, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    with pytest.raises(pst.PosterityError, match="LazyConv2d at '0' is lazy"):
        variational(module)
    x = torch.randn(2, 1, 5, 5)
    expected = module(x)
    torch.testing.assert_close(variational(module, estimator="local", init_std=1e-9)(x), expected, atol=1e-5, rtol=0)


def test_what_has_no_local_estimator_is_drawn_and_said():
    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    with pytest.warns(pst.PosterityWarning, match=r"no local estimator for 0\.weight"):
        variational(module, estimator="local")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        variational(module, estimator="auto")


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


def test_state_dict_round_trip():
    module, _ = made(*NETWORKS["LeNet"])
    net, other = variational(module, init_std=0.1), variational(module, init_std=0.3)
    other.load_state_dict(net.state_dict())
    torch.testing.assert_close(plain_moments(other), plain_moments(net))


def names(net) -> list[str]:
    return sorted(plain_moments(net)[1])


def test_selection_by_name_type_and_last():
    module, _ = made(*NETWORKS["LeNet"])
    assert names(variational(module)) == ["0.weight", "5.weight"]
    assert names(variational(module, which="last")) == ["5.weight"]
    assert names(variational(module, which=nn.Conv2d)) == ["0.weight"]
    assert names(variational(module, which="5")) == ["5.weight"]
    assert names(variational(module, which=("0", nn.Linear), bayesian_bias=True)) == [
        "0.bias",
        "0.weight",
        "5.bias",
        "5.weight",
    ]
    everything = [name for name, _ in module.named_parameters()]
    assert sorted(names(variational(module, bayesian_bias=True, bayesian_norm=True))) == sorted(everything)
    module[0].requires_grad_(False)
    assert names(variational(module)) == ["5.weight"]


def test_selecting_a_container_brings_what_is_inside():
    module = nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4)), nn.Linear(4, 1))
    assert names(variational(module, which="0")) == ["0.0.weight", "0.1.weight"]
    assert names(variational(module, which="0.*")) == ["0.0.weight", "0.1.weight"]


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"init_std": 0.0}, "init_std must be positive"),
        ({"init_std": -1.0}, "init_std must be positive"),
        ({"estimator": "magic"}, "unknown estimator 'magic'"),
        ({"family": "magic"}, "unknown family 'magic'"),
        ({"family": "full", "estimator": "local"}, "local estimator is for diagonal"),
        ({"which": "nothing"}, "selects no weights; there are weights in 0, 5"),
        ({"which": nn.LSTM}, "selects no weights"),
        ({"which": ()}, "selects no weights"),
        ({"init_std": Moped(), "prior": priors.Laplace()}, "must be Normal, got Laplace"),
        ({"prior": priors.Normal({"7.weight": 1.0})}, "says nothing about parameter '5.weight'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(pst.PosterityError, match=message):
        variational(made(*NETWORKS["LeNet"])[0], **arguments)


def test_what_cannot_be_converted_is_refused_with_path_and_reason():
    once = nn.Sequential(nn.Linear(2, 2), variational(nn.Linear(2, 2)))
    with pytest.raises(pst.PosterityError, match="Variational at '1' is converted already"):
        variational(once)
    with pytest.raises(pst.PosterityError, match="complex weight"):
        variational(nn.Linear(2, 2, dtype=torch.complex64))
    with pytest.raises(pst.PosterityError, match="one type and device"):
        variational(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))
    with pytest.raises(pst.PosterityError, match="selects no weights"):
        variational(nn.ReLU())
    with pytest.raises(pst.PosterityError, match="too large"):
        variational(nn.Linear(100, 100), family="full")
    with pytest.raises(pst.PosterityError, match="wraps a network over devices"):
        variational(nn.DataParallel(nn.Linear(2, 2)))
    with pytest.raises(pst.PosterityError, match="holds no Bayesian weights"):
        kl(nn.Linear(2, 2))
    with pytest.raises(pst.PosterityError, match="variational"):
        plain_moments(nn.Linear(2, 2))


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


class Difference(nn.Module):
    """Calls its layer twice on the same input: nothing is left if both calls see the same weights."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.norm, self.dropout = layer, nn.BatchNorm1d(1), nn.Dropout(0.5)

    def forward(self, x):
        self.norm(self.dropout(x.flatten(1)[:, :1]))
        return self.layer(x) - self.layer(x)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(6, 2), (5, 6)),
        (nn.Linear(6, 2), (5, 3, 6)),
        (nn.Conv1d(2, 2, 3, padding=1), (5, 2, 6)),
        (nn.ConvTranspose2d(2, 2, 3), (5, 2, 6, 6)),
    ],
)
def test_calls_of_one_layer_in_a_pass_share_their_draw(layer, shape):
    net = variational(Difference(layer).to(DOUBLE), init_std=0.3, bayesian_bias=True)
    x = torch.randn(shape, dtype=DOUBLE)
    for _ in range(2):
        outputs = net(x)
        torch.testing.assert_close(outputs, torch.zeros_like(outputs), rtol=0, atol=0)
    assert net.net.norm.num_batches_tracked == 2


def test_looking_for_calls_leaves_no_trace():
    net = variational(Difference(nn.Linear(6, 2)).to(DOUBLE), init_std=0.3)
    looked, x = copy.deepcopy(net), torch.randn(5, 6, dtype=DOUBLE)
    looked(x)
    looked.load_state_dict(net.state_dict())
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net(x)
        after = torch.rand(1)
        torch.manual_seed(1)
        looked(x)
        assert torch.rand(1) == after
    torch.testing.assert_close(net.state_dict(), looked.state_dict(), rtol=0, atol=0)


def test_a_layer_that_fails_is_looked_at_again():
    net = variational(Difference(nn.Linear(6, 2)).to(DOUBLE), init_std=0.3)
    with pytest.raises(RuntimeError):
        net(torch.randn(5, 4, dtype=DOUBLE))
    outputs = net(torch.randn(5, 6, dtype=DOUBLE))
    assert (outputs == 0).all()
