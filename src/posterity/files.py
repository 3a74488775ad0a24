"""Tensors and JSON in one safetensors file with a checksum, written whole or not at all; never pickle.

A nested state (dictionaries, lists, numbers, strings, tensors) becomes a flat table of tensors and a JSON skeleton that
points into it. The checksum covers both, so that a flipped byte anywhere is found before anything is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from posterity.types import PosterityError

__all__ = ["make_folder", "read_state", "write_bytes", "write_state"]

_TENSOR = "__tensor__"


def write_state(path: str | Path, state: Mapping[str, Any], kind: str) -> None:
    """Write a nested state to ``path`` through a temporary file beside it.

    Args:
        path: Where the file goes; an older one there is replaced only when the new one is complete.
        state: Nested dictionaries and lists of tensors and plain values.
        kind: What the file is (``"posterior"``, ``"checkpoint"``), checked when it is read.
    """
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_split(state, tensors, ""), sort_keys=True)
    metadata = {"posterity": kind, "state": skeleton, "checksum": _checksum(kind, skeleton, tensors)}
    with _replacing(Path(path)) as part:
        save_file(tensors, part, metadata=metadata)


def read_state(path: str | Path, kind: str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read what ``write_state`` wrote, or refuse the file in one sentence."""
    path = Path(path)
    if not path.is_file():
        raise PosterityError(f"there is no file {path}")
    metadata, tensors = _read(path)
    if metadata.get("posterity") != kind:
        raise PosterityError(
            f"{path} is not a posterity {kind} file, but {metadata.get('posterity', 'something else')}"
        )
    if metadata.get("checksum") != _checksum(kind, metadata.get("state", ""), tensors):
        raise PosterityError(f"{path} is damaged: its checksum does not fit its content")
    # Copied: a tensor that lies in the file begins anywhere, and with that some CPUs' products differ in the last bit.
    return _join(json.loads(metadata["state"]), {name: t.to(device, copy=True) for name, t in tensors.items()})


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of one and the same file: safetensors opens it twice, and it may be replaced in between."""
    before = path.stat().st_ino
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, ValueError) as error:
        if path.stat().st_ino != before:
            return _read(path)
        raise PosterityError(f"{path} is not a whole safetensors file ({error}); pickles are not read") from error
    return (metadata, tensors) if path.stat().st_ino == before else _read(path)


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a small file whole or not at all."""
    with _replacing(Path(path)) as part:
        part.write_bytes(content)


def make_folder(path: str | Path) -> None:
    """Make a folder, and see that it can be written to before hours go into what will be kept there."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise PosterityError(f"{path} cannot be written to: {error.strerror}") from error


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder that takes the final name on success and vanishes on failure."""
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        part = Path(name)
        yield part
        mask = os.umask(0)  # read it: mkstemp made the file for its owner alone
        os.umask(mask)
        part.chmod(0o666 & ~mask)
        os.replace(part, path)
    except (OSError, SafetensorError) as error:  # a file where a folder should be, no permission, a full disk
        raise PosterityError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def _split(value: Any, tensors: dict[str, Tensor], prefix: str) -> Any:
    """The JSON skeleton of ``value``; its tensors go into ``tensors``."""
    if isinstance(value, Tensor):
        tensors[prefix] = value.detach().cpu().contiguous().clone()  # a clone: safetensors refuses shared memory
        return {_TENSOR: prefix}
    if isinstance(value, Mapping):
        # JSON keys are strings: pairs keep the integer keys of optimizer states.
        return {"__pairs__": [[key, _split(item, tensors, f"{prefix}/{key}")] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [_split(item, tensors, f"{prefix}/{i}") for i, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    raise PosterityError(f"cannot store {prefix} of type {type(value).__name__} in a file")


def _join(skeleton: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(skeleton, dict):
        if _TENSOR in skeleton:
            return tensors[skeleton[_TENSOR]]
        return {key: _join(item, tensors) for key, item in skeleton["__pairs__"]}
    if isinstance(skeleton, list):
        return [_join(item, tensors) for item in skeleton]
    return skeleton


def _checksum(kind: str, skeleton: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(f"{kind}\n{skeleton}".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
