"""The gradients of a training step, replayed on a GPU as one piece of work (``Training(record=True)``).

A step of a small network is a hundred short kernels, and launching each takes longer than running it. A CUDA graph
launches them together. It repeats what it has seen, so numbers that the host works out are frozen in it: the shapes,
the temperature and the phase of the run. A step that differs in one of them is of another kind, and is recorded anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from posterity.recorded import Recorded
from posterity.run import Run
from posterity.types import Batch, PosterityError

__all__ = ["RecordedGradients"]

Found = tuple[Tensor, Tensor | int, int]
"""The loss of a step, how many labels were predicted correctly, and how many were predicted."""


class RecordedGradients:
    """Leaves the same gradients behind as the function that it records.

    Args:
        run: Whose parameters get gradients.
        gradients: ``(batch, size of the whole batch)`` → what was found, with the backward passes done.
    """

    def __init__(self, run: Run, gradients: Callable[[Batch, float], Found]) -> None:
        self.run, self.gradients = run, gradients
        self.parameters = [*run.trained, *(run.noise.parameters() if run.noise is not None else ())]
        self.pace: tuple[object, ...] = ()
        self.sizes: dict[tuple[float, int], Recorded] = {}

    def __call__(self, batch: Batch, size: float) -> Found:
        """The gradients of one step."""
        pace = self.run.temperature, self.run.phase
        if pace != self.pace:
            self.pace, self.sizes = pace, {}
        streams = self.run.streams
        kind = size, len(batch.targets)
        if kind not in self.sizes:
            # Not a method of this object: it and the recording would hold each other, and their GPU memory would be
            # free only when Python's garbage collector comes by.
            work = partial(_work, self.run, self.parameters, self.gradients, size)
            self.sizes[kind] = Recorded(work, (streams.shared, streams.local))
        recorded = self.sizes[kind]
        found, gradients, self.run.entries = recorded(batch)
        if recorded.refused:
            raise PosterityError(f"a step of this network cannot be recorded ({recorded.refused}): leave record out")
        for p, gradient in zip(self.parameters, gradients, strict=True):
            p.grad = gradient  # the optimizer let go of it after the last step; a replay has filled it again
        return found


def _work(
    run: Run, parameters: list[Tensor], gradients: Callable[[Batch, float], Found], size: float, batch: Batch
) -> tuple[Found, list[Tensor | None], int]:
    """What is recorded: the gradients of one batch, from none."""
    for p in parameters:
        p.grad = None
    found = gradients(batch, size)
    return found, [p.grad for p in parameters], run.entries
