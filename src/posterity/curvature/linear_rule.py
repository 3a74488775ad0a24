"""Linear maps y = W u + b, applied once or many times in a pass: the gradient and its per-example square.

With d the gradient that reaches an example's output and u the input at position t,

    weight: (Σ_t d_t u_tᵀ)²        bias: (Σ_t d_t)²

Positions are those of a sequence, and the uses of one weight: by a recurrent network at every step, by a layer that is
called twice. All of them add up before anything is squared, so squares are taken where the uses meet, at the parameter,
which the backward pass reaches when it has been through every use. ``outer`` says how they are summed over examples,
and the same products give the ordinary gradient.

Squares are taken of gradients times 2³⁰. The gradients of a confident classifier reach down to 1e-20, and their squares
would be denormal numbers, with which a CPU multiplies ten times slower; a power of two costs no digits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from posterity.curvature.outer import add_moments, examples_at_once
from posterity.curvature.sink import SECOND_BATCH, Forward, Sink
from posterity.types import PosterityError

LIFT = 2.0**30
_ANY_CALL = object()  # what all uses of a linear map report as their call, of which there may be many

Use = tuple[Tensor, Tensor]
"""The input of one use, and the gradient that reached its output."""


def linear(module: nn.Linear, original: Forward, sink: Sink) -> Forward:
    """Linear layers, with any dimensions between the batch and the features."""
    own = LinearMap(sink)
    return lambda x: own(x, module.weight, module.bias)


class LinearMap:
    """A weight and a bias of a layer, and every use of them in a pass.

    Args:
        sink: Of the layer.
        weight: The weight's name in it.
        bias: The bias's name, whether or not there is one.
    """

    def __init__(self, sink: Sink, weight: str = "weight", bias: str = "bias") -> None:
        names = {"weight": weight, "bias": bias}
        sums = {own: sink.sums[name] for own, name in names.items() if name in sink.sums}
        self.sink = Sink(sink.label, sums, sink.shared)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """W x + b."""
        if x.dim() < 2:
            message = f"{self.sink.label} got a single vector, and squared gradients need a batch of examples"
            raise PosterityError(message)
        if not self.sink.sums or not torch.is_grad_enabled():
            return F.linear(x, weight, bias)
        given, *met = self.sink.shared.once(self, lambda: self._met(weight, bias))
        if given is not weight:
            raise PosterityError(f"{self.sink.label} was used with different weights in one pass")
        late = self.sink.label in self.sink.shared.reported  # a backward pass has been here
        return _Use.apply(x, *met, late)  # type: ignore[no-any-return]

    def _met(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, list[Use]]:
        uses: list[Use] = []
        return weight, *_Meeting.apply(weight, bias, self.sink, uses), uses


class _Use(torch.autograd.Function):
    """One use of the map: passes the gradient on to its input, and leaves (input, output gradient) for ``_Meeting``."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, uses: list[Use], late: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.uses, ctx.late = uses, late
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if ctx.late:  # its examples are others, and the loss of each batch is another mean
            raise PosterityError(SECOND_BATCH)
        x, weight = ctx.saved_tensors
        ctx.uses.append((x, d))
        return d @ weight.to(d.dtype) if ctx.needs_input_grad[0] else None, None, None, None, None


class _Meeting(torch.autograd.Function):
    """Stands between the parameters and their uses: its backward, which adds them up, runs when theirs are done."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, sink: Sink, uses: list[Use]) -> Any:  # type: ignore[override]
        ctx.set_materialize_grads(False)
        ctx.sink, ctx.uses, ctx.dtype = sink, uses, weight.dtype
        return weight.view_as(weight), None if bias is None else bias.view_as(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *none: None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        for _, d in ctx.uses:
            scale = ctx.sink.report(_ANY_CALL, d) / LIFT**2
        # Under autocast the sums are kept in the weight's own precision.
        inputs, gradients = zip(*((x.to(ctx.dtype), d.to(ctx.dtype)) for x, d in ctx.uses), strict=True)
        ctx.uses.clear()
        if len(inputs) == 1 and inputs[0].dim() == 2:
            return *_of_vectors(ctx.sink, gradients[0], inputs[0], scale), None, None
        return *_of_sequences(ctx.sink, _positions(gradients), _positions(inputs), scale), None, None


def _positions(each: tuple[Tensor, ...]) -> Tensor:
    """All positions of all uses: [B, T, features]."""
    sequences = [t.unsqueeze(1) if t.dim() == 2 else t.flatten(1, -2) for t in each]
    return sequences[0] if len(sequences) == 1 else torch.cat(sequences, 1)


def _of_vectors(sink: Sink, d: Tensor, x: Tensor, scale: float) -> tuple[Tensor | None, Tensor | None]:
    """One position: (d x)² = d² x²."""
    squares, dw, db = (d * LIFT).square_(), None, None
    if "weight" in sink.sums:
        sink.sums["weight"].addmm_(squares.t(), x.square(), alpha=scale)
        dw = d.t() @ x
    if "bias" in sink.sums:
        sink.sums["bias"].add_(squares.sum(0), alpha=scale)
        db = d.sum(0)
    return dw, db


def _of_sequences(sink: Sink, d: Tensor, x: Tensor, scale: float) -> tuple[Tensor | None, Tensor | None]:
    """Several positions between the batch and the features."""
    d = d * LIFT
    db = add_bias(sink, d.sum(1), scale) if "bias" in sink.sums else None
    if "weight" not in sink.sums:
        return None, db
    out = sink.sums["weight"]
    total, squares = torch.zeros(2, 1, *out.shape, dtype=out.dtype, device=out.device)
    size = examples_at_once(x[0].numel(), x.device)
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        add_moments(total, squares, d[part].unsqueeze(0), x[part].unsqueeze(0), sink.workspace)
    out.add_(squares[0], alpha=scale)
    return total[0].div_(LIFT), db


def add_bias(sink: Sink, lifted: Tensor, scale: float) -> Tensor:
    """Add the squares of the examples' lifted gradients, and return the ordinary one, their sum."""
    sink.sums["bias"].add_(lifted.square().sum(0), alpha=scale)
    return lifted.sum(0).div_(LIFT)
