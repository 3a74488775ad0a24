"""Reading a .csv table: comma, semicolon or tab; with a header or without; numbers in, numbers or words out."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from posterity.types import PosterityError


def read_csv(path: Path, target: str | None = None) -> tuple[tuple[str, ...] | None, np.ndarray, np.ndarray]:
    """Names of the inputs (None without a header), inputs, float64 [N, D], and targets [N] (int64, float64 or text).

    Args:
        path: The file.
        target: The column to predict by its name in the header, or None for the last.
    """
    names, rows = _rows(path)
    if target is not None and target not in names:
        raise PosterityError(f"{path} has no column {target!r}: there are {', '.join(names) or 'only nameless ones'}")
    place = names.index(target) if target is not None else len(rows[0]) - 1
    if len(rows[0]) < 2:
        raise PosterityError(f"{path} has a single column, expected inputs and a target")
    columns = _columns(names, rows, path)
    labels = columns.pop(place)[1]
    return tuple(name for name, _ in columns) if names else None, _floats(columns, path), _targets(labels, path)


def read_inputs(path: Path, wanted: tuple[str, ...] | None = None) -> np.ndarray:
    """Inputs, float64 [N, D], of a table to predict; without rows, an empty array.

    Args:
        path: The file.
        wanted: The inputs by name, to be picked out of a table with a header; all columns as they come if it has none.
    """
    names, rows = _header(read_cells(path), wanted or ())
    if not rows:
        return np.zeros((0, 0))
    columns = _columns(names, rows, path)
    return _floats(_picked(columns, wanted, path) if names and wanted else columns, path)


def read_cells(path: Path) -> list[list[str]]:
    """The fields of every row that has any, a header included, all rows of one length."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise PosterityError(f"{path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise PosterityError(f"{path} cannot be read as text, save it as UTF-8: {error}") from error
    delimiter = max(",;\t", key=text.strip("\r\n ").partition("\n")[0].count)
    try:  # as one text: where a row ends depends on quotes
        found = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        rows = [row for fields in found if any(row := [field.strip() for field in fields])]
    except csv.Error as error:
        raise PosterityError(f"{path} cannot be read as a table: {error}") from error
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise PosterityError(f"{path}, row {number}: {len(row)} fields, but the first row has {len(rows[0])}")
    return rows


def is_number(field: str) -> bool:
    """Whether a field can be read as a number."""
    try:
        float(field)
    except ValueError:
        return False
    return True


def _header(rows: list[list[str]], wanted: tuple[str, ...] = ()) -> tuple[list[str], list[list[str]]]:
    """The names of the columns (none without header) and the rows below.

    A header has all names that are wanted, which may be numbers, or words where the row below has numbers; a first row
    of data has the same kinds as the second.
    """
    if not rows:
        return [], []
    first, *rest = rows
    below = rest[0] if rest else ["0"] * len(first)
    words = any(word and not is_number(word) and is_number(field) for word, field in zip(first, below, strict=True))
    named = bool(wanted) and set(wanted) <= set(first)
    return (first, rest) if words or named else ([], rows)


def _rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """Names and rows of a table that is long enough to learn from."""
    names, rows = _header(read_cells(path))
    if len(rows) < 2:
        raise PosterityError(f"{path} has {len(rows)} rows of data, expected at least two")
    return names, rows


def _columns(names: list[str], rows: list[list[str]], path: Path) -> list[tuple[str, np.ndarray]]:
    """Every column with its name, or its number where it has none; no two of the same name."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PosterityError(f"{path} has {names.count(twice)} columns called {twice!r}, expected one")
    titles = names or [str(i + 1) for i in range(len(rows[0]))]
    return [(title, np.array(column)) for title, column in zip(titles, zip(*rows, strict=True), strict=True)]


def _picked(columns: list[tuple[str, np.ndarray]], wanted: tuple[str, ...], path: Path) -> list[tuple[str, np.ndarray]]:
    """The columns of these names, in this order."""
    found = dict(columns)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise PosterityError(f"{path} has no column {missing[0]!r}: there are {', '.join(found)}")
    return [(name, found[name]) for name in wanted]


def _floats(columns: list[tuple[str, np.ndarray]], path: Path) -> np.ndarray:
    """The columns as numbers, side by side."""
    numbers = []
    for title, column in columns:
        try:
            numbers.append(column.astype(np.float64))
            fine = np.isfinite(numbers[-1])
        except ValueError:
            fine = np.array([is_number(field) for field in column])
        if not fine.all():
            wrong = int(fine.argmin())
            where = f"{path}, column {title}: {str(column[wrong])!r} in data row {wrong + 1}"
            raise PosterityError(f"{where} is no number")
    return np.stack(numbers, 1)


def _targets(column: np.ndarray, path: Path) -> np.ndarray:
    """The column as integers if it can be, else as floats, else as the text it is."""
    for dtype in (np.int64, np.float64):
        try:
            return column.astype(dtype)
        except (ValueError, OverflowError):
            continue
    # A hole in a column of numbers must not make a class of each of them.
    strange = [i for i, field in enumerate(column) if not is_number(field)]
    holes = [i for i in strange if not column[i]]
    if holes or (2 * len(strange) < len(column) and 2 * len(np.unique(column)) > len(column)):
        wrong = (holes or strange)[0]
        raise PosterityError(f"{path}, target column: {str(column[wrong])!r} in data row {wrong + 1} is no target")
    return column
