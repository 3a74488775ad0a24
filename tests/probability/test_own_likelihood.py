"""A likelihood of the user's own: what it must have for what, and that its posterior comes back from a file."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import posterity as pst

G = torch.Generator().manual_seed(0)
X = torch.randn(40, 2, generator=G, dtype=torch.float64)
Y = X @ torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
TRAINING = pst.Training(batch_size=20, lr=0.05, progress=False)


@dataclass(frozen=True)
class Heavy(pst.likelihoods.Likelihood):
    """Student's t noise, with what MAP needs and no more."""

    df: float = 4.0
    scale: float = 0.3

    def log_prob(self, outputs, targets):
        return torch.distributions.StudentT(self.df, outputs, self.scale).log_prob(targets).sum(1)

    def check(self, outputs, targets):
        assert outputs.shape == targets.shape

    def mean(self, outputs):
        return outputs

    def variance(self, outputs):
        return torch.full_like(outputs, self.scale**2 * self.df / (self.df - 2))


@dataclass(frozen=True)
class Bare(pst.likelihoods.Likelihood):
    """Nothing at all."""


@dataclass(frozen=True)
class Other(Heavy):
    """Another name."""


def fitted(method=None, members=1):
    torch.manual_seed(0)
    network, method, heavy = nn.Linear(2, 1).double(), method or pst.MAP(), Heavy(df=5.0)
    return pst.fit(network, method, (X, Y), likelihood=heavy, epochs=20, members=members, training=TRAINING)


@pytest.mark.parametrize("members", [1, 2])
def test_it_comes_back_from_a_file_with_its_own_fields(tmp_path, members):
    saved, file = fitted(members=members), tmp_path / "own.safetensors"
    pst.save(saved, file)
    loaded = pst.load(file, nn.Linear(2, 1).double(), likelihood=Heavy)
    assert loaded.likelihood == Heavy(df=5.0)
    torch.testing.assert_close(loaded.predict(X).log_prob(Y), saved.predict(X).log_prob(Y), rtol=0, atol=0)
    with pytest.raises(pst.PosterityError, match="likelihood of your own, Heavy: give its class"):
        pst.load(file, nn.Linear(2, 1).double())
    with pytest.raises(pst.PosterityError, match="the file has the likelihood Heavy, got likelihood=Other"):
        pst.load(file, nn.Linear(2, 1).double(), likelihood=Other)


def test_the_empirical_fisher_matrix_needs_no_hessian():
    """∂ log p/∂f of Student's t is (df + 1) e/(df·scale² + e²), and the weights' gradient is that times the input."""
    method = pst.Laplace(structure="full", curvature="empirical", tune_prior=False, linearised=False)
    posterior = fitted(method)
    weights = posterior.mean()
    residual = Y - X @ weights["weight"].T - weights["bias"]
    slope = 6.0 * residual / (5.0 * 0.3**2 + residual.square())
    columns = slope * torch.cat([X, torch.ones_like(Y)], 1)
    precision = columns.T @ columns + torch.eye(3, dtype=torch.float64)
    variance = torch.cat([v.flatten() for v in posterior.variance().values()])
    torch.testing.assert_close(variance, precision.inverse().diagonal(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("likelihood", "method", "missing"),
    [
        (Bare(), pst.MAP(), r"Bare has no check\(outputs, targets\)"),
        (Heavy(), pst.Laplace(), r"Heavy has no hessian\(outputs\)"),
        (Heavy(), pst.Laplace(curvature="fisher"), r"Heavy has no sample\(outputs, generator\)"),
    ],
)
def test_what_it_lacks_is_named(likelihood, method, missing):
    with pytest.raises(pst.PosterityError, match=missing):
        pst.fit(nn.Linear(2, 1).double(), method, (X, Y), likelihood=likelihood, epochs=1, training=TRAINING)


class Summed(Heavy):
    """One number for the whole batch."""

    def log_prob(self, outputs, targets):
        return super().log_prob(outputs, targets).sum()


class ByColumn(Heavy):
    """A number for every column of the targets."""

    def log_prob(self, outputs, targets):
        return torch.distributions.StudentT(self.df, outputs, self.scale).log_prob(targets)


class SummedLoss(Heavy):
    """Examples as they should be, and a loss that adds them up."""

    def loss(self, outputs, targets):
        return -self.log_prob(outputs, targets).sum()


@pytest.mark.parametrize(
    ("likelihood", "said"),
    [
        (Summed(), r"Summed.log_prob must give one number an example: expected shape \(20,\), got \(\)"),
        (ByColumn(), r"expected shape \(20,\), got \(20, 1\)"),
        (SummedLoss(), "the loss must be a mean over examples"),
    ],
)
@pytest.mark.parametrize("method", [pst.MAP(), pst.VOGN(), pst.SGLD()])
def test_a_sum_where_a_mean_over_examples_was_promised_is_refused(likelihood, said, method):
    """A batch of 20 would weigh 20 times as much beside the prior as it should."""
    with pytest.raises(pst.PosterityError, match=said):
        pst.fit(nn.Linear(2, 1).double(), method, (X, Y), likelihood=likelihood, epochs=2, training=TRAINING)


def test_a_prediction_without_quantiles_can_be_shown():
    prediction = fitted().predict(X)
    assert "40 inputs" in repr(prediction)
    assert "std" in prediction._repr_html_()
    assert len(prediction) == 40
    with pytest.raises(pst.PosterityError, match=r"Heavy has no cdf\(outputs, values\)"):
        prediction.interval()
