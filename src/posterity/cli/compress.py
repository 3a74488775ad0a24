"""``posterity compress``: a run folder → a smaller network on disk, and what became smaller."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer
from torch import Tensor

from posterity.cli.folder import RunFolder
from posterity.cli.show import console
from posterity.compression import CompressedNetwork, to_onnx, to_torch_export
from posterity.compression import compress as compress_posterior
from posterity.compression.criterion import accuracy
from posterity.data import DataSet, Task
from posterity.files import write_bytes
from posterity.types import PosterityError

_BATCH = 500
_HELD = 0.1

_WRITERS: dict[str, Callable[[CompressedNetwork, Tensor, Path], int]] = {
    ".onnx": to_onnx,
    ".pt2": to_torch_export,
    ".safetensors": lambda network, example, path: network.save(path),
}


def compress(
    run: Annotated[Path, typer.Argument(help="A run folder of `posterity fit`.")],
    out: Annotated[Path, typer.Option(help="A .onnx, .pt2 (torch.export) or .safetensors (sparse weights) file.")],
    threshold: Annotated[
        float | None, typer.Option(help="Prune weights of at least this log alpha: 3, unless the method has pruned.")
    ] = None,
    keep: Annotated[float | None, typer.Option(help="Keep this fraction of the weights.")] = None,
    max_drop: Annotated[
        float | None, typer.Option(help="Keep as few as lose at most this accuracy on a tenth of the training data.")
    ] = None,
    bits: Annotated[str | None, typer.Option(help="Bits a weight, or 'variance' for the posterior's own.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the figures to a .json file too.")] = None,
) -> None:
    """Prune a fitted posterior and write the smaller network."""
    if out.suffix not in _WRITERS:
        raise PosterityError(f"--out must end in {', '.join(_WRITERS)}, got {out.name}")
    folder = RunFolder(run)
    dataset = folder.dataset()
    if max_drop is not None and dataset.task != Task.CLASSIFICATION:
        raise PosterityError("--max-drop is an accuracy, and this run predicts numbers: give --keep or --threshold")
    test = _batches(dataset, dataset.test)
    # Test examples are counted, never chosen by.
    validation = test if max_drop is None else _batches(dataset, _last_training(dataset))
    small = compress_posterior(
        folder.posterior(),
        threshold=threshold,
        keep=keep,
        max_drop=max_drop,
        validation=validation,
        example=dataset.test[0][:2],
        bits=_bits(bits),
    )
    size = _WRITERS[out.suffix](small, dataset.test[0][:2], out)
    _show(small, out, size)
    if max_drop is not None and test is not None:
        console().print(f"accuracy on the test data: {accuracy(small, test):.2%}")
    if report is not None:
        write_bytes(report, small.compression.as_json().encode())


def _batches(dataset: DataSet, pair: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]] | None:
    """Inputs and labels in batches; None for a regression, which has no accuracy."""
    if dataset.task != Task.CLASSIFICATION:
        return None
    return list(zip(pair[0].split(_BATCH), pair[1].split(_BATCH), strict=True))


def _last_training(dataset: DataSet) -> tuple[Tensor, Tensor]:
    inputs, targets = dataset.training()
    count = max(1, round(_HELD * len(inputs)))
    return inputs[-count:], targets[-count:]


def _bits(text: str | None) -> int | Literal["variance"] | None:
    if text == "variance":
        return "variance"
    if text is not None and not text.isdigit():
        raise PosterityError(f"--bits takes a number or 'variance', got {text!r}")
    return None if text is None else int(text)


def _show(small: CompressedNetwork, out: Path, size: int) -> None:
    terminal = console()
    terminal.print(small.compression.table())
    for note in small.compression.notes:
        terminal.print(note)
    zeros = "" if out.suffix == ".safetensors" else ", zeros included, which a .safetensors file leaves out"
    terminal.print(f"saved in {out}: {size:,} bytes{zeros}")
