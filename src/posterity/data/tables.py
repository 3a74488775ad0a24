"""Reading a .csv table: comma, semicolon or tab; with a header or without; numbers in, numbers or words out."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from posterity.types import PosterityError


def read_csv(path: Path, target: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, float64 [N, D], and targets [N] (int64, float64 or text) of a table.

    Args:
        path: The file.
        target: The column to predict by its name in the header, or None for the last.
    """
    names, rows = _rows(path)
    if target is not None and target not in names:
        raise PosterityError(f"{path} has no column {target!r}: there are {', '.join(names) or 'only nameless ones'}")
    place = names.index(target) if target is not None else len(rows[0]) - 1
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    labels = columns.pop(place)
    if not columns:
        raise PosterityError(f"{path} has a single column, expected inputs and a target")
    titles = [name for i, name in enumerate(names or [str(i + 1) for i in range(len(rows[0]))]) if i != place]
    x = np.stack([_floats(column, title, path) for title, column in zip(titles, columns, strict=True)], 1)
    return x, _targets(labels, path)


def read_cells(path: Path) -> list[list[str]]:
    """The fields of every row, a header included, all rows of one length."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PosterityError(f"{path} cannot be read as text: {error}") from error
    lines = [line for line in text.splitlines() if line.strip()]
    delimiter = max(",;\t", key=lines[0].count) if lines else ","
    try:
        rows = [[field.strip() for field in row] for row in csv.reader(lines, delimiter=delimiter)]
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


def _rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """The names of the columns (none without header) and the rows below."""
    rows = read_cells(path)
    # A header has words where the row below has numbers; a first row of data has the same kinds as the second.
    header = len(rows) > 1 and any(not is_number(a) and is_number(b) for a, b in zip(*rows[:2], strict=True))
    names, rows = (rows[0], rows[1:]) if header else ([], rows)
    if len(rows) < 2:
        raise PosterityError(f"{path} has {len(rows)} rows of data, expected at least two")
    return names, rows


def _floats(column: np.ndarray, title: str, path: Path) -> np.ndarray:
    try:
        return column.astype(np.float64)
    except ValueError:
        wrong = next(i for i, field in enumerate(column) if not is_number(field))
        raise PosterityError(
            f"{path}, column {title}: {str(column[wrong])!r} in data row {wrong + 1} is no number"
        ) from None


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
