"""``posterity predict``: a run folder and raw inputs → labels or numbers with their uncertainty."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor

from posterity.cli.folder import RunFolder
from posterity.cli.show import table
from posterity.data import DataSet, Kind
from posterity.data.own import npz_inputs
from posterity.data.tables import read_inputs
from posterity.files import write_bytes
from posterity.prediction import Prediction, Regression
from posterity.types import PosterityError

_ROWS = 50
"""How many rows a table in the shell has at most."""
_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
"""What Pillow reads as numbers of known units: those of a .tiff can be any."""


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder of `posterity fit`.")],
    inputs: Annotated[Path, typer.Argument(help="A .npz (array x), a .csv, or a picture, in original units.")],
    out: Annotated[
        Path | None, typer.Option(help="Write a .csv or .json with all of them instead of a table of the first 50.")
    ] = None,
    draws: Annotated[int, typer.Option(help="Networks to average.")] = 32,
) -> None:
    """Predict raw inputs with uncertainty."""
    folder = RunFolder(run)
    if out is not None and out.suffix not in (".csv", ".json"):
        raise PosterityError(f"predictions are written as .csv or .json, got {out.suffix or 'no suffix'}")
    folder.config()
    dataset = folder.blank()
    x = _standardised(_read(inputs, dataset), dataset)
    prediction = folder.posterior(folder.device()).predict(x, draws=draws)
    rows = _rows(prediction, dataset, every_class=out is not None)
    if out is None:
        # Not those asked for: a single network has one, an ensemble its members.
        title = f"{len(x)} inputs, {prediction.draws} draws"
        title += f"; the first {_ROWS} are shown" if len(x) > _ROWS else ""
        table(title, list(rows[0]), [[_shown(v) for v in row.values()] for row in rows[:_ROWS]])
    elif out.suffix == ".json":
        write_bytes(out, json.dumps(rows, indent=1).encode())
    else:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        write_bytes(out, text.getvalue().encode())


def _read(path: Path, dataset: DataSet) -> np.ndarray:
    """Raw inputs from a file, at least one."""
    if not path.is_file():
        raise PosterityError(f"there is no file {path}")
    readers = {".npz": _npz, ".csv": _csv} | dict.fromkeys(_PICTURES, _picture)
    if path.suffix.lower() not in readers:
        raise PosterityError(f"inputs must be a {', '.join(readers)} file, got {path.name}")
    try:
        raw = np.asarray(readers[path.suffix.lower()](path, dataset))
    except PosterityError:
        raise  # which is a ValueError, and names the file
    except (OSError, ValueError) as error:
        raise PosterityError(f"cannot read {path}: {error}") from error
    if raw.dtype.kind not in "biuf" or not raw.size:
        raise PosterityError(f"{path} must hold inputs that are numbers, got {raw.dtype} {raw.shape}")
    return raw


def _npz(path: Path, dataset: DataSet) -> np.ndarray:
    return npz_inputs(path)


def _csv(path: Path, dataset: DataSet) -> np.ndarray:
    return read_inputs(path, dataset.columns)


def _picture(path: Path, dataset: DataSet) -> np.ndarray:
    from PIL import Image

    if dataset.kind != Kind.IMAGE:
        raise PosterityError(f"{path} is a picture, but this run was fitted to inputs of shape {dataset.shape}")
    channels, height, width = dataset.shape
    with Image.open(path) as read:
        deep = read.mode.startswith("I")  # one channel of 16 bits, of which Pillow would make all above 255 white
        if deep and channels == 4:
            raise PosterityError(f"{path} has one channel of 16 bits, this run was fitted to four of 8 bits")
        picture = read.convert("F" if deep else {1: "L", 4: "RGBA"}.get(channels, "RGB")).resize((width, height))
    pixels = np.asarray(picture, dtype=np.float32) * (_white(dataset) / (65535 if deep else 255))
    return np.broadcast_to(pixels.reshape(height, width, -1), (height, width, channels)).transpose(2, 0, 1)[None]


def _white(dataset: DataSet) -> int:
    """White in the units of the fit: 1, unless it was fitted to numbers up to 255 or 65535, as their mean shows."""
    mean = 0.0 if dataset.standardiser is None else float(dataset.standardiser.mean.max())
    return 1 if mean <= 1 else 255 if mean <= 255 else 65535


def _standardised(raw: np.ndarray, dataset: DataSet) -> Tensor:
    """Raw inputs as the network wants them."""
    if dataset.kind == Kind.TEXT:
        raise PosterityError("predict takes images and tables; text needs the Python interface")
    if raw.ndim == 4 and raw.shape[1:] == (*dataset.shape[1:], dataset.shape[0]) != dataset.shape:
        raw = raw.transpose(0, 3, 1, 2)  # channels last, as `data.load` takes them, too
    pixels = raw.dtype == np.uint8 and dataset.kind == Kind.IMAGE  # the bytes of a table are numbers like others
    # Doubles until they are standardised, as in training: a year or a time stamp has few digits left in a float32.
    x = torch.as_tensor(raw.astype(np.float64)) / (255 if pixels and _white(dataset) == 1 else 1)
    if x[0].numel() != int(np.prod(dataset.shape)):
        hint = "" if dataset.kind == Kind.IMAGE else ": a table to predict has no target column"
        raise PosterityError(f"inputs have shape {tuple(x.shape[1:])}, expected {dataset.shape}{hint}")
    x = x.reshape(-1, *dataset.shape)
    return (dataset.standardiser.apply(x) if dataset.standardiser is not None else x).float()


def _rows(prediction: Prediction, dataset: DataSet, every_class: bool) -> list[dict[str, object]]:
    """One dictionary an input, with classes by name (and the probability of each), numbers in original units."""
    columns = prediction.numpy()
    if isinstance(prediction, Regression):
        units = dataset.target_standardiser
        if units is not None:
            shift, scale = units.mean.numpy(), units.std.numpy()
            columns = {k: c * scale + (shift if k in ("mean", "low95", "high95") else 0) for k, c in columns.items()}
        targets = range(dataset.outputs)
        named = {(k, j): k if len(targets) == 1 else f"{k}_{j + 1}" for k in columns for j in targets}
        return [{name: float(columns[k][i].flat[j]) for (k, j), name in named.items()} for i in range(len(prediction))]
    probs = columns.pop("probs")
    names = dataset.classes or ()
    if every_class:
        columns |= {f"probs_{name}": probs[:, k] for k, name in enumerate(names)}
    return [
        {k: names[int(c[i])] if k == "label" else round(float(c[i]), 6) for k, c in columns.items()}
        for i in range(len(prediction))
    ]


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
