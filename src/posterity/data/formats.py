"""Readers of the files in which public image sets come: idx (MNIST), CIFAR-10 binary and CIFAR-10 python.

Every reader takes a path and returns numpy arrays, and turns a damaged file into one sentence.
"""

from __future__ import annotations

import gzip
import math
import pickle
import struct
import zipfile
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from posterity.types import PosterityError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_CIFAR_RECORD = 1 + 3 * 32 * 32  # a label byte, then the red, green and blue planes


def scikit_learn_file(*parts: str) -> Path:
    """One of the files under scikit-learn's ``datasets``, found without the half second that importing it takes."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise PosterityError("scikit-learn, whose digits and photographs these are, is not installed")
    return Path(package.origin).parent.joinpath("datasets", *parts)


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked when its name ends in ``.gz``."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise PosterityError(f"{path} cannot be read: {error}") from error


def read_idx(path: Path) -> Bytes:
    """An idx file of unsigned bytes: 0, 0, 8 (the type), the number of dimensions, each size as big-endian int32."""
    raw = read_bytes(path)
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08" or len(raw) < 4 + 4 * raw[3]:
        raise PosterityError(f"{path} is no idx file of bytes: it starts with {raw[:4].hex(' ') or 'nothing'}")
    dims = raw[3]
    shape = struct.unpack(f">{dims}I", raw[4 : 4 + 4 * dims])
    found, expected = len(raw) - 4 - 4 * dims, math.prod(shape)
    if found != expected:
        raise PosterityError(f"{path} is damaged: {shape} needs {expected} bytes, there are {found}")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, in memory; arrays of Python objects (pickles) are refused."""
    if path.is_file() and not zipfile.is_zipfile(path):  # numpy would take it for a pickle, and say how to load one
        raise PosterityError(f"{path} cannot be read as .npz: numpy.savez has not written it, or it was cut off")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError, AttributeError) as error:
        raise PosterityError(f"{path} cannot be read as .npz: {error}") from error


def read_cifar_binary(path: Path) -> tuple[Bytes, Bytes]:
    """Images [N, 3, 32, 32] and labels [N] of one binary batch file."""
    raw = read_bytes(path)
    if not raw or len(raw) % _CIFAR_RECORD:
        raise PosterityError(f"{path} is damaged: {len(raw)} bytes are no whole number of {_CIFAR_RECORD}-byte records")
    records = np.frombuffer(raw, np.uint8).reshape(-1, _CIFAR_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def read_cifar_python(path: Path) -> tuple[Bytes, Bytes]:
    """Images [N, 3, 32, 32] and labels [N] of one python batch file: a pickle that may hold arrays and no more."""
    try:
        with path.open("rb") as file:
            batch = _ArraysOnly(file, encoding="bytes").load()
        images, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"], np.uint8)
        return images.reshape(len(labels), 3, 32, 32), labels
    except PosterityError:
        raise
    except Exception as error:  # a damaged pickle raises anything at all
        raise PosterityError(f"{path} is no CIFAR-10 batch: {error}") from error


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that can build plain containers and numpy arrays, and refuses to import anything else."""

    _allowed: ClassVar[dict[str, Any]] = {
        "_reconstruct": np.empty(0).__reduce__()[0],  # numpy's own name for it has moved between versions
        "ndarray": np.ndarray,
        "dtype": np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] != "numpy" or name not in self._allowed:
            raise PosterityError(f"a CIFAR-10 batch wanted to import {module}.{name}, which is not allowed")
        return self._allowed[name]
