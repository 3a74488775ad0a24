"""Laplace on linear regression is exact: posterior, evidence, and the best prior precision."""

from __future__ import annotations

import math

import pytest
import torch
from tests.contract.cases import data, network
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as pst
from posterity.curvature import ggn
from posterity.methods.laplace import Laplace
from posterity.methods.laplace_structures import STRUCTURES
from posterity.posteriors import FullGaussian, KroneckerGaussian, Linearised
from posterity.types import Batch, PosterityError

NOISE = 0.5


def problem() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    inputs = torch.randn(30, 3, generator=g, dtype=torch.float64)
    targets = inputs @ torch.tensor([[1.0], [-2.0], [0.5]]).double() + 0.3
    return inputs, targets + NOISE * torch.randn(30, 1, generator=g, dtype=torch.float64)


def exact(inputs: Tensor, targets: Tensor, delta: float) -> tuple[Tensor, Tensor, float]:
    """Mean and covariance of (weights, bias), and log p(y): the textbook's formulas."""
    X = torch.cat([inputs, torch.ones(len(inputs), 1).double()], 1)
    precision = X.T @ X / NOISE**2 + delta * torch.eye(4).double()
    mean = torch.linalg.solve(precision, X.T @ targets / NOISE**2).squeeze(1)
    marginal = NOISE**2 * torch.eye(len(X)).double() + X @ X.T / delta
    evidence = torch.distributions.MultivariateNormal(torch.zeros(len(X)).double(), marginal).log_prob(targets[:, 0])
    return mean, torch.linalg.inv(precision), float(evidence)


def at_optimum(delta: float) -> nn.Module:
    layer = nn.Linear(3, 1).double()
    mean, _, _ = exact(*problem(), delta)
    with torch.no_grad():
        layer.weight.copy_(mean[:3])
        layer.bias.copy_(mean[3:])
    return layer


def test_what_was_not_trained_of_a_last_layer_stays_fixed():
    layer, likelihood = at_optimum(1.0), pst.likelihoods.Gaussian(NOISE)
    layer.bias.requires_grad_(False)
    q = Laplace(structure="last-layer", tune_prior=False).post_hoc(layer, problem(), likelihood)
    inputs = problem()[0]
    covariance = torch.linalg.inv(inputs.T @ inputs / NOISE**2 + torch.eye(3).double())
    torch.testing.assert_close(q.variance()["weight"][0], covariance.diagonal())
    assert not q.variance()["bias"].any()
    torch.testing.assert_close(q.outputs(inputs)[1][:, 0, 0], (inputs @ covariance * inputs).sum(1))
    net = nn.Sequential(nn.Linear(3, 3).double(), layer.requires_grad_(False))
    with pytest.raises(PosterityError, match="the last layer needs no gradient"):
        Laplace(structure="last-layer").post_hoc(net, problem(), likelihood)


@pytest.mark.parametrize("structure", ["full", "diagonal", "last-layer", "kronecker"])
def test_weights_of_examples_count_as_copies(structure):
    inputs, targets = problem()
    weights = (
        torch.full((30,), 2.0).double() if structure == "kronecker" else torch.tensor([1.0, 2.0, 0.0] * 10).double()
    )
    rows = torch.arange(30).repeat_interleave(weights.long())
    method, noise = Laplace(structure=structure, tune_prior=False), pst.likelihoods.Gaussian(NOISE)
    batches = [(inputs[part], targets[part], weights[part]) for part in (slice(20), slice(20, 30))]
    weighted = method.post_hoc(at_optimum(1.0), batches, noise)
    copied = method.post_hoc(at_optimum(1.0), (inputs[rows], targets[rows]), noise)
    torch.testing.assert_close(weighted.variance(), copied.variance())
    assert math.isclose(weighted.log_evidence, copied.log_evidence, rel_tol=1e-10)


@pytest.mark.parametrize("structure", ["full", "last-layer"])
@pytest.mark.parametrize("curvature", ["ggn", "fisher"])
def test_full_laplace_is_the_exact_posterior_and_evidence(structure, curvature):
    delta = 2.0
    method = Laplace(prior=pst.priors.Normal(delta**-0.5), structure=structure, curvature=curvature, tune_prior=False)
    posterior = method.post_hoc(at_optimum(delta), problem(), pst.likelihoods.Gaussian(NOISE))
    mean, covariance, evidence = exact(*problem(), delta)
    q = posterior.parts[0].q
    torch.testing.assert_close(q.mean, mean)
    if curvature == "ggn":
        torch.testing.assert_close(q.scale_tril @ q.scale_tril.T, covariance)
        assert math.isclose(posterior.log_evidence, evidence, rel_tol=1e-10)
    else:  # one drawn label an example: right in expectation only
        assert posterior.log_evidence != evidence and abs(posterior.log_evidence - evidence) < 2


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "full", "last-layer"])
def test_a_loader_that_drops_its_last_batch_has_the_precision_of_all_its_data(structure):
    """All inputs are 1, so that N examples of noise s have the precision N/s² whichever are left out."""
    targets = torch.randn(40, 1, generator=torch.Generator().manual_seed(0)).double()
    loader = DataLoader(TensorDataset(torch.ones_like(targets), targets), 16, shuffle=True, drop_last=True)
    method = Laplace(prior=pst.priors.Normal(0.5), structure=structure, tune_prior=False)
    layer = nn.Linear(1, 1, bias=False).double()
    found = pst.fit(layer, method, loader, likelihood=pst.likelihoods.Gaussian(NOISE), epochs=1)
    assert found.variance()["weight"].item() == pytest.approx(1 / (40 / NOISE**2 + 4), rel=1e-12)


@pytest.mark.parametrize("structure", ["full", "last-layer", "kronecker", "diagonal"])
def test_a_temperature_multiplies_the_covariance_and_leaves_mean_and_evidence(structure):
    def at(temperature: float) -> pst.Posterior:
        method = Laplace(structure=structure, temperature=temperature)
        return method.post_hoc(at_optimum(2.0), problem(), pst.likelihoods.Gaussian(NOISE))

    bayes, cold = at(1.0), at(0.01)
    assert cold.log_evidence == bayes.log_evidence
    assert_equal(cold.parts[0].mean(), bayes.parts[0].mean())
    wide = {name: 0.01 * value for name, value in bayes.parts[0].variance().items()}
    assert_equal(cold.parts[0].variance(), wide)


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_predictions_are_exact_on_linear_regression():
    delta = 2.0
    method = Laplace(prior=pst.priors.Normal(delta**-0.5), structure="full", tune_prior=False)
    posterior = method.post_hoc(at_optimum(delta), problem(), pst.likelihoods.Gaussian(NOISE))
    x = torch.linspace(-3, 3, 15).double().view(5, 3)
    mean, covariance, _ = exact(*problem(), delta)
    X = torch.cat([x, torch.ones(5, 1).double()], 1)
    found_mean, found_covariance = posterior.outputs(x)
    torch.testing.assert_close(found_mean.squeeze(1), X @ mean)
    torch.testing.assert_close(found_covariance.flatten(), ((X @ covariance) * X).sum(1))


def test_the_prior_precision_maximises_the_evidence():
    """With the weights held where they are, δ is where the derivative of the evidence vanishes."""
    module, likelihood = at_optimum(1.0), pst.likelihoods.Gaussian(NOISE)
    tuned = Laplace(structure="full").post_hoc(module, problem(), likelihood)

    def evidence(delta: float) -> float:
        method = Laplace(prior=pst.priors.Normal(delta**-0.5), structure="full", tune_prior=False)
        return method.post_hoc(module, problem(), likelihood).log_evidence

    grid = {delta: evidence(delta) for delta in torch.logspace(-3, 3, 61).tolist()}
    best = max(grid, key=grid.get)
    assert tuned.log_evidence >= grid[best]
    assert tuned.log_evidence - grid[best] < 0.01
    precision = torch.linalg.inv(tuned.parts[0].q.scale_tril @ tuned.parts[0].q.scale_tril.T)
    X = torch.cat([problem()[0], torch.ones(30, 1).double()], 1)
    delta = float((precision - X.T @ X / NOISE**2).diagonal().mean())
    assert 0.9 < delta / best < 1.12  # grid steps are 26 %, and the maximum is flat


def test_the_evidence_about_a_prior_mean_is_that_of_the_targets_without_it():
    """y = X w with w ~ N(0.4, 1/δ) is y − 0.4 Σx = X v with v ~ N(0, 1/δ)."""
    (inputs, targets), delta = problem(), 2.0
    mean, covariance, evidence = exact(inputs, targets - 0.4 * (inputs.sum(1, keepdim=True) + 1), delta)
    layer = nn.Linear(3, 1).double()
    nn.utils.vector_to_parameters(mean + 0.4, layer.parameters())
    method = Laplace(prior=pst.priors.Normal(delta**-0.5, 0.4), structure="full", tune_prior=False)
    posterior = method.post_hoc(layer, (inputs, targets), pst.likelihoods.Gaussian(NOISE))
    assert math.isclose(posterior.log_evidence, evidence, rel_tol=1e-10)
    torch.testing.assert_close(posterior.parts[0].q.variance(), covariance.diagonal())


def test_beside_kronecker_factors_a_layer_norm_has_its_diagonal():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2)).double()
    inputs, likelihood, delta = problem()[0], pst.likelihoods.Categorical(), 0.7
    batch = Batch(inputs, torch.arange(30) % 2)
    curvature = ggn.kronecker(net, likelihood, batch)
    found = STRUCTURES["kronecker"](net)
    found.add(net, likelihood, batch, ggn.gauss_newton)
    matrices = [30 * torch.kron(block.output, block.input) for block in curvature.blocks]
    matrices += [30 * value.flatten().diag() for value in curvature.diagonal.values()]
    assert {tuple(m.shape) for m in matrices} == {(16, 16), (10, 10), (4, 4)}
    expected = sum(torch.logdet(m + delta * torch.eye(len(m)).double()) for m in matrices)
    torch.testing.assert_close(found.log_det(delta), expected)
    mean = {name: p.detach() for name, p in net.named_parameters()}
    variance = found.posterior(net, likelihood, mean, delta, 0.5).variance()["2.weight"]
    torch.testing.assert_close(variance, 0.5 / (30 * curvature.diagonal["2.weight"] + delta))


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "full", "last-layer"])
def test_every_structure_against_its_own_definition(structure):
    """Λ = N H + δ I with H from the curvature folder, in two batches or one."""
    net, (inputs, targets) = network(), data()
    likelihood, delta = pst.likelihoods.Categorical(), 3.0
    method = Laplace(prior=pst.priors.Normal(delta**-0.5), structure=structure, tune_prior=False, linearised=False)
    posterior = method.post_hoc(net, (inputs, targets), likelihood)
    H = pst.curvature.ggn.full(net.eval(), likelihood, pst.types.Batch(inputs, targets)) * len(inputs)
    if structure == "full":
        expected = torch.linalg.inv(H + delta * torch.eye(len(H)).double()).diagonal()
    elif structure == "diagonal":
        expected = 1 / (H.diagonal() + delta)
    elif structure == "last-layer":
        expected = torch.zeros(len(H)).double()
        expected[-39:] = torch.linalg.inv(H[-39:, -39:] + delta * torch.eye(39).double()).diagonal()
    else:
        curvature = pst.curvature.ggn.kronecker(net, likelihood, pst.types.Batch(inputs, targets))
        parts = []
        for block in curvature.blocks:
            precision = len(inputs) * torch.kron(block.output, block.input)
            variance = torch.linalg.inv(precision + delta * torch.eye(len(precision)).double()).diagonal()
            variance = variance.view(len(block.output), -1)
            parts += [variance[:, :-1].flatten(), variance[:, -1]]
        expected = torch.cat(parts)
    found = torch.cat([v.flatten() for v in posterior.variance().values()])
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)
    loader = [(inputs[:50], targets[:50]), (inputs[50:], targets[50:])]
    again = method.post_hoc(net, loader, likelihood)
    if structure != "kronecker":  # whose factors are averaged each for itself
        torch.testing.assert_close(again.variance(), posterior.variance())


def test_through_fit_it_ends_in_a_linearised_posterior():
    posterior = pst.fit(network(), pst.Laplace(), data(), epochs=5, training=pst.Training(progress=False, lr=0.02))
    assert isinstance(posterior, Linearised) and isinstance(posterior.parts[0], KroneckerGaussian)
    assert math.isfinite(posterior.log_evidence)
    plain = pst.fit(
        network(),
        pst.Laplace(structure="last-layer", linearised=False),
        data(),
        epochs=5,
        training=pst.Training(progress=False, lr=0.02),
    )
    assert isinstance(plain, FullGaussian) and plain.bayesian.names == ("2.weight", "2.bias")


def test_the_evidence_prefers_the_right_noise():
    """Among likelihoods of the same data, the one that made it."""
    method = Laplace(structure="full")
    found = {
        noise: method.post_hoc(at_optimum(1.0), problem(), pst.likelihoods.Gaussian(noise)).log_evidence
        for noise in (0.1, NOISE, 3.0)
    }
    assert max(found, key=found.get) == NOISE


def test_bad_settings_are_refused():
    with pytest.raises(PosterityError, match="structure must be"):
        Laplace(structure="dense")
    with pytest.raises(PosterityError, match="curvature must be"):
        Laplace(curvature="hessian")
    with pytest.raises(PosterityError, match="Normal prior"):
        Laplace(prior=pst.priors.Laplace(1.0))
    with pytest.raises(PosterityError, match="would not fit"):
        Laplace(structure="full").post_hoc(nn.Linear(200, 200).double(), (torch.zeros(4, 200), torch.zeros(4, 200)))
    by_name = pst.priors.Normal({"*.weight": 1.0, "*.bias": 2.0})
    with pytest.raises(PosterityError, match="one prior precision"):
        Laplace(prior=by_name, tune_prior=False).post_hoc(network(), data())
    with pytest.raises(PosterityError, match=r"a precision for each weight, .* give tune_prior=False"):
        Laplace(prior=by_name, structure="full")  # the evidence's one precision would silently be the posterior's


def test_data_that_do_not_fit_are_refused():
    """Targets of another shape were spread over the outputs, and the evidence was that of other data."""
    x, y = torch.randn(20, 3).double(), torch.randn(20, 2).double()
    with pytest.raises(PosterityError, match="do not fit targets"):
        Laplace(structure="full").post_hoc(nn.Linear(3, 1).double(), (x, y), pst.likelihoods.Gaussian(0.5))
    with pytest.raises(PosterityError, match="class targets run"):
        Laplace().post_hoc(nn.Linear(3, 2).double(), (x, torch.arange(20) % 3))
    with pytest.raises(PosterityError, match="NaN"):
        Laplace().post_hoc(nn.Linear(3, 2).double(), (x * float("nan"), torch.arange(20) % 2))
    with pytest.raises(PosterityError, match="the likelihood must be one such as"):
        Laplace().post_hoc(nn.Linear(3, 2).double(), (x, torch.arange(20) % 2), pst.likelihoods.Categorical)


def test_of_a_data_set_with_parts_the_training_part_is_taken():
    digits, network = pst.data.load("digits"), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    method = Laplace(structure="diagonal")
    assert method.post_hoc(network, digits).log_evidence == method.post_hoc(network, digits.train).log_evidence


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 4), nn.Tanh(), nn.Linear(4, 3)
    return nn.Sequential(*layers).double()


def images(n: int = 40) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(n, 1, 6, 6, generator=g, dtype=torch.float64), torch.arange(n) % 3


def test_a_last_layer_is_linear_already_its_draws_are_networks_and_its_outputs_have_the_jacobians_covariance():
    posterior = Laplace(structure="last-layer").post_hoc(convolutional(), images())
    by_jacobians = Linearised(posterior.parts[0])  # as if the network were not known to be linear
    x = images(7)[0]
    for one, other in zip(posterior.draws(3), by_jacobians.draws(3), strict=True):
        torch.testing.assert_close(one(x), other(x))
    for found, expected in zip(posterior.outputs(x), by_jacobians.outputs(x), strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(posterior.predict(x, draws=8).probs, by_jacobians.predict(x, draws=8).probs)


def test_without_a_bias_too():
    net = nn.Sequential(nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)).double()
    x, y = images()
    posterior = Laplace(structure="last-layer").post_hoc(net, (x.flatten(1), y))
    for found, expected in zip(
        posterior.outputs(x.flatten(1)), Linearised(posterior.parts[0]).outputs(x.flatten(1)), strict=True
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("structure", ["full", "last-layer"])
def test_the_log_determinant_is_the_same_with_a_spectrum_and_without(structure):
    found = STRUCTURES[structure](convolutional())
    x, y = images()
    found.add(convolutional(), pst.likelihoods.Categorical(), Batch(x, y), ggn.gauss_newton)
    without = found.log_det(0.7)
    found.decompose()
    torch.testing.assert_close(found.log_det(0.7), without)


class TiedOutput(nn.Module):
    """The last layer's weight is the table that tokens are looked up in."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(5, 3), nn.Linear(3, 5)
        self.out.weight = self.table.weight

    def forward(self, x):
        return self.out(torch.tanh(self.table(x).mean(1)))


class CalledTwice(nn.Module):
    """The last layer is also the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(5, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.out(self.table(x).mean(1))))


class ReadOff(nn.Module):
    """The last layer's weight is read off it for another use."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(5, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.table(x).mean(1) @ self.out.weight))


def weight_normed() -> nn.Module:
    return nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)))


@pytest.mark.parametrize("make", [TiedOutput, CalledTwice, ReadOff, weight_normed])
def test_a_last_layer_whose_weight_is_not_its_alone_is_that_of_the_full_matrix(make):
    """The network is not linear in such a weight: the other parameters frozen, structure='full' says the same."""
    torch.manual_seed(0)
    net, x = make().double(), torch.randint(5, (12, 2))
    data = x, torch.randint(net(x).shape[1], (12,))
    found = Laplace(structure="last-layer", tune_prior=False).post_hoc(net, data)
    last = {id(p) for p in list(net.children())[-1].parameters()}
    for p in net.parameters():
        p.requires_grad_(id(p) in last)
    expected = Laplace(structure="full", tune_prior=False).post_hoc(net, data)
    assert found.log_evidence == pytest.approx(expected.log_evidence, rel=1e-9)
    torch.testing.assert_close(found.outputs(x), expected.outputs(x))
    torch.testing.assert_close(found.predict(x).probs, expected.predict(x).probs)


class Tempered(nn.Module):
    """A layer and a temperature of its logits, of the shape given."""

    def __init__(self, *shape):
        super().__init__()
        self.layer, self.log_temperature = nn.Linear(3, 2).double(), nn.Parameter(torch.full(shape, 0.3).double())

    def forward(self, x):
        return self.layer(x) / self.log_temperature.exp()


@pytest.mark.filterwarnings("ignore:.* has no rule")
@pytest.mark.parametrize("structure", ["full", "diagonal", "kronecker"])
def test_a_parameter_may_be_one_number_without_a_dimension(structure):
    """The full matrix and the closed form of the outputs ended in an error of torch's."""
    x, y = torch.randn(20, 3).double(), torch.arange(20) % 2
    found = []
    for shape in ((), (1,)):
        torch.manual_seed(0)
        posterior = Laplace(structure=structure).post_hoc(Tempered(*shape), (x, y))
        found.append((posterior.probit(x), posterior.predict(x, draws=8).probs))
    torch.testing.assert_close(*found)


class Cell(nn.Module):
    """A cell at every step of a sequence, and a layer."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell, self.out = cell, nn.Linear(4, 3)

    def forward(self, x):
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.out(state[0] if isinstance(state, tuple) else state)


@pytest.mark.parametrize("cell", [nn.RNNCell(2, 4), nn.GRUCell(2, 4), nn.LSTMCell(2, 4)], ids=str)
def test_cells_have_a_whole_covariance_whose_diagonal_is_known(cell):
    """By Jacobians the one, by squares of gradients the other."""
    net, data = Cell(cell).double(), (torch.randn(9, 3, 2).double(), torch.arange(9) % 3)
    whole, diagonal = (
        Laplace(structure=structure, tune_prior=False).post_hoc(net, data).parts[0]
        for structure in ("full", "diagonal")
    )
    precision = torch.linalg.inv(whole.q.scale_tril @ whole.q.scale_tril.T).diagonal()
    torch.testing.assert_close(precision, diagonal.q.std**-2)


def test_a_last_layer_too_large_for_a_matrix_is_refused():
    net = nn.Sequential(nn.Linear(4, 300), nn.ReLU(), nn.Linear(300, 100))
    with pytest.raises(PosterityError, match="30,100 weights would not fit"):
        Laplace(structure="last-layer").post_hoc(net, (torch.randn(8, 4), torch.arange(8)))


class Bag(nn.Module):
    """The mean of some words' vectors."""

    def __init__(self):
        super().__init__()
        self.words, self.layer = nn.EmbeddingBag(7, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(self.words(x))


class Squares(torch.autograd.Function):
    """A function of one's own, in the form that torch's transforms do not know."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


class OwnFunction(nn.Module):
    """A layer, and that function."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return Squares.apply(self.layer(x))


class Untrained:
    """A callback that must not be called."""

    def on_epoch(self, run, figures):
        raise AssertionError("it was trained first")


@pytest.mark.parametrize(
    "make, method, x, sentence",
    [
        (lambda: nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), pst.Laplace(), torch.randn(8, 3), "curvature needs"),
        (lambda: nn.Linear(3, 1), pst.Laplace(), torch.randn(8, 5, 3), r"curvature needs outputs of shape \[batch"),
        (Bag, pst.Laplace(), torch.randint(7, (8, 5)), "cannot make this network linear.*: use linearised=False"),
        (Bag, pst.Laplace(structure="full"), torch.randint(7, (8, 5)), "cannot make this network linear"),
        (OwnFunction, pst.Laplace(structure="full"), torch.randn(8, 3), "derivatives by example"),
        (OwnFunction, pst.Laplace(), torch.randn(8, 3), "linear in its weights .*: use linearised"),
    ],
)
@pytest.mark.filterwarnings("ignore:.* has no rule")
def test_what_has_no_posterior_is_refused_before_training(make, method, x, sentence):
    net = make()
    training = pst.Training(progress=False, callbacks=(Untrained(),))
    with pytest.raises(PosterityError, match=sentence):
        pst.fit(net, method, (x, net(x).detach()), epochs=1, training=training)
    with pytest.raises(PosterityError, match=sentence):
        method.post_hoc(net, (x, net(x).detach()), pst.likelihoods.Gaussian(1.0))


def test_inputs_that_the_closed_form_cannot_take_are_refused():
    x, y = images()
    posterior = pst.fit(convolutional(), Laplace(), (x, y), epochs=1, training=pst.Training(progress=False))
    for wrong, match in ((x[:0], "no inputs"), (x[:, :, :5], "was fitted on"), (x * torch.nan, "NaN")):
        with pytest.raises(PosterityError, match=match):
            posterior.probit(wrong)


def test_a_network_that_branches_on_values_has_draws_but_no_closed_form():
    class Branching(nn.Sequential):
        def forward(self, x):
            return super().forward(x) if float(x.sum()) > 0 else super().forward(x.abs())

    x = torch.randn(8, 3)
    training = pst.Training(progress=False)
    net, method = Branching(nn.Linear(3, 2)), Laplace(structure="diagonal")
    posterior = pst.fit(net, method, (x, torch.arange(8) % 2), training=training)
    assert posterior.predict(x).probs.isfinite().all()
    with pytest.raises(PosterityError, match=r"by example .*data-dependent.*: use predict"):
        posterior.probit(x)


def test_a_posterior_made_after_training_knows_its_inputs():
    posterior = Laplace().post_hoc(at_optimum(1.0), problem(), pst.likelihoods.Gaussian(NOISE))
    inputs = problem()[0]
    assert posterior.inputs.shapes == (tuple(inputs.shape[1:]),)
    with pytest.raises(pst.PosterityError, match="but the network was fitted on"):
        posterior.predict(torch.cat([inputs, inputs], 1))
