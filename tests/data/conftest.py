import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined]
    """Writes str and bytes as Python 2's str, as in the published files."""

    dispatch: ClassVar[dict[type, object]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_python2_str(self, text: str | bytes) -> None:
        raw = text.encode() if isinstance(text, str) else text
        self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)

    dispatch[str] = dispatch[bytes] = save_python2_str


def dump_python2(path: Path, batch: dict[str, Any]) -> None:
    with path.open("wb") as file:
        Python2Pickler(file, protocol=2).dump(batch)
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))
    assert b"cnumpy.core.multiarray\n_reconstruct\n" in path.read_bytes()


@pytest.fixture
def write_python2() -> Callable[[Path, dict[str, Any]], None]:
    """Writes a pickle as Python 2 and an old numpy did, which is how CIFAR-10 is published."""
    return dump_python2
