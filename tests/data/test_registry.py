import gzip
import hashlib
import struct
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posterity import data
from posterity.data import images, registry
from posterity.data.download import Remote, fetch
from posterity.types import PosterityError


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def fill_mnist(folder: Path, parts: tuple[str, ...] = ("train", "t10k"), packed: bool = True) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part in parts:
        for what, array in (("images-idx3", rng.integers(0, 256, (20, 28, 28))), ("labels-idx1", np.arange(20) % 10)):
            content = idx(array)
            suffix = ".gz" if packed else ""
            (folder / f"{part}-{what}-ubyte{suffix}").write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize(("folder", "packed"), [("mnist", True), ("mnist", False), ("MNIST/raw", False)])
def test_mnist_from_its_usual_layouts(tmp_path: Path, folder: str, packed: bool) -> None:
    fill_mnist(tmp_path / folder, packed=packed)
    mnist = data.load("mnist", root=tmp_path)
    x, y = mnist.training()
    assert x.shape == (20, 1, 28, 28) and x.dtype == torch.float32
    assert y.tolist() == [i % 10 for i in range(20)]
    assert mnist.standardiser is not None
    pixels = np.random.default_rng(0).integers(0, 256, (20, 28, 28))
    np.testing.assert_allclose(mnist.standardiser.invert(x)[:, 0].numpy() * 255, pixels, atol=1e-4)


def test_a_test_only_folder_gives_a_set_without_training_part(tmp_path: Path) -> None:
    fill_mnist(tmp_path / "notmnist", parts=("t10k",))
    letters = data.load("notmnist", root=tmp_path)
    assert letters.train is None and letters.standardiser is None
    assert letters.test[0].min() >= 0 and letters.test[0].max() == 1.0
    fill_mnist(tmp_path / "mnist")
    mnist = data.load("mnist", root=tmp_path)
    assert mnist.standardiser is not None
    torch.testing.assert_close(letters.in_units_of(mnist).test[0], mnist.standardiser.apply(letters.test[0]))


def test_images_without_their_labels_are_no_test_only_set(tmp_path: Path) -> None:
    fill_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(PosterityError, match=r"train-images-idx3-ubyte\.gz lies there without its labels"):
        data.load("mnist", root=tmp_path)


def test_kmnist_npz(tmp_path: Path) -> None:
    (tmp_path / "kmnist").mkdir()
    np.savez(tmp_path / "kmnist/kmnist-test-imgs.npz", np.full((3, 28, 28), 51, np.uint8))
    np.savez(tmp_path / "kmnist/kmnist-test-labels.npz", np.array([0, 9, 4], np.uint8))
    kana = data.load("kmnist", root=tmp_path)
    torch.testing.assert_close(kana.test[0], torch.full((3, 1, 28, 28), 0.2))
    assert kana.test[1].tolist() == [0, 9, 4]


def test_cifar10_binary_and_python_are_the_same_set(
    tmp_path: Path, write_python2: Callable[[Path, dict[str, Any]], None]
) -> None:
    rng = np.random.default_rng(0)
    for version in ("bin", "py"):
        (tmp_path / version / f"cifar-10-batches-{version}").mkdir(parents=True)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        pixels, labels = rng.integers(0, 256, (4, 3072)).astype(np.uint8), rng.integers(0, 10, 4).astype(np.uint8)
        record = np.concatenate([labels[:, None], pixels], 1).tobytes()
        (tmp_path / f"bin/cifar-10-batches-bin/{name}.bin").write_bytes(record)
        write_python2(tmp_path / f"py/cifar-10-batches-py/{name}", {"data": pixels, "labels": labels.tolist()})
    one, two = (data.load("cifar10", root=tmp_path / version) for version in ("bin", "py"))
    assert one.training()[0].shape == (20, 3, 32, 32)
    for a, b in ((one.training(), two.training()), (one.test, two.test)):
        assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])


def fill_uci(root: Path) -> np.ndarray:
    folder = root / "uci/yacht/data"
    folder.mkdir(parents=True)
    table = np.random.default_rng(0).normal(50, 20, (30, 4))
    table[:, 1] = 288.0  # the naval set has constant columns
    np.savetxt(folder / "data.txt", table, fmt="%.17g")
    np.savetxt(folder / "index_features.txt", [0, 1, 3])
    np.savetxt(folder / "index_target.txt", [2])
    for k in range(2):
        order = np.random.default_rng(k).permutation(30)
        np.savetxt(folder / f"index_train_{k}.txt", order[:27])
        np.savetxt(folder / f"index_test_{k}.txt", order[27:])
    return table


def test_uci_split_is_disjoint_and_standardised_by_its_training_rows(tmp_path: Path) -> None:
    table = fill_uci(tmp_path)
    for k in range(2):
        yacht = data.load("uci-yacht", root=tmp_path, split=k)
        order = np.random.default_rng(k).permutation(30)
        train, test = table[order[:27]], table[order[27:]]
        x, y = yacht.training()
        np.testing.assert_allclose(x[:, 0], (train[:, 0] - train[:, 0].mean()) / train[:, 0].std(), atol=1e-6)
        np.testing.assert_allclose(y[:, 0], (train[:, 2] - train[:, 2].mean()) / train[:, 2].std(), atol=1e-6)
        assert not x[:, 1].any()
        np.testing.assert_allclose(
            yacht.test[0][:, 2], (test[:, 3] - train[:, 3].mean()) / train[:, 3].std(), atol=1e-6
        )
        assert yacht.target_standardiser is not None
        np.testing.assert_allclose(yacht.target_standardiser.invert(yacht.test[1])[:, 0], test[:, 2], rtol=1e-5)


def test_bad_uci_folders_are_one_sentence(tmp_path: Path) -> None:
    fill_uci(tmp_path)
    folder = tmp_path / "uci/yacht/data"
    with pytest.raises(PosterityError, match="has no split 2: there are 2"):
        data.load("uci-yacht", root=tmp_path, split=2)
    np.savetxt(folder / "index_test_0.txt", np.arange(30))
    with pytest.raises(PosterityError, match="both in its training and in its test part"):
        data.load("uci-yacht", root=tmp_path)
    np.savetxt(folder / "index_test_0.txt", [99])
    with pytest.raises(PosterityError, match="points outside the table"):
        data.load("uci-yacht", root=tmp_path)
    for content in ("", "1 2 three\n"):
        (folder / "data.txt").write_text(content)
        with pytest.raises(PosterityError, match="cannot be read as a table of numbers"):
            data.load("uci-yacht", root=tmp_path)


def test_sst2_both_layouts(tmp_path: Path) -> None:
    folder = tmp_path / "sst2"
    folder.mkdir()
    (folder / "train.tsv").write_text("a good , good film\t1\na bad film\t0\n")
    (folder / "dev.tsv").write_text("good film\t1\n")
    (folder / "test.tsv").write_text("a dreadful film of great and tedious length\t0\n")
    sst2 = data.load("sst2", root=tmp_path)
    assert sst2.vocabulary is not None and sst2.vocabulary.words == ("<pad>", "<unknown>", "a", "film", "good")
    assert sst2.training()[0].tolist() == [[2, 4, 1, 4, 3], [2, 1, 3, 0, 0]]
    assert sst2.validation is not None and sst2.validation[0].tolist() == [[4, 3, 0, 0, 0]]
    assert sst2.test[0].tolist() == [[2, 1, 3, 1, 1]] and sst2.test[1].tolist() == [0]  # cut to the training length
    for part in ("train", "dev"):
        (folder / f"{part}.tsv").write_text("sentence\tlabel\n" + (folder / f"{part}.tsv").read_text())
    (folder / "test.tsv").write_text("index\tsentence\n0\tno label here\n")
    glue = data.load("sst2", root=tmp_path)
    assert torch.equal(glue.training()[0], sst2.training()[0])
    assert glue.validation is None and torch.equal(glue.test[0], sst2.validation[0])
    (folder / "dev.tsv").write_text("sentence\tlabel\nfine\t1\nno label\n")
    with pytest.raises(PosterityError, match="line 3: expected text, tab, 0 or 1"):
        data.load("sst2", root=tmp_path)


def test_what_is_not_there_is_said_in_one_sentence(tmp_path: Path) -> None:
    assert {d.name for d in data.describe(tmp_path) if d.here} == {
        "digits", "two-moons", "circles", "sine", "heteroscedastic"
    }  # fmt: skip
    with pytest.raises(PosterityError, match="did you mean 'fashion-mnist'"):
        data.load("fasion-mnist")
    with pytest.raises(PosterityError, match="no official address"):
        data.load("uci-boston", root=tmp_path)
    with pytest.raises(PosterityError, match="was not to be downloaded"):
        data.load("mnist", root=tmp_path, download=False)
    for option in ({"split": 1}, {"target": "y"}, {"task": "regression"}):
        with pytest.raises(PosterityError, match="means nothing for the data set 'digits'"):
            data.load("digits", **option)  # type: ignore[arg-type]


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTERITY_DATA", str(tmp_path))
    assert data.data_folder() == tmp_path
    fill_mnist(tmp_path / "fashion-mnist")
    assert data.load("fashion").classes == images.GARMENTS


def offline_remotes(source: Path) -> tuple[Remote, ...]:
    return tuple(Remote(p.as_uri(), hashlib.md5(p.read_bytes()).hexdigest()) for p in sorted(source.iterdir()))


def test_download_checks_and_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_mnist(tmp_path / "server")
    remotes = offline_remotes(tmp_path / "server")
    served = replace(registry.SOURCES["mnist"], fetch=lambda folder: images.fetch_all(remotes, folder))
    monkeypatch.setitem(registry.SOURCES, "mnist", served)
    root = tmp_path / "root"
    wrong = replace(
        served, fetch=lambda folder: images.fetch_all((remotes[0], replace(remotes[1], md5="0" * 32)), folder)
    )
    monkeypatch.setitem(registry.SOURCES, "mnist", wrong)
    with pytest.raises(PosterityError, match=f"expected {'0' * 32}; nothing was kept"):
        data.load("mnist", root=root)
    assert list(root.iterdir()) == []
    monkeypatch.setitem(registry.SOURCES, "mnist", served)
    assert len(data.load("mnist", root=root).training()[0]) == 20
    assert [path.name for path in root.iterdir()] == ["mnist"]
    assert len(list((root / "mnist").iterdir())) == 4


def test_no_network_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(url: str, timeout: float) -> None:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    for name in ("mnist", "cifar10", "sst2"):
        with pytest.raises(PosterityError, match=f"{name} is not in .* could not be downloaded: .*no network"):
            data.load(name, root=tmp_path)
    with pytest.raises(PosterityError):
        fetch(Remote("https://example.org/file", ""), tmp_path)
    assert list(tmp_path.iterdir()) == []
