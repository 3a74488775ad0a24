"""Kronecker factors: the curvature of a layer's weight as a product of its inputs' and its output gradients' moments.

For W [O, I] acting on inputs u, with output gradients d, the block of the Gauss-Newton or Fisher matrix of vec(W) is a
mean of (d uᵀ)(d uᵀ)ᵀ, which K-FAC (https://arxiv.org/abs/1503.05671) splits:

    curvature ≈ G ⊗ A,     A = mean of u uᵀ [I, I],     G = mean of d dᵀ [O, O],

so that (G ⊗ A) vec(V) = vec(G V A) for a matrix V [O, I], rows first. A bias is one more input that is always 1. The
split is exact for one example, and for any batch where d does not depend on the example (a linear network with a
squared loss). A weight used at T positions, as in convolutions and on sequences, has two readings
(https://arxiv.org/abs/2311.00636):

    expand:  A = 1/(B T) Σ_{i,t} u uᵀ,   G = 1/B Σ_{i,t} d dᵀ               positions count as independent examples
    reduce:  A = 1/B Σᵢ ūᵢ ūᵢᵀ,          G = 1/B Σᵢ (Σ_t d)(Σ_t d)ᵀ        ūᵢ the mean input of example i

Parameters outside Linear layers and ungrouped convolutions have no factors; their curvature stays diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.conv import _ConvNd

from posterity.curvature.outer import examples_at_once
from posterity.curvature.patches import Windows, pad_explicitly
from posterity.curvature.sink import Forward, Pass, Sink, watched
from posterity.curvature.squared import SquareCapture
from posterity.curvature.units import units
from posterity.types import Params, PosterityError
from posterity.unrolled import replaced_forwards

Sharing = Literal["expand", "reduce"]


@dataclass(frozen=True)
class KroneckerBlock:
    """The curvature of one layer, ``output`` ⊗ ``input``.

    Attributes:
        weight: Name of the weight, [O, ...] seen as a matrix [O, I].
        bias: Name of the bias, the last column where there is one.
        input: A, [I, I] or [I + 1, I + 1] with a bias.
        output: G, [O, O].
    """

    weight: str
    bias: str | None
    input: Tensor
    output: Tensor


@dataclass(frozen=True)
class KroneckerCurvature:
    """A network's curvature: a block for each layer that has one, the diagonal for the other parameters."""

    blocks: tuple[KroneckerBlock, ...]
    diagonal: Params


class KroneckerCapture:
    """Adds each pass's factors to ``curvature`` while it is on.

    Args:
        module: Whose layers to watch.
        sharing: How positions that share a weight are counted.
        sums: Where the diagonal of the other parameters is added, by name; fresh zeros by default.

    Attributes:
        curvature: The sums so far.
        factors: All factors in one vector, of which those in ``curvature`` are views.
    """

    def __init__(self, module: nn.Module, sharing: Sharing = "expand", sums: Params | None = None) -> None:
        if sharing not in ("expand", "reduce"):
            raise PosterityError(f"sharing must be 'expand' or 'reduce', got {sharing!r}")
        self._pass = Pass()
        layers = {prefix: unit for prefix, unit, _ in units(module) if _has_factors(unit)}
        names = [_names(prefix, layer) for prefix, layer in layers.items()]
        sizes = [_sizes(layer) for layer in layers.values()]
        first = next(module.parameters())
        total = sum(rows**2 + columns**2 for rows, columns in sizes)
        self.factors = torch.zeros(total, dtype=first.dtype, device=first.device)
        blocks = cut_blocks(self.factors, names, sizes)
        self._forwards: list[tuple[nn.Module, Forward]] = []
        self._edges: list[GradientEdge] = []
        self._layers = {prefix or "the module": layer for prefix, layer in layers.items()}
        sinks = []
        for (label, layer), block in zip(self._layers.items(), blocks, strict=True):
            sink = Sink(label, {"input": block.input, "output": block.output}, self._pass)
            sinks.append(sink)
            self._forwards.append((layer, _watched(layer, layer.forward, sink, sharing, self._edges)))
        self._squares = SquareCapture(module, sums, skip=set(layers))
        for sink, (layer, forward) in zip(sinks, self._forwards, strict=True):
            self._squares.copies.owns(sink, dict(layer.named_parameters()))
            self._squares.copies.inside(layer, layer.forward, forward)
        self.curvature = KroneckerCurvature(blocks, self._squares.sums)

    @contextmanager
    def on(self, weight: float = 1.0) -> Iterator[None]:
        """Watch one forward pass and its backward passes, of a mean loss multiplied by ``weight``."""
        self._pass.restart(weight)
        with ExitStack() as stack:
            stack.enter_context(self._squares.on(weight))
            stack.enter_context(replaced_forwards(self._forwards))
            stack.callback(self._edges.clear)
            yield

    def needed(self, params: Iterable[Tensor]) -> list[GradientEdge]:
        """What a backward pass must reach for the curvature alone.

        That is the outputs of the layers with factors, whose weights need no gradients, and the other parameters.
        """
        own = {id(p) for layer in self._layers.values() for p in layer.parameters()}
        return [*self._edges, *(get_gradient_edge(p) for p in params if id(p) not in own)]

    def check_complete(self, with_gradient: Collection[Tensor]) -> None:
        """Refuse a pass in which a parameter got a gradient without its layer being called."""
        owned = {label: list(layer.parameters()) for label, layer in self._layers.items()}
        self._pass.check_complete(owned, with_gradient)
        self._squares.check_complete(with_gradient)


def _has_factors(layer: nn.Module) -> bool:
    """Linear and ungrouped convolutions with a trainable weight and nothing special about them."""
    plain = not any(layer.children()) and "forward" not in layer.__dict__
    kinds = (nn.Linear.forward, nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward)
    own = dict(layer.named_parameters())
    if not plain or type(layer).forward not in kinds or not own.keys() <= {"weight", "bias"}:
        return False
    return getattr(layer, "groups", 1) == 1 and all(p.requires_grad for p in own.values())


def _names(prefix: str, layer: nn.Module) -> tuple[str, str | None]:
    dot = f"{prefix}." if prefix else ""
    return f"{dot}weight", f"{dot}bias" if layer.bias is not None else None


def _sizes(layer: nn.Module) -> tuple[int, int]:
    """Rows O and columns I of the weight, with one more for a bias."""
    weight: Tensor = layer.weight  # type: ignore[assignment]
    return len(weight), weight[0].numel() + (layer.bias is not None)


def cut_blocks(
    vector: Tensor, names: Sequence[tuple[str, str | None]], sizes: Sequence[tuple[int, int]]
) -> tuple[KroneckerBlock, ...]:
    """Blocks whose factors are views of one vector: A and G of each layer in turn."""
    parts = iter(vector.split([side**2 for rows, columns in sizes for side in (columns, rows)]))
    return tuple(
        KroneckerBlock(weight, bias, next(parts).view(columns, columns), next(parts).view(rows, rows))
        for (weight, bias), (rows, columns) in zip(names, sizes, strict=True)
    )


def _watched(layer: nn.Module, original: Forward, sink: Sink, sharing: Sharing, edges: list[GradientEdge]) -> Forward:
    """The layer's forward, which adds A and G when the gradient comes back; ``edges`` is where it does."""
    moment: Callable[..., Tensor] = _conv_moment if isinstance(layer, _ConvNd) else _linear_moment

    @torch.no_grad()
    def backward(x: Tensor, d: Tensor, call: object) -> None:
        # A is added with the first gradient, not in the forward, which gradient checkpointing runs twice.
        first = sink.label not in sink.shared.reported
        scale = sink.report(call, d)
        if first:
            sink.sums["input"].add_(moment(layer, x, sharing), alpha=sink.shared.weight)
        rows = d.flatten(2).mT if isinstance(layer, _ConvNd) else d.reshape(len(d), -1, d.shape[-1])
        rows = rows.sum(1) if sharing == "reduce" else rows.flatten(0, 1)
        rows = rows.to(sink.sums["output"].dtype)
        sink.sums["output"].addmm_(rows.T, rows, alpha=scale)

    def forward(x: Tensor) -> Tensor:
        out = original(x)
        if out.requires_grad:
            edges.append(get_gradient_edge(out))
        return out

    return watched(forward, backward)


def _linear_moment(layer: nn.Linear, x: Tensor, sharing: Sharing) -> Tensor:
    """A of one batch."""
    rows = x.reshape(len(x), -1, x.shape[-1]).to(layer.weight.dtype)
    rows = rows.mean(1) if sharing == "reduce" else rows.flatten(0, 1)
    return _second_moment(rows, layer.bias is not None)


def _conv_moment(layer: _ConvNd, x: Tensor, sharing: Sharing) -> Tensor:
    """A of one batch, over patches in chunks of examples."""
    windows, weight = Windows.of(layer), layer.weight
    x = pad_explicitly(layer, x).to(weight.dtype)
    last = windows.channels_last(x)
    prepared, patch = windows.prepare(x, last), weight[0].numel()
    positions = windows.positions(x.shape[2:])
    size = examples_at_once(patch * torch.Size(positions).numel(), x.device)
    total = torch.zeros(patch + 1, patch + 1, dtype=weight.dtype, device=weight.device)
    for start in range(0, len(x), size):
        view = windows.patches(prepared[:, start : start + size], last).squeeze(0)
        examples = len(view)
        rows = view.reshape(examples, -1, patch) if last else view.reshape(examples, patch, -1).mT
        rows = rows.mean(1) if sharing == "reduce" else rows.flatten(0, 1)
        total.add_(_second_moment(rows, True), alpha=examples / len(x))
    order = windows.as_weight(torch.arange(patch, device=x.device).view(1, 1, patch), last).flatten()
    order = torch.cat([order, order.new_full((1,), patch)]) if layer.bias is not None else order
    return total[order][:, order]


def _second_moment(rows: Tensor, bias: bool) -> Tensor:
    """1/n Σ u uᵀ over rows, each with a 1 appended for a bias."""
    rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1) if bias else rows
    return rows.T @ rows / len(rows)
