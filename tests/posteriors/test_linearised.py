"""The linearised network: exact where the network is linear, and closed forms against draws."""

from __future__ import annotations

import pytest
import torch
from tests.contract.cases import data, kronecker, network
from torch import nn
from torch.func import functional_call

import posterity as pst
from posterity.posteriors import DiagonalGaussian, FullGaussian, KroneckerGaussian, Linearised, LowRankGaussian, Mixture

INPUTS = data(n=6)[0]


def posteriors():
    net, likelihood = network(), pst.likelihoods.Categorical()
    g = torch.Generator().manual_seed(0)
    mean = {name: p.detach() for name, p in net.named_parameters()}
    std = {name: 0.1 + 0.1 * torch.rand(p.shape, generator=g, dtype=p.dtype) for name, p in mean.items()}
    size = sum(p.numel() for p in mean.values())
    tril = torch.tril(0.02 * torch.randn(size, size, generator=g, dtype=torch.float64)) + 0.1 * torch.eye(size)
    deviations = 0.1 * torch.randn(4, size, generator=g, dtype=torch.float64)
    return {
        "diagonal": DiagonalGaussian(net, likelihood, mean, std),
        "full": FullGaussian(net, likelihood, mean, tril),
        "low-rank": LowRankGaussian(net, likelihood, mean, std, deviations, 0.5),
        "kronecker": kronecker(net, g),
    }


@pytest.mark.parametrize("kind", ["diagonal", "full", "low-rank", "kronecker"])
def test_output_moments_are_those_of_draws(kind):
    posterior = Linearised(posteriors()[kind])
    mean, covariance = posterior.outputs(INPUTS)
    with torch.no_grad():
        torch.testing.assert_close(mean, posterior.module(INPUTS))
        count = 4000
        draws = torch.stack([draw(INPUTS) for draw in posterior.draws(count, torch.Generator().manual_seed(1))])
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    # 18 means and 54 covariances: 5 standard errors keep the false-alarm rate under 1e-4.
    assert ((draws.mean(0) - mean).abs() < 5 * (variance / count).sqrt()).all()
    centred = draws - mean
    found = torch.einsum("sbi,sbj->bij", centred, centred) / count
    error = ((variance.unsqueeze(-1) * variance.unsqueeze(-2) + covariance**2) / count).sqrt()
    assert ((found - covariance).abs() < 5 * error).all()


@pytest.mark.parametrize("kind", ["diagonal", "low-rank"])
def test_a_parameter_without_spread_is_as_one_that_is_fixed(kind):
    net = network()
    mean = {name: p.detach() for name, p in net.named_parameters()}
    still = next(iter(mean))
    std = {name: torch.full_like(p, 0.1 if name != still else 0.0) for name, p in mean.items()}
    none = {name: s for name, s in std.items() if name != still}
    outputs = []
    for own in (std, none):
        options = {"deviations": torch.zeros(2, sum(s.numel() for s in own.values()), dtype=torch.float64)}
        family = DiagonalGaussian if kind == "diagonal" else LowRankGaussian
        plain = family(net, pst.likelihoods.Categorical(), mean, own, **(options if kind == "low-rank" else {}))
        outputs.append(Linearised(plain).outputs(INPUTS))
    torch.testing.assert_close(outputs[0], outputs[1])


class Scaled(nn.Module):
    """Its last parameter is a number."""

    def __init__(self):
        super().__init__()
        self.line, self.scale = network(), nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, x):
        return self.scale * self.line(x)


@pytest.mark.parametrize("kind", ["diagonal", "low-rank", "kronecker"])
def test_the_spread_of_a_single_number_is_its_slope_times_its_std(kind):
    """∂f/∂scale is the network's output over the scale."""
    net, std, likelihood = Scaled(), {"scale": torch.tensor(0.2, dtype=torch.float64)}, pst.likelihoods.Categorical()
    mean = {name: p.detach() for name, p in net.named_parameters()}
    own = {
        "diagonal": lambda: DiagonalGaussian(net, likelihood, mean, std),
        "low-rank": lambda: LowRankGaussian(net, likelihood, mean, std, torch.zeros(2, 1).double(), 1.0),
        "kronecker": lambda: KroneckerGaussian(net, likelihood, mean, [], std),
    }[kind]()
    outputs, covariance = Linearised(own).outputs(INPUTS)
    slope = outputs / 1.5
    torch.testing.assert_close(covariance, 0.2**2 * slope.unsqueeze(-1) * slope.unsqueeze(-2))


def test_a_draw_is_the_network_itself_where_it_is_linear_in_the_weights():
    net = nn.Linear(4, 3).double()
    mean = {name: p.detach() for name, p in net.named_parameters()}
    plain = DiagonalGaussian(net, pst.likelihoods.Categorical(), mean, {k: torch.ones_like(v) for k, v in mean.items()})
    with torch.no_grad():
        linear = [draw(INPUTS) for draw in Linearised(plain).draws(3)]
        torch.testing.assert_close(linear, [draw(INPUTS) for draw in plain.draws(3)])


def test_probit_shrinks_logits_by_their_variance():
    posterior = Linearised(posteriors()["diagonal"])
    mean, covariance = posterior.outputs(INPUTS)
    by_hand = torch.softmax(mean / (1 + torch.pi / 8 * covariance.diagonal(dim1=1, dim2=2)).sqrt(), 1)
    torch.testing.assert_close(posterior.probit(INPUTS), by_hand)
    sampled = posterior.predict(INPUTS, draws=4000).probs
    assert (by_hand - sampled).abs().max() < 0.02  # an approximation, near the integral at these variances


class Words(nn.Module):
    """Two outputs for each of three words."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2).double()

    def forward(self, x):
        return self.layer(x)


def test_probit_of_words_is_that_of_each_word():
    """Softmax was over all words and classes together."""
    net, x = Words(), torch.randn(5, 3, 4, dtype=torch.float64)
    mean = {name: p.detach() for name, p in net.named_parameters()}
    q = DiagonalGaussian(
        net, pst.likelihoods.Categorical(), mean, {n: 0.5 * torch.ones_like(p) for n, p in mean.items()}
    )
    alone = Linearised(q).probit(x.flatten(0, 1)).view(5, 3, 2)
    torch.testing.assert_close(Linearised(q).probit(x), alone)


def test_inputs_in_blocks_give_the_same(monkeypatch):
    posterior = Linearised(posteriors()["kronecker"])
    whole = posterior.outputs(INPUTS)
    monkeypatch.setattr("posterity.posteriors.linearised._FLOATS", 1)
    torch.testing.assert_close(posterior.outputs(INPUTS), whole)


def test_kronecker_density_and_covariance():
    posterior = posteriors()["kronecker"]
    block = posterior.blocks[0]
    root = torch.kron(block.left, block.right) * block.scale.flatten()
    mean = block.matrix(posterior.mean()).flatten()
    exact = torch.distributions.MultivariateNormal(mean, root @ root.T)
    sample = posterior.sample(torch.Generator().manual_seed(3))
    rest = torch.distributions.Normal(posterior.mean()["2.weight"], 0.1).log_prob(sample["2.weight"]).sum()
    expected = exact.log_prob(block.matrix(sample).flatten()) + rest
    torch.testing.assert_close(posterior.log_prob(sample), expected)
    variance = posterior.variance()
    torch.testing.assert_close(block.matrix(variance).flatten(), (root @ root.T).diagonal())
    assert variance["2.bias"].eq(0).all() and sample["2.bias"].equal(posterior.mean()["2.bias"])


def test_regression_has_no_probit():
    net = nn.Linear(4, 1).double()
    mean = {name: p.detach() for name, p in net.named_parameters()}
    std = {name: torch.ones_like(p) for name, p in mean.items()}
    posterior = Linearised(DiagonalGaussian(net, pst.likelihoods.Gaussian(0.1), mean, std))
    with pytest.raises(pst.PosterityError, match="probit"):
        posterior.probit(INPUTS)


def odd(kind):
    """A network and a posterior over it; none of them is linear in its weights."""
    if kind in posteriors():
        return posteriors()[kind]
    torch.manual_seed(0)
    net = {"sentence": Sentence, "branches": Branches, "writes": WritesInto}[kind]().double().eval()
    mean = {name: p.detach() for name, p in net.named_parameters()}
    return DiagonalGaussian(net, pst.likelihoods.Categorical(), mean, {k: 0.1 + 0 * v for k, v in mean.items()})


@pytest.mark.parametrize("kind", ["diagonal", "full", "low-rank", "kronecker", "sentence", "branches", "writes"])
def test_draws_together_are_the_draws_one_by_one(kind, monkeypatch):
    monkeypatch.setattr("posterity.posteriors.linearised._CACHE", 1)
    monkeypatch.setattr("posterity.posteriors.linearised._FEWEST", 4)
    posterior = Linearised(odd(kind))
    with torch.no_grad():
        each = torch.stack([draw(INPUTS).softmax(-1) for draw in posterior.draws(11)])
    for _ in range(2):  # sampled, then kept
        found = posterior.predict(INPUTS, 11, keep_samples=True)
        torch.testing.assert_close(found.samples, each)
    generator = torch.Generator().manual_seed(posterior.seed)
    torch.testing.assert_close(posterior.predict(INPUTS, 11, generator=generator).probs, each.mean(0))
    wrapped = pst.conformal(posterior, (INPUTS, torch.zeros(6, dtype=torch.long)), 0.5)
    torch.testing.assert_close(wrapped.predict(INPUTS, 11).probs, each.mean(0))


def test_a_mixture_of_them_draws_in_turn():
    mixture = pst.Mixture([Linearised(posteriors()["diagonal"]), Linearised(posteriors()["kronecker"])])
    with torch.no_grad():
        each = torch.stack([draw(INPUTS).softmax(-1) for draw in mixture.draws(19)])
    torch.testing.assert_close(mixture.predict(INPUTS, 19, keep_samples=True).samples, each)


def test_draws_share_what_does_not_differ_between_them():
    posterior, calls = Linearised(posteriors()["diagonal"]), []
    posterior.module.register_forward_hook(lambda *_: calls.append(1))
    posterior.predict(INPUTS, 32)
    assert len(calls) == 4 + 1  # eight draws at a time, and one pass for the size of the activations


class Branches(nn.Linear):
    """On the values of its outputs, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__(4, 3)

    def forward(self, x):
        out = super().forward(x)
        return out.tanh() if out.sum() > 0 else -out.tanh()


class WritesInto(Branches):
    """A tensor of its own making."""

    def forward(self, x):
        out = torch.zeros(len(x), 3, dtype=x.dtype)
        out[:, :] = nn.Linear.forward(self, x).tanh()
        return out


class Sentence(nn.Module):
    """A recurrent layer, attention, and a layer under weight norm, for which torch has no forward-mode rule."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 2, bidirectional=True, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
        self.out = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))

    def forward(self, x):
        return self.out(self.attention(self.lstm(x.unflatten(1, (2, 2)).repeat(1, 1, 2))[0]).mean(1))


def test_a_draw_follows_the_slope_of_any_network():
    torch.manual_seed(0)
    net = Sentence().double().eval()
    mean = {name: p.detach() for name, p in net.named_parameters()}
    plain = DiagonalGaussian(net, pst.likelihoods.Categorical(), mean, {k: 0.1 + 0 * v for k, v in mean.items()})
    posterior, step = Linearised(plain), 1e-5
    out, covariance = posterior.outputs(INPUTS)
    with torch.no_grad():
        torch.testing.assert_close(out, net(INPUTS))
        drawn = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
        for draw in posterior.draws(2, drawn[0]):
            weights = plain.sample(drawn[1])
            ahead, behind = (
                functional_call(net, {k: m + sign * step * (weights[k] - m) for k, m in mean.items()}, (INPUTS,))
                for sign in (1, -1)
            )
            torch.testing.assert_close(draw(INPUTS), out + (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)
    jacobian = torch.autograd.functional.jacobian(
        lambda *p: functional_call(net, dict(zip(mean, p, strict=True)), (INPUTS,)), tuple(mean.values())
    )
    J = torch.cat([block.flatten(2) for block in jacobian], 2)
    torch.testing.assert_close(covariance, 0.01 * J @ J.mT)


def test_a_mixture_with_a_point_gives_both_the_same_weight():
    """Linear draws come in chunks, a point's over again: the mean is half the one and half the other."""
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    data, quiet = (x, (x[:, 0] > 0).long()), pst.Training(progress=False)
    linear, point = (pst.fit(network, m, data, epochs=5, training=quiet) for m in (pst.Laplace(), pst.MAP()))
    expected = (linear.predict(x, draws=10).probs + point.predict(x).probs) / 2
    for parts in ([linear, point], [point, linear]):
        mixture = Mixture(parts)
        mixture.predict(x, draws=1)  # of the first part alone
        found = mixture.predict(x, draws=20, keep_samples=True)
        torch.testing.assert_close(found.probs, expected)
        draws = [draw(x).softmax(-1) for draw in mixture.draws(20)]
        torch.testing.assert_close(found.samples, torch.stack(draws))
