import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from posterity import data
from posterity.data import Kind, Task
from posterity.data.tables import read_csv
from posterity.types import PosterityError

RNG = np.random.default_rng(0)


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def npz(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return str(path)


def test_npz_with_x_and_y_is_split_and_standardised(tmp_path: Path) -> None:
    x, y = RNG.normal(3, 2, (50, 4)), np.arange(50) % 3
    own = data.load(npz(tmp_path / "own.npz", x=x, y=y))
    assert (own.task, own.kind, own.classes) == (Task.CLASSIFICATION, Kind.TABULAR, ("0", "1", "2"))
    assert (len(own.training()[0]), len(own.test[0])) == (40, 10)
    assert own.standardiser is not None
    back = torch.cat([own.standardiser.invert(own.training()[0]), own.standardiser.invert(own.test[0])])
    np.testing.assert_allclose(np.sort(back.numpy(), 0), np.sort(x, 0), atol=1e-5)
    # The rows are still with their labels.
    rows = {tuple(np.round(row, 3)): label for row, label in zip(x, y, strict=True)}
    for row, label in zip(own.standardiser.invert(own.test[0]).numpy(), own.test[1], strict=True):
        near = min(rows, key=lambda r: np.abs(np.array(r) - row).sum())
        assert rows[near] == label
    other = data.load(npz(tmp_path / "own.npz", x=x, y=y), seed=1)
    assert not torch.equal(own.test[1], other.test[1]) or not torch.equal(own.test[0], other.test[0])


@pytest.mark.parametrize(
    "names",
    [
        ("x_train", "y_train", "x_test", "y_test"),
        ("X_train", "y_train", "X_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("inputs_train", "targets_train", "inputs_test", "targets_test"),
    ],
)
def test_npz_with_its_own_parts(tmp_path: Path, names: tuple[str, ...]) -> None:
    images = RNG.integers(0, 256, (12, 6, 5, 3)).astype(np.uint8)
    arrays = dict(zip(names, (images[:8], np.arange(8) % 2, images[8:], np.arange(4) % 2), strict=True))
    own = data.load(npz(tmp_path / "own.npz", **arrays))
    assert own.kind == Kind.IMAGE and own.shape == (3, 6, 5)
    assert own.standardiser is not None
    np.testing.assert_allclose(
        own.standardiser.invert(own.test[0]).numpy(), images[8:].transpose(0, 3, 1, 2) / 255, atol=1e-6
    )


@pytest.mark.parametrize(("last", "first"), [(1, 6), (3, 4), (3, 6), (4, 6)])
def test_channels_that_lie_last_are_found(tmp_path: Path, last: int, first: int) -> None:
    """Pictures with transparency have four; they were taken for images of as many channels as rows."""
    images = RNG.integers(0, 256, (10, first, 5, last)).astype(np.uint8)
    layouts = {"last": images, "first": images.transpose(0, 3, 1, 2)}
    one, two = (data.load(npz(tmp_path / f"{n}.npz", x=x, y=np.arange(10) % 2)) for n, x in layouts.items())
    assert one.shape == (last, first, 5) and torch.equal(one.training()[0], two.training()[0])


def test_npz_with_x_and_y_beside_a_test_part(tmp_path: Path) -> None:
    x, y = np.arange(40.0)[:, None], np.arange(40) % 2
    np.savez(tmp_path / "own.npz", x=x[:30], y=y[:30], x_test=x[30:], y_test=y[30:])
    found = data.load(str(tmp_path / "own.npz"))
    assert len(found.training()[0]) == 30 and found.standardiser is not None
    torch.testing.assert_close(found.standardiser.invert(found.test[0])[:, 0], torch.arange(30.0, 40.0))


def test_suffixes_in_capitals_and_classes_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "OWN.CSV").write_text("a,b\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    assert data.load(str(tmp_path / "OWN.CSV")).classes == ("0", "1")
    np.savez(tmp_path / "own.npz", x=np.arange(20.0), y=np.array([b"cat", b"dog"] * 10))
    (tmp_path / "own.npz").rename(tmp_path / "OWN.NPZ")
    assert data.load(str(tmp_path / "OWN.NPZ")).classes == ("cat", "dog")


def test_csv_with_header_and_named_target(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", "price,rooms,area\n1.5,2,30\n2.5,3,40\n9.5,1,20\n4.0,2,35\n3,3,50\n")
    names, x, y = read_csv(Path(path), "price")
    assert names == ("rooms", "area")
    assert x.tolist() == [[2, 30], [3, 40], [1, 20], [2, 35], [3, 50]] and y.tolist() == [1.5, 2.5, 9.5, 4.0, 3.0]
    own = data.load(path, target="price")
    assert own.task == Task.REGRESSION and own.kind == Kind.TABULAR and own.test[1].shape == (1, 1)
    assert own.target_standardiser is not None
    assert own.target_standardiser.invert(own.test[1]).item() == pytest.approx(
        dict(zip(x[:, 1], y, strict=True))[round(own.standardiser.invert(own.test[0])[0, 1].item())]  # type: ignore[union-attr]
    )


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_csv_without_header_and_with_words(tmp_path: Path, mark: str) -> None:
    rows = [mark.join([str(i), str(-i / 2), "cat" if i % 2 else "dog"]) for i in range(10)]
    path = write(tmp_path / "own.csv", "\n".join(rows))
    own = data.load(path)
    assert own.classes == ("cat", "dog") and own.kind == Kind.PLANE
    assert own.standardiser is not None
    for part in (own.training(), own.test):
        i = own.standardiser.invert(part[0])[:, 0].round().long()
        assert torch.equal(part[1], 1 - i % 2)


def test_rows_of_a_csv_end_where_its_quotes_let_them(tmp_path: Path) -> None:
    """Not at every character that ends a line somewhere: rows were torn apart, or words joined."""
    names = ('"two\nlines"', "a\x0cpage", "a\u2028line", '"x, y"')
    rows = [f"{i},{i / 2},{name}" for i in range(3) for name in names]
    for end in ("\n", "\r\n"):
        path = tmp_path / "own.csv"
        path.write_bytes(end.join(["", "a,b,kind", *rows, "  ", ""]).encode())
        header, x, y = read_csv(path)
        assert header == ("a", "b") and x.shape == (12, 2)
        assert y.tolist() == ["two\nlines", "a\x0cpage", "a\u2028line", "x, y"] * 3


@pytest.mark.parametrize(
    ("targets", "task"),
    [
        (np.arange(40) % 5, Task.CLASSIFICATION),
        (np.arange(40) % 2 == 0, Task.CLASSIFICATION),
        (np.array(["a", "b"] * 20), Task.CLASSIFICATION),
        (np.arange(40), Task.REGRESSION),  # integers, but every one another
        ((np.arange(40) % 5).astype(float), Task.REGRESSION),
        (RNG.normal(size=(40, 2)), Task.REGRESSION),
    ],
)
def test_the_task_is_found(tmp_path: Path, targets: np.ndarray, task: Task) -> None:
    own = data.load(npz(tmp_path / "own.npz", x=RNG.normal(size=(40, 3)), y=targets))
    assert own.task == task


def test_the_task_can_be_told(tmp_path: Path) -> None:
    x = RNG.normal(size=(40, 3))
    whole = npz(tmp_path / "a.npz", x=x, y=(np.arange(40) % 5).astype(float))
    assert data.load(whole, task="classification").outputs == 5
    assert data.load(npz(tmp_path / "b.npz", x=x, y=np.arange(40) % 5), task=Task.REGRESSION).outputs == 1
    broken = npz(tmp_path / "c.npz", x=x, y=np.arange(40) / 2)
    with pytest.raises(PosterityError, match="one whole number or word per example"):
        data.load(broken, task="classification")
    rows = npz(tmp_path / "d.npz", x=x, y=np.eye(5)[np.arange(40) % 5])
    with pytest.raises(PosterityError, match="one whole number or word per example"):
        data.load(rows)  # one-hot rows were five numbers to predict
    assert data.load(rows, task="regression").outputs == 5
    with pytest.raises(PosterityError, match="task must be one of classification, regression, got 'ranking'"):
        data.load(broken, task="ranking")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "0 rows"),
        ("a,b\n", "rows"),
        ("1,2\n1,2,3\n", "row 2: 3 fields, but the first row has 2"),
        ("a,b\n1,2\n,3\n", "column a: '' in data row 2 is no number"),
        ("a,b\n1,2\nNaN,3\n", "column a: 'NaN' in data row 2 is no number"),
        ("a,b\n-inf,2\n1,3\n", "column a: '-inf' in data row 1 is no number"),
        ("red,1\n3,2\nblue,1\n", "'red' in data row 1|'blue' in data row 2"),
        ("1\n2\n3\n", "single column"),
        ("a,a,b\n1,2,3\n4,5,6\n", "has 2 columns called 'a', expected one"),
        ("a,price\n1,2.5\n2,\n3,4.5\n", "target column: '' in data row 2 is no target"),
        ("a,price\n1,2.5\n2,NA\n3,4.5\n", "target column: 'NA' in data row 2 is no target"),
        ("a,kind\n1,red\n2,\n3,blue\n", "target column: '' in data row 2 is no target"),
        (f"a,b\n1,2\n{'1' * 200_000},3\n", "cannot be read as a table"),
    ],
)
def test_bad_csv_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(PosterityError, match=says):
        data.load(write(tmp_path / "bad.csv", text))


def test_words_among_few_numbers_are_classes(tmp_path: Path) -> None:
    rows = "\n".join(f"{i},{'unknown' if i % 5 == 0 else i % 2}" for i in range(40))
    assert data.load(write(tmp_path / "a.csv", f"a,b\n{rows}")).classes == ("0", "1", "unknown")
    huge = "\n".join(f"{i},{10**30 + i}" for i in range(40))
    assert data.load(write(tmp_path / "b.csv", f"a,b\n{huge}")).task == Task.REGRESSION


def test_other_bad_files_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PosterityError, match="there is no file"):
        data.load(str(tmp_path / "gone.npz"))
    with pytest.raises(PosterityError, match="has no column 'z': there are a, b"):
        data.load(write(tmp_path / "a.csv", "a,b\n1,2\n3,4\n"), target="z")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(PosterityError, match="cannot be read as text, save it as UTF-8"):
        data.load(str(tmp_path / "binary.csv"))
    x = RNG.normal(size=(10, 3))
    for arrays, says in (
        ({"a": x}, "holds a, expected x and y"),
        ({"x": x, "y": np.zeros(9)}, "10 inputs and 9 targets"),
        ({"x": 1.0, "y": 2.0}, "1 inputs and 1 targets"),
        ({"x": x[:, :0], "y": np.zeros(10)}, r"inputs must be numbers .* got float64 \(8, 0\)"),
        ({"x_train": x, "y_train": x, "x_test": x[:, :2], "y_test": x}, "training and test inputs differ in shape"),
        ({"x_train": x, "y_train": x, "x_test": x, "y_test": x[:, 0]}, "training and test targets differ in shape"),
        ({"x_train": x, "y_train": x, "x_test": x[:0], "y_test": x[:0]}, r"inputs must be numbers .* \(0, 3\)"),
        ({"x": np.where(x > 1, np.nan, x) * np.inf, "y": np.zeros(10)}, "inputs hold NaN"),
        ({"x": x, "y": np.full(10, np.nan)}, "targets hold NaN"),
        ({"x": x, "y": np.zeros(10, int)}, "at least two classes, got only 0"),
        ({"x": np.array(["a"] * 10), "y": np.zeros(10)}, "inputs must be numbers"),
        ({"x": np.zeros((10, 1, 1, 1, 1)), "y": np.zeros(10)}, "1 to 4 dimensions"),
        ({"x": x, "y": np.zeros(10, complex)}, "targets must be numbers or text"),
    ):
        with pytest.raises(PosterityError, match=says):
            data.load(npz(tmp_path / "bad.npz", **arrays))
    with pytest.raises(PosterityError, match="a regression needs numbers"):
        data.load(npz(tmp_path / "bad.npz", x=x, y=np.array(["a", "b"] * 5)), task="regression")
    with pytest.raises(PosterityError, match=r"names a column of a \.csv"):
        data.load(npz(tmp_path / "bad.npz", x=x, y=np.zeros(10)), target="y")


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("own_data_module")
    monkeypatch.setitem(sys.modules, "own_data_module", module)
    return module


def test_a_function_with_tensors_or_loaders(own_module: ModuleType) -> None:
    x, y = torch.randn(10, 3), torch.tensor([0, 2] * 5)
    own_module.tensors = lambda: ((x[:6], y[:6]), (x[6:].numpy(), y[6:].numpy()))  # type: ignore[attr-defined]
    own_module.loaders = (
        lambda: (  # type: ignore[attr-defined]
            DataLoader(TensorDataset(x[:6], y[:6]), batch_size=4),
            DataLoader(TensorDataset(x[6:], y[6:]), batch_size=3),
        )
    )
    for name in ("tensors", "loaders"):
        own = data.load(f"own_data_module:{name}")
        assert torch.equal(own.training()[0], x[:6]) and torch.equal(own.test[0], x[6:])  # as it came
        assert own.training()[1].tolist() == [0, 2] * 3 and own.classes == ("0", "1", "2")
        assert own.standardiser is None
    own_module.real = lambda: ((x, x[:, 0]), (x, x[:, 0]))  # type: ignore[attr-defined]
    own_module.words = lambda: ((y[:, None], y), (y[:, None], y))  # type: ignore[attr-defined]
    own = data.load("own_data_module:words")
    assert own.kind == Kind.TEXT and own.training()[0].dtype == torch.int64
    own = data.load("own_data_module:real")
    assert own.task == Task.REGRESSION and own.training()[1].shape == (10, 1)


def test_a_bad_function_is_one_sentence(own_module: ModuleType) -> None:
    own_module.one = lambda: torch.zeros(3)  # type: ignore[attr-defined]
    own_module.text = lambda: ("ab", "cd")  # type: ignore[attr-defined]
    own_module.value = 3  # type: ignore[attr-defined]
    empty, x = torch.zeros(0, 3), torch.zeros(2, 3)
    own_module.empty = lambda: ((empty, empty[:, 0].long()),) * 2  # type: ignore[attr-defined]
    own_module.nan = lambda: ((x, x[:, 0] / 0),) * 2  # type: ignore[attr-defined]
    own_module.halves = lambda: ((x, x[:, 0] + 0.5),) * 2  # type: ignore[attr-defined]
    with pytest.raises(PosterityError, match="whole numbers"):
        data.load("own_data_module:halves", task="classification")
    for name, says in (
        ("own_data_module:one", r"must return \(train, test\), got Tensor"),
        ("own_data_module:text", "must give"),
        ("own_data_module:value", "is a int, expected a function"),
        ("own_data_module:empty", "got 0 and 0"),
        ("own_data_module:nan", "targets hold NaN"),
        ("own_data_module:gone", "cannot be imported"),
        ("no_such_module_at_all:f", "cannot be imported"),
    ):
        with pytest.raises(PosterityError, match=says):
            data.load(name)


def test_a_row_with_a_hole_is_no_header(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i + 1},{i + 2}\n" for i in range(20))
    with pytest.raises(PosterityError, match="column 2: '' in data row 1 is no number"):
        data.load(write(tmp_path / "own.csv", "1,,3\n" + rows))


def test_a_target_that_two_columns_are_called_is_refused(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i + 1},{i + 2}\n" for i in range(20))
    with pytest.raises(PosterityError, match="2 columns called 'a'"):
        data.load(write(tmp_path / "own.csv", "a,a,b\n" + rows), target="a")


def test_columns_too_large_to_square_are_refused(tmp_path: Path) -> None:
    x = RNG.normal(size=(50, 2)) * np.array([1, 1e200])
    with pytest.raises(PosterityError, match=r"values up to .*e\+200 are too large to be standardised"):
        data.load(npz(tmp_path / "own.npz", x=x, y=np.arange(50) % 2))


def test_a_function_in_a_broken_file_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module.py").write_text("def load(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PosterityError, match=r"cannot be imported .* \(broken_module\.py, line 1\)"):
        data.load("broken_module:load")
