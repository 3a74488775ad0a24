"""Posteriors whose draws leave the padding rows of embeddings as they are."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch

import torch

from posterity.padding import PaddingRow
from posterity.posteriors.base import Posterior
from posterity.posteriors.empirical import Empirical
from posterity.posteriors.gaussian import DiagonalGaussian, LowRankGaussian
from posterity.posteriors.kronecker import KroneckerGaussian

__all__ = ["hold_padding"]


@torch.no_grad()
def hold_padding(posterior: Posterior, rows: Iterable[PaddingRow]) -> None:
    """Fix these rows in a posterior that was just made, and in what it is made of."""
    for row in rows:
        posterior.module.get_parameter(row.name)[row.index] = row.value
        _hold(posterior, row)
    for part in posterior.parts:
        hold_padding(part, rows)


@singledispatch
def _hold(posterior: Posterior, row: PaddingRow) -> None:
    """Nothing by default: samplers spare the row themselves, and the factor of a full covariance stays invertible."""


@_hold.register
def _(posterior: Empirical, row: PaddingRow) -> None:
    for point in posterior.points:
        point[row.name][row.index] = row.value


@_hold.register
def _(posterior: DiagonalGaussian, row: PaddingRow) -> None:
    _fix(posterior, row)


@_hold.register
def _(posterior: LowRankGaussian, row: PaddingRow) -> None:
    _fix(posterior, row)
    if row.name in posterior.bayesian.names:
        posterior.bayesian.unflatten(posterior.q.deviations)[row.name][:, row.index] = 0  # type: ignore[union-attr]


def _fix(posterior: DiagonalGaussian | LowRankGaussian, row: PaddingRow) -> None:
    """Mean and std; both are views of the posterior's own vectors."""
    posterior.mean()[row.name][row.index] = row.value
    if row.name in posterior.bayesian.names:
        posterior.bayesian.unflatten(posterior.q.std)[row.name][row.index] = 0  # type: ignore[union-attr]


@_hold.register
def _(posterior: KroneckerGaussian, row: PaddingRow) -> None:
    posterior.means[row.name][row.index] = row.value
    if row.name in posterior.stds:
        posterior.stds[row.name][row.index] = 0
