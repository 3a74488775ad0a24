"""Triangular recursions against torch's own solvers, in sizes that halve evenly and that do not."""

import pytest
import torch

import posterity as pst
from posterity.curvature.triangular import gram_lower, inverse_lower, inverse_root

DOUBLE = torch.float64


def positive(size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    A = torch.randn(size, 2 * size, dtype=DOUBLE, generator=generator)
    return A @ A.T / size


@pytest.mark.parametrize("size", [1, 7, 256, 257, 600, 1025])
def test_recursions_by_halves(size):
    matrix = positive(size)
    L = torch.linalg.cholesky(matrix)
    R = inverse_lower(L)
    torch.testing.assert_close(R @ L, torch.eye(size, dtype=DOUBLE), rtol=0, atol=1e-10)
    assert (R.triu(1) == 0).all()
    torch.testing.assert_close(gram_lower(R), torch.cholesky_inverse(L), rtol=1e-9, atol=1e-12)
    root = inverse_root(matrix)
    assert (root.triu(1) == 0).all()
    torch.testing.assert_close(root @ root.T, torch.linalg.inv(matrix), rtol=1e-9, atol=1e-12)


def test_a_curvature_that_rounding_leaves_without_a_root_is_refused():
    """Torch's error named neither cause nor cure."""
    refused = r"a curvature of \d rows is not positive definite in torch.float32: standardise the inputs"
    with pytest.raises(pst.PosterityError, match=refused):
        inverse_root(torch.tensor([[1.0, 1.0], [1.0, 1.0]]))
    torch.manual_seed(0)
    x = torch.randn(40, 2).repeat(1, 2)  # two pairs of equal columns, and next to nothing on the diagonal
    method = pst.KFAC(lr=0.01, damping=0.0, prior=pst.priors.Normal(1e3))
    with pytest.raises(pst.PosterityError, match=refused):
        pst.fit(torch.nn.Linear(4, 4), method, (1e4 * x, x.argmax(1)), epochs=3, training=pst.Training(progress=False))
