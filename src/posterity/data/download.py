"""Fetching a set from its official address: checked against its published checksum, then renamed into place."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from posterity.types import PosterityError

_TIMEOUT = 20.0  # seconds without an answer


@dataclass(frozen=True)
class Remote:
    """One file on the network.

    Attributes:
        url: Its official address.
        md5: Its published checksum.
    """

    url: str
    md5: str


def fetch(remote: Remote, into: Path) -> Path:
    """Download one file into a folder; a file that is there is never a half one."""
    target = into / remote.url.rsplit("/", 1)[-1]
    into.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=into, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as part, urllib.request.urlopen(remote.url, timeout=_TIMEOUT) as answer:
            shutil.copyfileobj(answer, part)
        found = _md5(Path(name))
        if found != remote.md5:
            raise PosterityError(f"{remote.url} has the checksum {found}, expected {remote.md5}; nothing was kept")
        os.replace(name, target)
    except OSError as error:  # urllib's errors are OSErrors too
        raise PosterityError(f"{remote.url} could not be downloaded: {error}") from error
    finally:
        Path(name).unlink(missing_ok=True)
    return target


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
