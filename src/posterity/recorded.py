"""Work on a GPU, recorded once and replayed: launching a small network's kernels takes longer than running them."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from posterity.calling import InputSpec, map_inputs, num_examples, tensors_of
from posterity.types import Inputs

__all__ = ["Recorded"]

_log = logging.getLogger("posterity")


class Recorded:
    """A function of a batch, replayed on inputs of the same shape; all else that it reads must stay where it lies.

    The first call runs as it is, so that libraries have made their choices; the second is recorded. What cannot be
    recorded (a forward pass that waits for the device), and inputs of another shape, run as they are: the numbers are
    the same either way.
    """

    def __init__(self, work: Callable[[Inputs], Tensor | None]) -> None:
        self.work = work
        self.inputs: Inputs | None = None
        self.output: Tensor | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.refused = False

    def __call__(self, inputs: Inputs) -> Tensor | None:
        """Do the work on these inputs; what it returns is the caller's own."""
        if self.inputs is None:
            self.inputs = map_inputs(inputs, torch.clone)
        elif not self.refused and InputSpec.of(inputs) == InputSpec.of(self.inputs) and self._same_length(inputs):
            for own, new in zip(tensors_of(self.inputs), tensors_of(inputs), strict=True):
                own.copy_(new)
            if self.graph is None:
                self._record()
            if self.graph is not None:
                self.graph.replay()
                return None if self.output is None else self.output.clone()
        return self.work(inputs)

    def _same_length(self, inputs: Inputs) -> bool:
        return num_examples(inputs) == num_examples(self.inputs)

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.output = self.work(self.inputs)
        except RuntimeError as error:
            _log.info("this network cannot be recorded (%s), so its passes are launched one by one", error)
            self.refused = True
        else:
            self.graph = graph
