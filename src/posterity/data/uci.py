"""The UCI regression sets with their standard splits (Hernández-Lobato & Adams 2015, https://arxiv.org/abs/1502.05336).

A folder ``uci/NAME/data`` holds ``data.txt``, the numbers of the feature and target columns, and for each split K
the numbers of its training and test rows.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch

from posterity.data.dataset import DataSet, Kind
from posterity.types import PosterityError


def uci(name: str, folder: Path, split: int) -> DataSet:
    """One split of one set, inputs and target standardised by its training rows."""
    data = _table(folder / "data.txt")
    features, target = _numbers(folder / "index_features.txt"), _numbers(folder / "index_target.txt")
    train, test = (_numbers(_split_file(folder, part, split)) for part in ("train", "test"))
    if np.intersect1d(train, test).size:
        raise PosterityError(f"{folder}: split {split} has rows both in its training and in its test part")
    try:
        x, y = torch.from_numpy(data[:, features]), torch.from_numpy(data[:, target])
        return DataSet.standardised(name, Kind.TABULAR, (x[train], y[train]), (x[test], y[test]))
    except IndexError as error:
        raise PosterityError(f"{folder}: an index points outside the table of {data.shape}: {error}") from error


def _split_file(folder: Path, part: str, split: int) -> Path:
    path = folder / f"index_{part}_{split}.txt"
    if not path.is_file():
        there = len(list(folder.glob(f"index_{part}_*.txt")))
        raise PosterityError(f"{folder} has no split {split}: there are {there}, numbered from 0")
    return path


def _table(path: Path) -> np.ndarray:
    try:
        with warnings.catch_warnings(action="error"):  # numpy only warns about an empty file
            return np.loadtxt(path, ndmin=2)
    except (OSError, ValueError, UserWarning) as error:
        raise PosterityError(f"{path} cannot be read as a table of numbers: {error}") from error


def _numbers(path: Path) -> np.ndarray:
    return _table(path).ravel().astype(np.int64)
