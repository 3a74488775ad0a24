"""Moments of one pass against draws: exact where independence is, and near where it is not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import posterity as pst
from posterity.models import lenet5
from posterity.posteriors import DiagonalGaussian, FullGaussian
from posterity.prediction.moment_rules import LayerWeights, Moments, _batch_norm
from posterity.prediction.moments import normal_points, output_moments

DOUBLE = torch.float64


def posterior(net: nn.Module, std: float = 0.1, likelihood=None) -> DiagonalGaussian:
    net = net.to(DOUBLE)
    mean = {name: p.detach() for name, p in net.named_parameters()}
    stds = {name: torch.full_like(p, std) for name, p in mean.items()}
    return DiagonalGaussian(net, likelihood or pst.likelihoods.Categorical(), mean, stds)


def drawn(q: DiagonalGaussian, x: torch.Tensor, draws: int) -> torch.Tensor:
    with torch.no_grad():
        return torch.stack([draw(x) for draw in q.draws(draws)])


def moments(q: DiagonalGaussian, x: torch.Tensor):
    with torch.no_grad():
        return output_moments(q.module, *q.independent_moments(), x)


def inputs(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)


class Residual(nn.Module):
    """x + f(x), and a sum of two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return x + 2 * self.left(x) + self.right(x).view(x.size(0), -1) / 3


class Turned(nn.Module):
    """Attributes of a tensor that are tensors, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x):
        return self.layer(x).mT.reshape(x.shape[0], -1)


class Tied(nn.Module):
    """Two layers of one weight, of which one acts on other inputs than the other."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Linear(3, 2)
        self.right.weight = self.left.weight

    def forward(self, x):
        return torch.cat([self.left(x[:, :3]), self.right(x[:, 3:])], 1)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 3), nn.Linear(6, 2)

    def forward(self, x):
        return torch.cat([F.relu(self.left(x)), self.right(x).tanh(), x[:, :1]], 1)


class AlwaysOn(nn.Module):
    """Dropout as a function, whose masks are drawn when the network predicts, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x):
        return F.dropout(F.dropout(self.layer(F.dropout(x, 0.2)), 0.5), 0.9, self.training)


EXACT = {
    "linear": (lambda: nn.Linear(6, 4), (3, 6)),
    "convolution": (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 2, 6, 6)),
    "transposed convolution": (lambda: nn.ConvTranspose1d(2, 3, 3, stride=2), (2, 2, 5)),
    "one hidden layer, ReLU": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (3, 6)),
    "leaky ReLU": (lambda: nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 3)), (3, 6)),
    "GELU": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)), (3, 6)),
    "softplus": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 3)), (3, 6)),
    "tanh": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), (3, 6)),
    "residual": (Residual, (3, 6)),
    "branches": (Branches, (3, 6)),
    "transposed": (Turned, (3, 2, 6)),
    "tied": (Tied, (3, 6)),
    "dropout that is always on": (AlwaysOn, (3, 6)),
}


@pytest.mark.parametrize("case", EXACT.values(), ids=EXACT.keys())
def test_with_independent_activations_moments_are_those_of_draws(case):
    make, shape = case
    torch.manual_seed(0)
    q, x, count = posterior(make(), 0.3), inputs(*shape), 4000
    found, draws = moments(q, x), drawn(q, x, count)
    # 5 standard errors; the variance of a variance from the draws' own fourth moments.
    error = (found.variance / count).sqrt()
    assert ((draws.mean(0) - found.mean).abs() <= 5 * error + 1e-12).all()
    fourth = (draws - draws.mean(0)).pow(4).mean(0)
    spread = ((fourth - draws.var(0).square()).clamp_min(0) / count).sqrt()
    assert ((draws.var(0) - found.variance).abs() <= 5 * spread + 1e-12).all()


@pytest.mark.parametrize(
    "activation", [nn.ReLU(), nn.LeakyReLU(0.2), nn.Tanh(), nn.Sigmoid(), nn.GELU(), nn.Softplus(), nn.ELU()]
)
@pytest.mark.parametrize("std", [0.3, 1.0, 3.0])
def test_activations_of_wide_inputs_have_their_moments(activation, std):
    net = nn.Sequential(nn.Linear(1, 1, bias=False), activation).double()
    at = {"0.weight": torch.full((1, 1), 0.5, dtype=torch.float64)}
    found = output_moments(net, at, {"0.weight": at["0.weight"] * 0 + std**2}, torch.ones(1, 1, dtype=torch.float64))
    z = torch.linspace(-9, 9, 20_001, dtype=torch.float64)
    share, value = torch.softmax(-0.5 * z.square(), 0), activation(0.5 + std * z)
    mean = (share * value).sum()
    variance = (share * (value - mean).square()).sum()
    assert abs(float(found.mean - mean)) < 1e-3 * float(variance.sqrt())
    assert float(found.variance) == pytest.approx(float(variance), rel=4e-3)


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(0.2), nn.GELU(), nn.Softplus(), nn.ELU(), nn.SiLU()])
def test_a_small_spread_about_a_large_mean_keeps_its_digits(activation):
    """Where the activation is a straight line, in float32."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), activation)
    mean, variance = {"0.weight": torch.full((1, 1), 100.0)}, {"0.weight": torch.full((1, 1), 1e-4)}
    found = output_moments(net, mean, variance, torch.ones(1, 1))
    assert float(found.mean) == pytest.approx(100, rel=1e-6)
    assert float(found.variance) == pytest.approx(1e-4, rel=5e-3)


def test_a_random_batch_norm_is_a_product_of_independent_factors():
    """Inputs, slope and offset all random: Var(ab + c) = E[a]² Var b + Var a E[b²] + Var c."""
    layer = nn.BatchNorm1d(2).to(DOUBLE).eval()
    layer.running_mean.copy_(torch.tensor([0.5, -1.0]))
    layer.running_var.copy_(torch.tensor([4.0, 0.25]))
    mean, variance = torch.tensor([[1.5, 0.2]], dtype=DOUBLE), torch.tensor([[0.6, 1.1]], dtype=DOUBLE)
    slope, offset = torch.tensor([1.2, -0.7], dtype=DOUBLE), torch.tensor([0.3, 0.1], dtype=DOUBLE)
    weights = LayerWeights({"weight": slope, "bias": offset}, {"weight": slope**2 / 4, "bias": offset**2})
    found = _batch_norm(layer, Moments(mean, variance), weights)
    scale = (layer.running_var + layer.eps).rsqrt()
    center, spread = (mean - layer.running_mean) * scale, variance * scale**2
    torch.testing.assert_close(found.mean, center * slope + offset)
    torch.testing.assert_close(found.variance, slope**2 * spread + slope**2 / 4 * (center**2 + spread) + offset**2)


def test_dropout_that_is_always_on_adds_its_variance_to_what_is_known():
    """With x known, b/(1 − p) of mean 1 and variance p/(1 − p)."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1, bias=False)

        def forward(self, x):
            return self.layer(F.dropout(x, 0.2))

    x, weight = torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0, -1.0]])
    for _ in range(3):  # no mask is drawn
        found = output_moments(Net(), {"layer.weight": weight}, {"layer.weight": torch.zeros(1, 2)}, x)
        assert float(found.mean) == pytest.approx(-1.0)
        assert float(found.variance) == pytest.approx(0.25 * (2.0**2 + 3.0**2))


def test_batch_norm_scales_means_and_stds():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).to(DOUBLE)
    net(inputs(8, 2, 5, 5) * 3)  # running statistics that are nowhere special
    q, x, count = posterior(net.eval(), 0.2), inputs(2, 2, 5, 5), 4000
    found, draws = moments(q, x), drawn(q, x, count)
    assert ((draws.mean(0) - found.mean).abs() <= 5 * (found.variance / count).sqrt()).all()
    assert (draws.var(0) / found.variance - 1).abs().max() < 5 * (6 / count) ** 0.5  # products: kurtosis up to 7


def test_pooling_picks_the_largest_mean_and_averages_shared_noise():
    net = nn.Sequential(nn.Conv1d(1, 2, 1, bias=False), nn.MaxPool1d(2)).to(DOUBLE)
    q, x = posterior(net, 0.1), torch.tensor([[[1.0, 3.0, 2.0, -1.0]]], dtype=DOUBLE)
    weight = net[0].weight.detach().flatten()
    best = torch.where(
        weight[:, None] > 0, torch.tensor([3.0, 2.0], dtype=DOUBLE), torch.tensor([1.0, -1.0], dtype=DOUBLE)
    )
    found = moments(q, x)
    torch.testing.assert_close(found.mean[0], weight[:, None] * best)
    torch.testing.assert_close(found.variance[0], 0.01 * best.square())
    # One filter over positive inputs: its outputs are one random number times them, and so is their average.
    average = posterior(nn.Sequential(nn.Conv1d(1, 2, 1, bias=False), nn.AvgPool1d(4)), 0.1)
    found = moments(average, x.abs())
    torch.testing.assert_close(found.variance[0, :, 0], torch.full((2,), 0.01 * (7 / 4) ** 2, dtype=DOUBLE))


class Shifted(nn.Module):
    """A parameter of the network's own, and arguments that need not be given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.offset = nn.Linear(6, 4), nn.Parameter(torch.arange(4.0))

    def forward(self, x, scale=1.0, shift=0.0):
        return self.layer(x) * scale + self.offset + shift


def test_arguments_go_by_name_and_a_parameter_of_the_networks_own_is_random_too():
    q, x, shift = posterior(Shifted(), 0.1), inputs(3, 6), inputs(3, 1)
    spread = (0.01 * (x.square().sum(1, keepdim=True) + 1 + 1)).expand(3, 4)
    for given, mean in ((x, q.module(x)), ({"shift": shift, "x": x}, q.module(x) + shift)):
        found = moments(q, given)
        torch.testing.assert_close(found.mean, mean)
        torch.testing.assert_close(found.variance, spread)
    for wrong in ({"x": x, "shfit": shift}, {"shift": shift}, (x, shift, shift, shift)):
        with pytest.raises(TypeError, match="argument"):
            moments(q, wrong)


class Averaged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 3, 2)

    def forward(self, x):
        return self.layer(x).mean((2, 3))


def test_an_average_as_it_is_written_is_that_of_the_layer():
    written, x = Averaged(), inputs(2, 2, 4, 4)
    layers = nn.Sequential(written.layer, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for found, expected in zip(moments(posterior(written), x), moments(posterior(layers), x), strict=True):
        torch.testing.assert_close(found, expected)


def near_draws_on_lenet(draws: int) -> None:
    torch.manual_seed(0)
    q = posterior(lenet5((1, 28, 28), 10), 0.03)
    x = F.avg_pool2d(inputs(6, 1, 30, 30), 3, 1).relu() * 2  # smooth and dark in places, as digits are
    found, sampled = moments(q, x), drawn(q, x, draws)
    std = sampled.std(0)
    assert ((found.mean - sampled.mean(0)).abs() / std).mean() < 0.1
    assert 0.6 < (found.variance.sqrt() / std).mean() < 1.1
    mean_only = (q.module(x) - sampled.mean(0)).abs().mean()
    assert (found.mean - sampled.mean(0)).abs().mean() < mean_only
    prediction = q.predict(x, draws="moments")
    assert (prediction.probs - sampled.softmax(-1).mean(0)).abs().max() < 0.03


FUNCTIONS = {
    "elu": lambda t: F.elu(t, 0.5),
    "softplus": lambda t: F.softplus(t, beta=3.0),
    "gelu": lambda t: F.gelu(t, approximate="tanh"),
    "sum": lambda t: torch.add(t, t, alpha=2),
    "dilated pooling": lambda t: F.max_pool2d(t, 2, dilation=2),
    "pooling to the edge": lambda t: F.max_pool2d(t, 2, ceil_mode=True),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_functions_keep_their_options(function):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Conv2d(1, 2, 3)

        def forward(self, x):
            return function(self.layer(x))

    q, x = posterior(Net(), 1e-7), inputs(2, 1, 7, 7)
    torch.testing.assert_close(moments(q, x).mean, q.module(x), rtol=1e-6, atol=1e-6)


def test_lenet_moments_are_near_those_of_draws():
    near_draws_on_lenet(1000)


@pytest.mark.slow
def test_lenet_moments_are_near_those_of_twenty_thousand_draws():
    near_draws_on_lenet(20_000)


def test_predictions_decompose_and_agree_with_draws():
    torch.manual_seed(0)
    q, x = posterior(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)), 0.3), inputs(20, 6)
    single, many = q.predict(x, draws="moments"), q.predict(x, draws=4000)
    assert single.draws == 1
    # The outputs of a draw are correlated and not quite Gaussian; a softmax hardly sees it.
    assert (single.probs - many.probs).abs().max() < 0.03
    torch.testing.assert_close(single.entropy, single.aleatoric + single.epistemic)
    assert (single.epistemic - many.epistemic).abs().mean() < 0.03


def test_regression_has_the_exact_variance():
    torch.manual_seed(0)
    q = posterior(nn.Linear(6, 1), 0.3, pst.likelihoods.Gaussian(0.5))
    x = inputs(5, 6)
    prediction = q.predict(x, draws="moments")
    torch.testing.assert_close(prediction.epistemic[:, 0], 0.09 * (x.square().sum(1) + 1))
    torch.testing.assert_close(prediction.mean, q.module(x))


def test_counts_of_a_wide_log_rate_have_the_moments_of_a_log_normal():
    q, x = posterior(nn.Linear(1, 2), 1.0, pst.likelihoods.Poisson()), torch.tensor([[0.0], [1.7], [4.0]], dtype=DOUBLE)
    prediction = q.predict(x, draws="moments")
    rate = torch.distributions.LogNormal(q.module(x).detach(), (x.square() + 1).sqrt().expand(3, 2))
    torch.testing.assert_close(prediction.mean, rate.mean)
    torch.testing.assert_close(prediction.aleatoric, rate.mean)
    torch.testing.assert_close(prediction.epistemic, rate.variance)


def test_a_log_rate_too_wide_for_its_variance_has_quantiles():
    q = posterior(nn.Linear(1, 1), 1.0, pst.likelihoods.Poisson()).to(dtype=torch.float32)
    prediction = q.predict(torch.tensor([[8.0]]), draws="moments")  # a variance of e¹³⁰
    low, high = prediction.interval(0.9)
    center, reach = q.module(torch.tensor([[8.0]])).item(), 1.645 * 65**0.5
    assert prediction.std.isinf().all()
    assert low.item() == 0 and high.log().item() == pytest.approx(center + reach, rel=0.02)


@pytest.mark.parametrize("likelihood", [pst.likelihoods.Categorical(), pst.likelihoods.Gaussian(0.5)])
def test_points_taken_a_few_at_a_time_give_the_same(likelihood, monkeypatch):
    torch.manual_seed(0)
    q = posterior(nn.Linear(6, 3), 0.3, likelihood)
    x = inputs(5, 6)
    whole = q.predict(x, draws="moments")
    monkeypatch.setattr("posterity.prediction.moments._CACHE_FLOATS", 100)
    some = q.predict(x, draws="moments")
    for name in ("aleatoric", "epistemic", "variance"):
        torch.testing.assert_close(getattr(some, name), getattr(whole, name))


def test_an_image_may_have_more_pixels_than_sobols_sequence_has_dimensions():
    q = posterior(nn.Conv2d(1, 3, 3, padding=1), likelihood=pst.likelihoods.Gaussian(0.3))
    x = inputs(2, 1, 90, 90)
    prediction, expected = q.predict(x, draws="moments"), moments(q, x)
    torch.testing.assert_close(prediction.mean, expected.mean)
    torch.testing.assert_close(prediction.epistemic, expected.variance)
    points = normal_points(24_300)
    assert abs(float((points[:, :3099] * points[:, 21_201:]).mean())) < 0.01  # of others' order, and so independent


def test_points_have_the_moments_of_a_normal():
    points = normal_points(10)
    torch.testing.assert_close(points.mean(0), torch.zeros(10, dtype=DOUBLE), atol=1e-12, rtol=0)
    torch.testing.assert_close(points.var(0, correction=0), torch.ones(10, dtype=DOUBLE))
    assert (torch.corrcoef(points.T) - torch.eye(10)).abs().max() < 0.2


def test_what_moments_cannot_pass_is_refused():
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x):
            return self.layer(x) * self.layer(x)

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x):
            return self.layer(x) if x.sum() > 0 else x

    x = inputs(2, 6)
    for net, message in (
        (nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)), "LayerNorm at '1'"),
        (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))), "ParametrizedLinear at '0'"),
        (Product(), "product of two random"),
        (Loop(), "cannot be traced"),
    ):
        with pytest.raises(pst.PosterityError, match=message):
            posterior(net).predict(x, draws="moments")
    net = nn.Linear(2, 2).to(DOUBLE)
    full = FullGaussian(net, pst.likelihoods.Categorical(), dict(net.named_parameters()), torch.eye(6, dtype=DOUBLE))
    with pytest.raises(pst.PosterityError, match="independent Gaussian weights, got FullGaussian"):
        full.predict(inputs(3, 2), draws="moments")
    with pytest.raises(pst.PosterityError, match="'moments'"):
        full.predict(inputs(3, 2), draws="guess")


@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU, nn.SiLU, nn.ELU])
def test_activations_in_place_are_those_that_are_not(activation):
    """SiLU and ELU wrote into the mean that the rule went on to use."""
    first, last = nn.Linear(3, 4), nn.Linear(4, 2)
    x, found = torch.randn(5, 3), []
    for inplace in (False, True):
        layer = activation(inplace=inplace)
        net = nn.Sequential(first, layer, last)
        mean = {name: p.detach() for name, p in net.named_parameters()}
        found.append(output_moments(net, mean, {name: torch.full_like(p, 0.1) for name, p in mean.items()}, x))
    torch.testing.assert_close(found[0], found[1])


class Residual(nn.Module):
    """What it adds is what the activation wrote into, or not."""

    def __init__(self, inplace):
        super().__init__()
        self.layer, self.relu = nn.Linear(3, 3), nn.ReLU(inplace)

    def forward(self, x):
        hidden = self.layer(x)
        return self.relu(hidden) + hidden


def test_a_value_used_again_after_it_was_written_into_is_refused():
    """The rules make new values, so that what was added was not what the network adds."""
    plain, writing = Residual(False), Residual(True)
    mean = {name: p.detach() for name, p in plain.named_parameters()}
    output_moments(plain, mean, mean, torch.randn(5, 3))
    with pytest.raises(pst.PosterityError, match="what relu writes into and is used again: use draws=32"):
        output_moments(writing, mean, mean, torch.randn(5, 3))
