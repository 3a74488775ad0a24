"""Every data set by name: what it is, whether it is there, and how to load it.

The data folder is ``root``, else ``$POSTERITY_DATA``, else ``~/.cache/posterity``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from posterity.data import images, sst2, toy, uci
from posterity.data.dataset import DataSet, Kind, Task
from posterity.data.download import Remote
from posterity.data.own import load_file, load_function
from posterity.random import generator_for
from posterity.types import PosterityError, hint


@dataclass(frozen=True)
class Source:
    """A set that is known by name.

    Attributes:
        task: What is predicted.
        kind: What an input is.
        shape: The shape of one input; empty where it depends on the text.
        train: The number of training examples, 0 for a set that is only tested on.
        test: The number of test examples.
        folders: Where it may lie under the data folder (a download goes to the first); empty if it needs no file.
        load: From the set's folder, the split and a generator to the set.
        fetch: Downloads it into its folder, where the set has an official address with checksum.
    """

    task: Task
    kind: Kind
    shape: tuple[int, ...]
    train: int
    test: int
    folders: tuple[str, ...]
    load: Callable[[Path, int, torch.Generator], DataSet]
    fetch: Callable[[Path], None] | None = None


@dataclass(frozen=True)
class Description:
    """One line of ``posterity data``."""

    name: str
    task: Task
    kind: Kind
    shape: tuple[int, ...]
    train: int
    test: int
    here: bool


def _embedded(make: Callable[[torch.Generator], DataSet], task: Task, kind: Kind, *sizes: int) -> Source:
    train, test, *shape = sizes
    return Source(task, kind, tuple(shape), train, test, (), lambda folder, split, generator: make(generator))


def _mnist_like(
    name: str, folders: tuple[str, ...], classes: tuple[str, ...], train: int, remotes: tuple[Remote, ...] = ()
) -> Source:
    return Source(
        Task.CLASSIFICATION,
        Kind.IMAGE,
        (1, 28, 28),
        train,
        10_000,
        folders,
        lambda folder, split, generator: images.mnist_like(name, folder, classes),
        (lambda folder: images.fetch_all(remotes, folder)) if remotes else None,
    )


def _uci(name: str, folder: str, columns: int, train: int, test: int) -> Source:
    return Source(
        Task.REGRESSION,
        Kind.TABULAR,
        (columns,),
        train,
        test,
        (f"uci/{folder}/data",),
        lambda path, split, generator: uci.uci(name, path, split),
    )


_C, _R = Task.CLASSIFICATION, Task.REGRESSION
SOURCES: dict[str, Source] = {
    "digits": _embedded(toy.digits, _C, Kind.IMAGE, 1297, 500, 1, 8, 8),
    "two-moons": _embedded(toy.two_moons, _C, Kind.PLANE, 1000, 1000, 2),
    "circles": _embedded(toy.circles, _C, Kind.PLANE, 1000, 1000, 2),
    "sine": _embedded(toy.sine, _R, Kind.TABULAR, 200, 401, 1),
    "heteroscedastic": _embedded(toy.heteroscedastic, _R, Kind.TABULAR, 500, 500, 1),
    "mnist": _mnist_like("mnist", ("mnist", "MNIST/raw"), images.DIGITS, 60_000, images.MNIST),
    "fashion-mnist": _mnist_like(
        "fashion-mnist", ("fashion-mnist", "FashionMNIST/raw"), images.GARMENTS, 60_000, images.FASHION
    ),
    "kmnist": _mnist_like("kmnist", ("kmnist", "KMNIST/raw"), images.KANA, 60_000, images.KUZUSHIJI),
    "notmnist": _mnist_like("notmnist", ("notmnist",), images.LETTERS, 0),
    "cifar10": Source(
        _C,
        Kind.IMAGE,
        (3, 32, 32),
        50_000,
        10_000,
        ("cifar-10-batches-bin", "cifar-10-batches-py"),
        lambda folder, split, generator: images.cifar10(folder),
        images.fetch_cifar10,
    ),
    "tiny-imagenet-32": Source(
        _C,
        Kind.IMAGE,
        (3, 32, 32),
        0,
        2_000,
        ("tiny-imagenet-32",),
        lambda folder, split, generator: images.tiny_imagenet(folder),
    ),
    "uci-boston": _uci("uci-boston", "bostonHousing", 13, 455, 51),
    "uci-concrete": _uci("uci-concrete", "concrete", 8, 927, 103),
    "uci-energy": _uci("uci-energy", "energy", 8, 691, 77),
    "uci-naval": _uci("uci-naval", "naval-propulsion-plant", 16, 10_741, 1_193),
    "uci-wine": _uci("uci-wine", "wine-quality-red", 11, 1_439, 160),
    "uci-yacht": _uci("uci-yacht", "yacht", 6, 277, 31),
    "sst2": Source(
        _C, Kind.TEXT, (), 6_920, 1_821, ("sst2",), lambda folder, split, generator: sst2.sst2(folder), sst2.fetch_sst2
    ),
}
ALIASES = {
    "moons": "two-moons",
    "fashion": "fashion-mnist",
    "cifar-10": "cifar10",
    "tiny-imagenet": "tiny-imagenet-32",
    "sst-2": "sst2",
    "uci-bostonHousing": "uci-boston",
    "uci-naval-propulsion-plant": "uci-naval",
    "uci-wine-quality-red": "uci-wine",
}


def data_folder(root: Path | None = None) -> Path:
    """Where data sets lie."""
    return Path(root or os.environ.get("POSTERITY_DATA") or "~/.cache/posterity").expanduser()


def names() -> list[str]:
    """The names `load` knows."""
    return list(SOURCES)


def describe(root: Path | None = None) -> list[Description]:
    """What there is, and whether it could be loaded at once."""
    return [
        Description(name, s.task, s.kind, s.shape, s.train, s.test, _find(s, data_folder(root)) is not None)
        for name, s in SOURCES.items()
    ]


def load(
    name: str,
    *,
    root: Path | None = None,
    split: int | None = None,
    target: str | None = None,
    task: Task | str | None = None,
    seed: int = 0,
    download: bool = True,
) -> DataSet:
    """Load a set by its name, the user's own file, or the result of a ``package.module:function``.

    Args:
        name: One of `names()`, a path that ends in .npz or .csv, or ``package.module:function``.
        root: The data folder, where it is not the usual one.
        split: Which of the standard splits (UCI only; 0 if not given).
        target: Which column to predict (.csv only; the last if not given).
        task: What to predict (one's own data only; found from the targets if not given).
        seed: Draws the toy sets, and the test part of sets that come without one.
        download: Fetch a set that is not there from its official address.
    """
    asked = {"split": split, "target": target, "task": task}
    if Path(name).suffix.lower() in (".npz", ".csv"):
        _refuse(name, asked, "target", "task")
        return load_file(Path(name).expanduser(), target=target, task=_task(task), seed=seed)
    if ":" in name:
        _refuse(name, asked, "task")
        return load_function(name, _task(task))
    known, source = _source(name)
    _refuse(name, asked, *(["split"] if known.startswith("uci-") else []))
    folder = _ready(known, source, data_folder(root), download)
    return source.load(folder, split or 0, generator_for(seed))


def _source(name: str) -> tuple[str, Source]:
    known = ALIASES.get(name, name)
    if known not in SOURCES:
        own = "for your own give a .npz or .csv file, or module:function"
        raise PosterityError(f"there is no data set called {name!r} ({own}): {hint(name, [*SOURCES, *ALIASES])}")
    return known, SOURCES[known]


def _refuse(name: str, asked: Mapping[str, object], *taken: str) -> None:
    """An option that would have no effect is a mistake."""
    for option, value in asked.items():
        if value is not None and option not in taken:
            raise PosterityError(f"{option}={value!r} means nothing for the data set {name!r}")


def _task(task: Task | str | None) -> Task | None:
    try:
        return None if task is None else Task(task)
    except ValueError:
        raise PosterityError(f"task must be one of {', '.join(Task)}, got {task!r}") from None


def _find(source: Source, root: Path) -> Path | None:
    """The folder to load from, or None where the set is not there."""
    if not source.folders:
        return root
    return next((root / one for one in source.folders if (root / one).is_dir() and any((root / one).iterdir())), None)


def _ready(name: str, source: Source, root: Path, download: bool) -> Path:
    """The folder of the set, downloaded if need be."""
    folder = _find(source, root)
    if folder is not None:
        return folder
    where = f"{name} is not in {root} (expected the folder {source.folders[0]})"
    if source.fetch is None:
        raise PosterityError(f"{where}, and has no official address to download it from")
    if not download:
        raise PosterityError(f"{where}, and was not to be downloaded")
    folder = root / source.folders[0]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as part:  # a set is there as a whole or not at all
            source.fetch(Path(part) / "set")
            os.replace(Path(part) / "set", folder)
    except (PosterityError, OSError) as error:
        raise PosterityError(f"{where}, and {error}") from error
    return folder
