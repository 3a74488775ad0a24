"""Inverses of positive definite matrices by way of triangular roots, which turn noise into draws.

Both recursions are by halves, so that nearly all of the work is in matrix products, and none of it on zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.types import PosterityError

__all__ = ["cholesky", "gram_lower", "inverse_lower", "inverse_root"]

_SMALL = 256
"""Rows up to which a matrix is taken in one piece."""


def inverse_lower(L: Tensor) -> Tensor:
    """L⁻¹ of a lower triangular matrix: of [[A, 0], [B, C]] it is [[A⁻¹, 0], [−C⁻¹ B A⁻¹, C⁻¹]]."""
    if len(L) <= _SMALL:
        identity = torch.eye(len(L), dtype=L.dtype, device=L.device)
        return torch.linalg.solve_triangular(L, identity, upper=False)
    half = len(L) // 2
    inverse = torch.zeros_like(L)
    inverse[:half, :half] = inverse_lower(L[:half, :half])
    inverse[half:, half:] = inverse_lower(L[half:, half:])
    inverse[half:, :half] = -(inverse[half:, half:] @ (L[half:, :half] @ inverse[:half, :half]))
    return inverse


def gram_lower(R: Tensor) -> Tensor:
    """Rᵀ R of a lower triangular matrix: of [[A, 0], [B, C]] it is [[AᵀA + BᵀB, BᵀC], [CᵀB, CᵀC]]."""
    if len(R) <= _SMALL:
        return R.T @ R
    half = len(R) // 2
    gram = torch.empty_like(R)
    gram[:half, :half] = torch.addmm(gram_lower(R[:half, :half]), R[half:, :half].T, R[half:, :half])
    gram[half:, :half] = R[half:, half:].T @ R[half:, :half]
    gram[:half, half:] = gram[half:, :half].T
    gram[half:, half:] = gram_lower(R[half:, half:])
    return gram


def inverse_root(matrix: Tensor) -> Tensor:
    """The lower triangular R with R Rᵀ the inverse of a positive definite matrix.

    With rows and columns in reverse order the Cholesky factor L gives the inverse as L⁻ᵀ L⁻¹, and turned back L⁻ᵀ is
    lower triangular.
    """
    return inverse_lower(cholesky(matrix.flip(0, 1))).T.flip(0, 1)


def cholesky(precision: Tensor) -> Tensor:
    """The Cholesky factor of what a curvature and a prior add up to; refused where rounding leaves it without one."""
    try:
        return torch.linalg.cholesky(precision)
    except torch.linalg.LinAlgError as error:
        raise PosterityError(
            f"a curvature of {len(precision)} rows is not positive definite in {precision.dtype}: standardise the "
            "inputs, give a narrower prior or more damping, or train in float64"
        ) from error
