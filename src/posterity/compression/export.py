"""Networks for other runtimes: ONNX, and torch.export's own format; each read back and compared before it is kept.

A file appears only when it was written whole and gives the network's own outputs.
"""

from __future__ import annotations

import importlib.util
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posterity import calling
from posterity.compression.layers import with_plain_layers
from posterity.compression.outputs import pairs
from posterity.compression.speed import rows
from posterity.files import write_bytes
from posterity.types import Inputs, PosterityError

__all__ = ["to_onnx", "to_torch_export"]

_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def to_onnx(module: nn.Module, example: Inputs, path: str | Path, tolerance: float = 1e-5) -> int:
    """Write an ONNX file, after onnxruntime has given the same outputs from it.

    Args:
        module: The network; layers of this package are written as the ordinary ones.
        example: Inputs to trace and compare with; the batch stays free.
        path: Where the file goes.
        tolerance: The largest difference allowed, relative to outputs above one.

    Returns:
        The size of the file in bytes.
    """
    return write_onnx(module, example, path, tolerance)


def write_onnx(
    module: nn.Module, example: Inputs, path: str | Path, tolerance: float, outputs: tuple[str, ...] | None = None
) -> int:
    """As ``to_onnx``, for a network of one output or of several with names."""
    missing = [name for name in _ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise PosterityError(f"ONNX export needs {missing[0]}, which is not installed: pip install {' '.join(missing)}")
    network, example = _ready(module, example)
    args, kwargs = calling.arguments(example)
    with tempfile.TemporaryDirectory() as folder, _quiet():
        part = Path(folder) / "network.onnx"
        program = _program(network, args, kwargs)
        if outputs is not None:
            _name_outputs(program.model.graph, outputs)
        program.save(str(part), external_data=False)
        content = part.read_bytes()
    _compare(network, example, lambda inputs: _run_onnx(content, inputs), tolerance, "onnxruntime")
    write_bytes(path, content)
    return len(content)


def to_torch_export(module: nn.Module, example: Inputs, path: str | Path, tolerance: float = 1e-5) -> int:
    """Write a torch.export program (``.pt2``), after it was read back and gave the same outputs.

    Args:
        module: The network; layers of this package are written as the ordinary ones.
        example: Inputs to trace and compare with; the batch stays free.
        path: Where the file goes.
        tolerance: The largest difference allowed, relative to outputs above one.

    Returns:
        The size of the file in bytes.
    """
    network, example = _ready(module, example)
    args, kwargs = calling.arguments(example)
    with tempfile.TemporaryDirectory() as folder, _quiet():
        part = Path(folder) / "network.pt2"
        try:
            program = torch.export.export(network, args, kwargs, dynamic_shapes=_free_batch(args, kwargs))
        except Exception as error:  # of kinds that have no common class
            reason = str(error).strip().partition("\n")[0]
            raise PosterityError(f"torch cannot export {type(network).__name__} for any batch: {reason}") from error
        torch.export.save(program, part)
        loaded = torch.export.load(part).module()
        _compare(network, example, lambda inputs: calling.call(loaded, inputs), tolerance, "torch.export")
        content = part.read_bytes()
    write_bytes(path, content)
    return len(content)


def _ready(module: nn.Module, example: Inputs) -> tuple[nn.Module, Inputs]:
    """A copy on the CPU made of torch's own layers, and a batch of three: 0 and 1 are special to exporters."""
    network = with_plain_layers(module).eval().cpu()
    return network, calling.map_inputs(rows(example, 3), lambda tensor: tensor.cpu())


def _free_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The first dimension of every tensor may be of any size."""
    batch = torch.export.Dim("batch")
    positional = tuple({0: batch} if isinstance(value, Tensor) else None for value in args)
    named = {name: {0: batch} if isinstance(value, Tensor) else None for name, value in kwargs.items()}
    return named if kwargs else positional


def _program(network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What torch's exporter makes of a network, or one sentence instead of its pages."""
    free = _free_batch(args, kwargs)
    try:
        return torch.onnx.export(network, args, kwargs=kwargs, dynamo=True, dynamic_shapes=free, verbose=False)
    except torch.onnx.OnnxExporterError as error:
        cause = str(error.__cause__ or error).strip().partition("\n")[0]
        raise PosterityError(f"torch cannot write {type(network).__name__} as ONNX: {cause}") from error


def _name_outputs(graph: Any, names: tuple[str, ...]) -> None:
    """Give the outputs their names, and all values before them others: the exporter calls many a sum ``mean``."""
    for node in graph:
        for value in node.outputs:
            value.name = f"inner_{value.name}"
    for value, name in zip(graph.outputs, names, strict=True):
        value.name = name


def _run_onnx(content: bytes, inputs: Inputs) -> list[Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its kinds of errors have no common class: an operation that it lacks in double, say
        reason = str(error).partition("\n")[0]
        raise PosterityError(
            f"onnxruntime cannot run the network, which may go in single precision: {reason}"
        ) from error
    tensors = calling.tensors_of(inputs)
    named = {slot.name: tensor.numpy() for slot, tensor in zip(session.get_inputs(), tensors, strict=True)}
    return [torch.from_numpy(result) for result in session.run(None, named)]


def _compare(network: nn.Module, example: Inputs, run: Any, tolerance: float, name: str) -> None:
    """Refuse a file whose outputs are not the network's, at the example's batch size and at another."""
    for count in (3, 5):
        inputs = rows(example, count)
        with torch.no_grad():
            expected = calling.call(network, inputs)
            try:
                both = pairs(run(inputs), expected)
            except PosterityError:
                raise
            except Exception as error:  # of kinds that have no common class: a size that was taken to be fixed, say
                reason = str(error).strip().partition("\n")[0]
                raise PosterityError(f"{name} cannot run the network on {count} inputs at once: {reason}") from error
        worst = max(float((distances / sizes.clamp(min=1)).max()) for distances, sizes in both)
        if not worst <= tolerance:
            raise PosterityError(f"{name} gives outputs that differ by {worst:.2g}, expected at most {tolerance:g}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' deprecations and log lines, which say nothing about this network."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
