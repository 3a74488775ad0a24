"""SST-2: film reviews, one sentence each, told apart as negative or positive.

The files hold text, tab, 0 or 1. Two layouts are known: three labelled files without header (sentences), and GLUE's,
with headers and a test file without labels; there the development file is the test.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch

from posterity.data.dataset import DataSet, Kind, Pair, Task
from posterity.data.download import Remote, fetch
from posterity.data.text import Vocabulary
from posterity.types import PosterityError

GLUE = Remote("https://dl.fbaipublicfiles.com/glue/data/SST-2.zip", "9f81648d4199384278b86e315dac217c")


def fetch_sst2(folder: Path) -> None:
    """Download GLUE's version."""
    archive = fetch(GLUE, folder)
    with zipfile.ZipFile(archive) as glue:
        for part in ("train", "dev", "test"):
            (folder / f"{part}.tsv").write_bytes(glue.read(f"SST-2/{part}.tsv"))
    archive.unlink()


def sst2(folder: Path) -> DataSet:
    """The sentences as word numbers, with a vocabulary of the training sentences."""
    train, dev, test = (_read(folder / f"{part}.tsv") for part in ("train", "dev", "test"))
    if train is None or dev is None:
        raise PosterityError(f"{folder} must hold train.tsv and dev.tsv with labelled sentences")
    vocabulary = Vocabulary.fit(train[0])

    def encoded(part: tuple[list[str], list[int]]) -> Pair:
        return vocabulary.encode(part[0]), torch.tensor(part[1], dtype=torch.int64)

    return DataSet(
        "sst2",
        Task.CLASSIFICATION,
        Kind.TEXT,
        train=encoded(train),
        test=encoded(dev if test is None else test),
        validation=None if test is None else encoded(dev),
        classes=("negative", "positive"),
        vocabulary=vocabulary,
    )


def _read(path: Path) -> tuple[list[str], list[int]] | None:
    """Sentences and labels; None for a file without labels (GLUE's test) or no file at all."""
    if not path.is_file():
        return None
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PosterityError(f"{path} cannot be read as text: {error}") from error
    header = lines[0].split("\t") if lines else []
    if header == ["index", "sentence"]:
        return None
    rows = lines[1:] if header == ["sentence", "label"] else lines
    sentences, labels = [], []
    for number, row in enumerate(rows, 1 + len(lines) - len(rows)):
        sentence, tab, label = row.rpartition("\t")
        if not tab or label not in ("0", "1"):
            raise PosterityError(f"{path}, line {number}: expected text, tab, 0 or 1, got {row[-40:]!r}")
        sentences.append(sentence)
        labels.append(int(label))
    return sentences, labels
