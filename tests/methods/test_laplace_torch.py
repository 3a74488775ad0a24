"""Agreement with laplace-torch where it is installed; its Kronecker factors differ, since they treat biases apart."""

import pytest
import torch
from torch import nn

import posterity as pst

laplace = pytest.importorskip("laplace", reason="laplace-torch is not installed", exc_type=ImportError)

PRECISION = 2.0


def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)).double()
        return network, torch.randn(60, 3).double(), torch.randint(4, (60,))


@pytest.mark.parametrize(
    ("ours", "which", "theirs"),
    [("diagonal", "all", "diag"), ("full", "all", "full"), ("last-layer", "last_layer", "full")],
)
@pytest.mark.filterwarnings("ignore")  # laplace-torch's own
def test_posterior_variance_and_evidence_agree(ours, which, theirs):
    network, x, y = problem()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=20)
    other = laplace.Laplace(
        network, "classification", subset_of_weights=which, hessian_structure=theirs, prior_precision=PRECISION
    )
    other.fit(loader)
    method = pst.Laplace(structure=ours, tune_prior=False, prior=pst.priors.Normal(PRECISION**-0.5))
    posterior = method.post_hoc(network, (x, y))
    variance = posterior.parts[0].variance()
    names = [name for name, _ in network.named_parameters()][-2:] if ours == "last-layer" else list(variance)
    own = torch.cat([variance[name].flatten() for name in names])
    expected = 1 / other.posterior_precision if theirs == "diag" else other.posterior_covariance.diagonal()
    torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-9)
    assert posterior.log_evidence == pytest.approx(float(other.log_marginal_likelihood()), rel=1e-8)
