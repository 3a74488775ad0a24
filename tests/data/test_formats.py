import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posterity.data.formats import read_cifar_binary, read_cifar_python, read_idx, read_npz
from posterity.types import PosterityError

Writer = Callable[[Path, dict[str, Any]], None]

# Two images of 2 × 3 bytes, written by hand: type 8, 3 dimensions, sizes 2, 2, 3, then the pixels.
IDX = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3]) + bytes(range(10, 22))


@pytest.mark.parametrize("packed", [False, True])
def test_idx_by_hand(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("images.gz" if packed else "images")
    path.write_bytes(gzip.compress(IDX) if packed else IDX)
    assert read_idx(path).tolist() == [[[10, 11, 12], [13, 14, 15]], [[16, 17, 18], [19, 20, 21]]]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "starts with nothing"),
        (b"\x00\x00\x0d\x01" + struct.pack(">If", 1, 0.5), "no idx file of bytes"),
        (IDX[:10], "no idx file of bytes"),
        (IDX[:-1], "needs 12 bytes, there are 11"),
        (IDX + b"!", "needs 12 bytes, there are 13"),
    ],
)
def test_damaged_idx_is_one_sentence(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(PosterityError, match=says):
        read_idx(path)


@pytest.mark.parametrize(
    "content",
    [gzip.compress(IDX, mtime=0)[:-6], b"no gzip at all", gzip.compress(IDX, mtime=0)[:12] + b"\xff" * 20],
    ids=["cut", "no gzip", "broken"],
)
def test_damaged_gzip_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(content)
    with pytest.raises(PosterityError, match="cannot be read"):
        read_idx(path)


def test_cifar_binary_by_hand(tmp_path: Path) -> None:
    red, green, blue = bytes([1]) * 1024, bytes([2]) * 1023 + bytes([9]), bytes([3]) * 1024
    path = tmp_path / "batch.bin"
    path.write_bytes(bytes([7]) + red + green + blue + bytes([4]) + blue + green + red)
    images, labels = read_cifar_binary(path)
    assert labels.tolist() == [7, 4]
    assert images[0, :, 0, 0].tolist() == [1, 2, 3] and images[1, :, 0, 0].tolist() == [3, 2, 1]
    assert images[0, 1, 31, 31] == 9 and images[0, 1, 31, 30] == 2
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(PosterityError, match="6145 bytes"):
        read_cifar_binary(path)


def test_cifar_python_as_python2_wrote_it(tmp_path: Path, write_python2: Writer) -> None:
    data = np.arange(2 * 3072).reshape(2, 3072).astype(np.uint8)
    write_python2(
        tmp_path / "data_batch_1", {"data": data, "labels": [3, 9], "batch_label": "x", "filenames": ["a", "b"]}
    )
    images, labels = read_cifar_python(tmp_path / "data_batch_1")
    assert labels.tolist() == [3, 9]
    np.testing.assert_array_equal(images, data.reshape(2, 3, 32, 32))


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('the pickle ran code')",)


def test_a_pickle_cannot_run_code(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": Harmful(), b"labels": [1]}))
    with pytest.raises(PosterityError, match=r"wanted to import builtins\.exec"):
        read_cifar_python(path)


@pytest.mark.parametrize("content", [b"", b"garbage", pickle.dumps({b"data": [1]}), pickle.dumps([1, 2])])
def test_a_damaged_pickle_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(PosterityError, match="is no CIFAR-10 batch"):
        read_cifar_python(path)


def test_npz_refuses_objects_and_garbage(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.array([{}, 1], dtype=object))
    with pytest.raises(PosterityError, match=r"cannot be read as \.npz"):
        read_npz(path)
    for content in (b"", b"PK\x03\x04 but no more", b"plain text"):
        path.write_bytes(content)
        with pytest.raises(PosterityError, match=r"cannot be read as \.npz"):
            read_npz(path)
