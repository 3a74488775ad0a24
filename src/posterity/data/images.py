"""Image sets from the data folder: the MNIST family, CIFAR-10 in both its versions, Tiny-ImageNet at 32 × 32.

Pixels are scaled to [0, 1] first, then standardised per channel. A folder that holds only test images (kept to be
out of distribution) gives a set without training part, in [0, 1]; `DataSet.in_units_of` puts it in another's units.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from posterity.data.dataset import DataSet, Kind, Pair, Task
from posterity.data.download import Remote, fetch
from posterity.data.formats import Bytes, read_cifar_binary, read_cifar_python, read_idx, read_npz
from posterity.types import PosterityError

DIGITS = tuple(str(digit) for digit in range(10))
GARMENTS = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
KANA = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
LETTERS = tuple("ABCDEFGHIJ")
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _idx_remotes(base: str, *md5: str) -> tuple[Remote, ...]:
    return tuple(Remote(f"{base}/{name}.gz", digest) for name, digest in zip(_IDX_FILES, md5, strict=True))


MNIST = _idx_remotes(
    "https://storage.googleapis.com/cvdf-datasets/mnist",
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
FASHION = _idx_remotes(
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
KUZUSHIJI = _idx_remotes(
    "https://codh.rois.ac.jp/kmnist/dataset/kmnist",
    "bdb82020997e1d708af4cf47b453dcf7",
    "e144d726b3acfaa3e44228e80efcd344",
    "5c965bf0a639b31b8f53240b1b52f4d7",
    "7320c461ea6c1c855c0b718fb2a4b134",
)
CIFAR10 = Remote("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530")


def fetch_all(remotes: tuple[Remote, ...], folder: Path) -> None:
    """Download the files of an MNIST-like set."""
    for remote in remotes:
        fetch(remote, folder)


def fetch_cifar10(folder: Path) -> None:
    """Download CIFAR-10 and unpack its six files by name, wherever else the archive may point."""
    archive = fetch(CIFAR10, folder)
    with tarfile.open(archive) as tar:
        for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
            member = tar.extractfile(f"cifar-10-batches-bin/{name}")
            assert member is not None  # the checksum has vouched for the archive
            (folder / name).write_bytes(member.read())
    archive.unlink()


def mnist_like(name: str, folder: Path, classes: tuple[str, ...]) -> DataSet:
    """MNIST or one of its likes, as idx files (raw or .gz) or as KMNIST's .npz files, with or without training part."""
    test = _mnist_part(folder, "t10k", f"{name}-test")
    if test is None:
        raise PosterityError(f"{folder} holds no test images of {name}: expected {_IDX_FILES[2]} or {_IDX_FILES[2]}.gz")
    return _image_set(name, classes, _mnist_part(folder, "train", f"{name}-train"), test)


def _mnist_part(folder: Path, idx: str, npz: str) -> Pair | None:
    images = _either(folder, f"{idx}-images-idx3-ubyte")
    labels = _either(folder, f"{idx}-labels-idx1-ubyte")
    if images is not None and labels is not None:
        return _pair(read_idx(images)[:, None], read_idx(labels), images)
    if images is not None or labels is not None:
        raise PosterityError(f"{images or labels} lies there without its {'labels' if images else 'images'}")
    archives = [folder / f"{npz}-{what}.npz" for what in ("imgs", "labels")]
    if all(path.is_file() for path in archives):
        arrays = [read_npz(path).get("arr_0") for path in archives]
        if arrays[0] is None or arrays[1] is None:
            raise PosterityError(f"{archives[0]} and its labels must each hold one array called arr_0")
        return _pair(arrays[0][:, None], arrays[1], archives[0])
    return None


def _either(folder: Path, name: str) -> Path | None:
    """The raw file if it is there, else the packed one, else None."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def cifar10(folder: Path) -> DataSet:
    """CIFAR-10 from its binary files (``.bin``) or from its python ones (no suffix), whichever the folder holds."""
    binary = (folder / "test_batch.bin").is_file()
    suffix, read = (".bin", read_cifar_binary) if binary else ("", read_cifar_python)
    train = _batches([folder / f"data_batch_{i}{suffix}" for i in range(1, 6)], read)
    return _image_set("cifar10", OBJECTS, train, _batches([folder / f"test_batch{suffix}"], read))


def _batches(paths: list[Path], read: Callable[[Path], tuple[Bytes, Bytes]]) -> Pair:
    images, labels = zip(*(read(path) for path in paths), strict=True)
    return _pair(np.concatenate(images), np.concatenate(labels), paths[0])


def tiny_imagenet(folder: Path) -> DataSet:
    """2,000 pictures, 32 × 32, of things that CIFAR-10 does not know; there is nothing to train on."""
    path = folder / "images.npz"
    arrays = read_npz(path)
    if not {"images", "labels", "names"} <= arrays.keys():
        raise PosterityError(f"{path} holds {', '.join(sorted(arrays))}, expected images, labels and names")
    names = tuple(str(name) for name in arrays["names"])
    test = _pair(arrays["images"].transpose(0, 3, 1, 2), arrays["labels"], path)
    return _image_set("tiny-imagenet-32", names, None, test)


def _pair(images: np.ndarray, labels: np.ndarray, path: Path) -> Pair:
    """Pixels in [0, 1] and classes, from bytes."""
    if len(images) != len(labels):
        raise PosterityError(f"{path} holds {len(images)} images, but there are {len(labels)} labels")
    return torch.tensor(images, dtype=torch.float32).div_(255), torch.tensor(labels, dtype=torch.int64)


def _image_set(name: str, classes: tuple[str, ...], train: Pair | None, test: Pair) -> DataSet:
    if train is None:
        return DataSet(name, Task.CLASSIFICATION, Kind.IMAGE, train=None, test=test, classes=classes)
    return DataSet.standardised(name, Kind.IMAGE, train, test, classes=classes)
