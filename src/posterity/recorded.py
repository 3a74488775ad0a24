"""Work on a GPU, recorded once and replayed: launching a small network's kernels takes longer than running them."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only

from posterity.calling import nested_tensors

__all__ = ["Recorded"]

_log = logging.getLogger("posterity")


class Recorded:
    """A function of a batch, replayed on batches of the same shape; its other tensors must keep their place in memory.

    The first call runs as it is, so that libraries have made their choices; the second is recorded. What cannot be
    recorded (a forward pass that waits for the device), and batches of another shape, run as they are: the numbers are
    the same either way. What a replay returns lies where the next one will write.

    Args:
        work: The function; of anything made of tensors, to anything made of them.
        generators: What it draws from, besides torch's own generator.
    """

    def __init__(self, work: Callable[[Any], Any], generators: Sequence[torch.Generator] = ()) -> None:
        self.work, self.generators = work, generators
        self.batch: Any = None  # our own copy, of this kind, which a replay reads
        self.kind: tuple[object, ...] = ()
        self.output: Any = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.refused = ""  # why it cannot be recorded, once that is known

    def __call__(self, batch: Any) -> Any:
        """Do the work on this batch."""
        if self.batch is None:
            self.batch = tree_map_only(Tensor, torch.clone, batch)
            self.kind = _kind(batch)
        elif not self.refused and _kind(batch) == self.kind:
            for own, new in zip(nested_tensors(self.batch), nested_tensors(batch), strict=True):
                own.copy_(new)
            if self.graph is None:
                self._record()
            if self.graph is not None:
                self.graph.replay()
                return self.output
        return self.work(batch)

    def _record(self) -> None:
        try:
            self.graph, self.output = self._capture(lambda: self.work(self.batch))
        except RuntimeError as error:
            self.refused = str(error).splitlines()[0]
            _log.info("this network cannot be recorded (%s), so its passes are launched one by one", self.refused)
            # Torch's generators still wait for the end of the recording that failed; one that succeeds tells them.
            self._capture(lambda: torch.zeros(1, device="cuda"))

    def _capture(self, work: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        with _no_collection(), torch.cuda.graph(graph):
            output = work()
        return graph, output


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without Python's collector: a graph of an earlier fit that it frees during a recording spoils that."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _kind(batch: Any) -> tuple[object, ...]:
    """What two batches must share for one recording to serve both: structure, shapes and types."""
    leaves, structure = tree_flatten(batch)
    return structure, *((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
