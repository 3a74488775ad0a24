"""The user's own data: an .npz of arrays, a .csv table, or ``package.module:function``.

Files are standardised like every other set, and split 80 : 20 at random where they name no test part. What a function
returns is taken as it is: whoever writes one has done the scaling. The task is told, or found from the targets:
text, booleans, and integers with few distinct values (at most 100, two examples each) are classes; the rest is real.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity.calling import check_finite, is_one_hot
from posterity.data.dataset import DataSet, Kind, Pair, Task
from posterity.data.formats import read_npz
from posterity.data.tables import read_csv
from posterity.random import generator_for
from posterity.types import PosterityError

Arrays = tuple[np.ndarray, np.ndarray]

_INPUTS = ("x", "inputs", "data", "images", "features")
_TARGETS = ("y", "targets", "target", "labels", "label")
_MOST_CLASSES = 100


def load_file(path: Path, *, target: str | None, task: Task | None, seed: int) -> DataSet:
    """A data set from an .npz or a .csv file."""
    if not path.is_file():
        raise PosterityError(f"there is no file {path}")
    columns = None
    if path.suffix.lower() == ".csv":
        columns, *arrays = read_csv(path, target)
        train, test = split((arrays[0], arrays[1]), seed)
    elif target is not None:
        raise PosterityError(f"target={target!r} names a column of a .csv file, but {path} is an .npz")
    else:
        train, test = _npz_parts(path, seed)
    x_train, x_test = (_inputs(x, path) for x, _ in (train, test))
    if x_train.shape[1:] != x_test.shape[1:]:
        shapes = f"{tuple(x_train.shape[1:])} and {tuple(x_test.shape[1:])}"
        raise PosterityError(f"{path}: training and test inputs differ in shape, got {shapes}")
    y_train, y_test, classes = encode_targets(train[1], test[1], task, str(path))
    kind = _kind(x_train, Task.REGRESSION if classes is None else Task.CLASSIFICATION)
    for x in (x_train, x_test):  # before the statistics, where one NaN would spoil every example
        check_finite(x, f"{path}: inputs")
    return DataSet.standardised(path.stem, kind, (x_train, y_train), (x_test, y_test), classes=classes, columns=columns)


def split(arrays: Arrays, seed: int, test: float = 0.2) -> tuple[Arrays, Arrays]:
    """A random training and test part."""
    x, y = arrays
    count = round(test * len(x))
    if len(x) != len(y) or not 0 < count < len(x):
        raise PosterityError(f"{len(x)} inputs and {len(y)} targets cannot be split into a training and a test part")
    order = torch.randperm(len(x), generator=generator_for(seed)).numpy()
    return (x[order[count:]], y[order[count:]]), (x[order[:count]], y[order[:count]])


def _npz_parts(path: Path, seed: int) -> tuple[Arrays, Arrays]:
    arrays = _arrays(path)

    def part(suffix: str) -> Arrays | None:
        found = [_named(arrays, names, suffix) for names in (_INPUTS, _TARGETS)]
        return None if found[0] is None or found[1] is None else (np.atleast_1d(found[0]), np.atleast_1d(found[1]))

    train, test, everything = part("train"), part("test"), part("")
    whole = train if train is not None else everything
    if whole is None:
        there = ", ".join(sorted(arrays)) or "nothing"
        raise PosterityError(f"{path} holds {there}, expected x and y, or x_train, y_train, x_test and y_test")
    return (whole, test) if test is not None else split(whole, seed)


def npz_inputs(path: Path) -> np.ndarray:
    """The inputs of an .npz without targets, under any name that those of a data set may have; else its test part's."""
    arrays = _arrays(path)
    candidates = (_named(arrays, _INPUTS, part) for part in ("", "test"))
    found = next((array for array in candidates if array is not None), None)
    if found is None:
        raise PosterityError(f"{path} must hold an array called x, it has {', '.join(arrays)}")
    return np.atleast_1d(found)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz by their names in lower case."""
    arrays = read_npz(path)
    return {name.lower(): arrays[name] for name in sorted(arrays)}  # of X and x the latter


def _named(arrays: dict[str, np.ndarray], names: tuple[str, ...], part: str) -> np.ndarray | None:
    """The array with one of these names, as in ``x``, ``x_train`` or ``train_x``."""
    forms = ("{0}",) if not part else ("{0}_{1}", "{1}_{0}", "{0}{1}")
    keys = (form.format(name, part) for name in names for form in forms)
    return next((arrays[key] for key in keys if key in arrays), None)


def _inputs(x: np.ndarray, path: Path) -> Tensor:
    """Tables as float64 [N, D]; images as float32 [N, C, H, W], bytes scaled to [0, 1]."""
    if x.dtype.kind not in "biuf" or not 1 <= x.ndim <= 4 or not x.size:
        raise PosterityError(f"{path}: inputs must be numbers in 1 to 4 dimensions, got {x.dtype} {x.shape}")
    if x.ndim <= 2:
        return torch.from_numpy(x.reshape(len(x), -1).astype(np.float64))
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, x.shape[3]):  # 4 with transparency
        x = x.transpose(0, 3, 1, 2)
    images = torch.tensor(x, dtype=torch.float32)
    return images / 255 if x.dtype == np.uint8 else images


def find_task(y: np.ndarray) -> Task:
    """What these targets look like: see the top of this file."""
    distinct = len(np.unique(y))
    few = distinct <= _MOST_CLASSES and 2 * distinct <= y.size
    classes = y.dtype.kind in "USb" or (y.dtype.kind in "iu" and few) or is_one_hot(y)
    return Task.CLASSIFICATION if classes else Task.REGRESSION


def encode_targets(
    train: np.ndarray, test: np.ndarray, task: Task | None, where: str
) -> tuple[Tensor, Tensor, tuple[str, ...] | None]:
    """Targets as a network needs them, and the names of the classes, sorted; None for a regression."""
    train, test = (y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y for y in (train, test))
    if train.shape[1:] != test.shape[1:]:
        raise PosterityError(f"{where}: training and test targets differ in shape, got {train.shape} and {test.shape}")
    y = np.concatenate([train, test])
    if y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8", "replace")  # a class is called cat, not b'cat'
    if y.dtype.kind not in "USbiuf":
        raise PosterityError(f"{where}: targets must be numbers or text, got {y.dtype}")
    if (task or find_task(y)) == Task.REGRESSION:
        if y.dtype.kind in "US":
            raise PosterityError(f"{where}: a regression needs numbers as targets, got text such as {str(y[0])!r}")
        first, second = (torch.from_numpy(part.reshape(len(part), -1).astype(np.float64)) for part in (train, test))
        check_finite(torch.cat([first, second]), f"{where}: targets")
        return first, second, None
    if y.ndim != 1 or (y.dtype.kind == "f" and not np.array_equal(y, np.round(y))):
        raise PosterityError(f"{where}: a classification needs one whole number or word per example as target")
    values, numbers = np.unique(y.astype(np.int64) if y.dtype.kind == "f" else y, return_inverse=True)
    if len(values) < 2:
        raise PosterityError(f"{where}: a classification needs at least two classes, got only {values[0]!s}")
    coded = torch.from_numpy(numbers.astype(np.int64))
    return coded[: len(train)], coded[len(train) :], tuple(str(value) for value in values)


def import_function(name: str) -> Callable[..., Any]:
    """The function behind ``package.module:function``."""
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, SyntaxError) as error:
        raise PosterityError(f"{name!r} cannot be imported as package.module:function: {error}") from error
    if not callable(function):
        raise PosterityError(f"{name!r} is a {type(function).__name__}, expected a function")
    return function


def load_function(name: str, task: Task | None) -> DataSet:
    """A data set from a function that returns (train, test), each a pair of arrays or a loader of batches.

    Rows of int64 are taken for word numbers (text); any other input becomes float32.
    """
    made = import_function(name)()
    if not isinstance(made, tuple) or len(made) != 2:
        raise PosterityError(f"{name} must return (train, test), got {type(made).__name__}")
    train, test = (_gather(part, name) for part in made)
    if task is None:
        task = Task.REGRESSION if train[1].is_floating_point() else Task.CLASSIFICATION
    train, test = (_typed(pair, task, name) for pair in (train, test))
    classes = None
    if task == Task.CLASSIFICATION:  # a network was written for these labels, so they keep their numbers
        highest = max((int(y.max()) for _, y in (train, test) if y.numel()), default=0)
        classes = tuple(str(label) for label in range(highest + 1))
    return DataSet(name, task, _kind(train[0], task), train=train, test=test, classes=classes)


def _typed(pair: Pair, task: Task, name: str) -> Pair:
    x, y = pair
    x = x if x.dtype == torch.int64 and x.dim() == 2 else x.float()
    if task == Task.REGRESSION:
        return x, y.float().reshape(len(y), -1)
    if y.is_floating_point() and not torch.equal(y, y.round()):
        raise PosterityError(f"{name}: a classification needs whole numbers as targets, got {y.dtype}")
    return x, y.long()


def _kind(x: Tensor, task: Task) -> Kind:
    """What inputs of such a shape are."""
    if x.dtype == torch.int64:
        return Kind.TEXT
    if x.dim() == 4:
        return Kind.IMAGE
    return Kind.PLANE if x.shape[1:] == (2,) and task == Task.CLASSIFICATION else Kind.TABULAR


def _gather(part: Any, name: str) -> Pair:
    """Two whole tensors from a pair of arrays or from the batches of a loader."""
    batches: Iterable[Any] = [part] if _is_pair(part) else part
    try:
        pairs = [(torch.as_tensor(x), torch.as_tensor(y)) for x, y in batches]
        return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    except (TypeError, ValueError, RuntimeError) as error:
        raise PosterityError(f"{name} must give (inputs, targets) as arrays or as loaders of such: {error}") from error


def _is_pair(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) == 2 and all(isinstance(one, Tensor | np.ndarray) for one in part)
