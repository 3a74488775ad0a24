"""What a compression did, in figures: per layer and in total, as a table, a dictionary, JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Compression", "LayerReport"]


@dataclass(frozen=True)
class LayerReport:
    """One weight before and after.

    Attributes:
        name: Of the parameter.
        before: Its shape in the dense network.
        after: Its shape in the small one; None where the layer is gone.
        kept: How many of its entries are not zero after masking.
        total: How many it had.
        runs_sparse: Whether the small network multiplies by its non-zeros alone.
    """

    name: str
    before: tuple[int, ...]
    after: tuple[int, ...] | None
    kept: int
    total: int
    runs_sparse: bool = False

    @property
    def sparsity(self) -> float:
        """The fraction of zeros after masking."""
        return 1 - self.kept / self.total

    @property
    def zeros(self) -> str:
        """The sparsity in words."""
        return f"{self.sparsity:.1%} zeros"

    @property
    def shape_after(self) -> str:
        """The new shape in words."""
        return "gone" if self.after is None else _shape(self.after) + (" sparse" if self.runs_sparse else "")


@dataclass(frozen=True)
class Compression:
    """A compression's result.

    Attributes:
        layers: Every weight.
        parameters: Numbers in the network, before and after.
        bytes: Dense 32-bit numbers against the compressed file, on disk.
        flops: Of one input, before and after.
        latency: Seconds of one call by batch size, masked dense and small: one thread, medians.
        accuracy: On the validation data, before and after; None without any.
        form: What was returned: ``masked dense``, ``compacted``, and in which variant.
        notes: What there is to know: operations that were not followed, why a form was kept.
    """

    layers: tuple[LayerReport, ...]
    parameters: tuple[int, int]
    bytes: tuple[int, int]
    flops: tuple[int, int]
    latency: dict[int, tuple[float, float]]
    accuracy: tuple[float, float] | None
    form: str
    notes: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """|W| / |W ≠ 0|, as published results count; infinite when nothing is left."""
        kept = sum(layer.kept for layer in self.layers)
        return sum(layer.total for layer in self.layers) / kept if kept else float("inf")

    @property
    def sparsity(self) -> float:
        """The fraction of zeros among all weights."""
        return 1 - 1 / self.ratio

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, derived figures among them."""
        return {**asdict(self), "ratio": self.ratio, "sparsity": self.sparsity}

    def as_json(self) -> str:
        """``as_dict`` as text; a network of which nothing is left has a ratio of null."""
        figures = self.as_dict()
        figures["ratio"] = None if self.ratio == float("inf") else self.ratio
        return json.dumps(figures, indent=2)

    def table(self) -> Table:
        """A rich table: a row a layer, then the totals."""
        from rich.table import Table

        table = Table(title=f"compressed {self.ratio:.1f}× ({self.form})")
        for name, side in (("", "left"), ("before", "right"), ("after", "right"), ("", "right")):
            table.add_column(name, justify=side)  # type: ignore[arg-type]
        for layer in self.layers:
            table.add_row(layer.name, _shape(layer.before), layer.shape_after, layer.zeros)
        table.add_section()
        for row in self.totals():
            table.add_row(*row)
        return table

    def totals(self) -> list[tuple[str, str, str, str]]:
        """The figures of the whole network: name, before, after, gain."""
        kept = sum(layer.kept for layer in self.layers)
        weights = sum(layer.total for layer in self.layers)
        lines = [
            ("weights not zero", f"{weights:,}", f"{kept:,}", _times(weights, kept)),
            ("parameters", *_counts(self.parameters)),
            ("bytes on disk", *_counts(self.bytes)),
            ("FLOPs", *_counts(self.flops)),
        ]
        for batch, (before, after) in self.latency.items():
            lines.append((f"ms, batch {batch}", f"{before * 1e3:.3f}", f"{after * 1e3:.3f}", _times(before, after)))
        if self.accuracy is not None:
            before, after = self.accuracy
            lines.append(("accuracy", f"{before:.2%}", f"{after:.2%}", f"{after - before:+.2%}"))
        return lines

    def __str__(self) -> str:
        rows = [(layer.name, _shape(layer.before), layer.shape_after, layer.zeros) for layer in self.layers]
        lines = [f"{name:<28}{old:>16}{new:>16}{gain:>16}" for name, old, new, gain in [*rows, *self.totals()]]
        return "\n".join([f"compressed {self.ratio:.1f}× ({self.form})", *lines, *self.notes])


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(str(size) for size in shape)


def _counts(pair: tuple[int, int]) -> tuple[str, str, str]:
    return f"{pair[0]:,}", f"{pair[1]:,}", _times(*pair)


def _times(before: float, after: float) -> str:
    return f"{before / after:.1f}×" if after else "–"
