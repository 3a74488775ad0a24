"""Pictures of networks that get sparse: weights as images, their film, sparsity over time, error against compression.

Results in, matplotlib axes or figures out. Weights that are exactly zero are left blank, so that what is pruned is seen
at a glance; the others are coloured by sign and size.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from PIL import Image
from torch import Tensor

from posterity.files import write_bytes
from posterity.report import style
from posterity.types import PosterityError

__all__ = ["animation", "compression_curve", "film_strip", "sparsity_by_layer", "weight_image", "weights"]


def weight_image(weight: Tensor) -> np.ndarray:
    """[rows, columns] A weight as one image, NaN where it is zero or between two filters.

    A matrix is its own image. Filters [O, I, ...] are laid out with their outputs downwards and inputs to the right;
    the filters of a single input in a grid as square as can be.
    """
    weight = weight.detach().double().cpu()
    weight = weight.masked_fill(weight == 0, torch.nan)
    if weight.dim() <= 2:
        return np.atleast_2d(weight.numpy())
    tiles = weight.reshape(*weight.shape[:2], -1, weight.shape[-1])
    outputs, inputs, height, width = tiles.shape
    if inputs == 1:
        across = math.ceil(math.sqrt(outputs))
        spare = -outputs % across
        tiles = torch.cat([tiles[:, 0], tiles.new_full((spare, height, width), torch.nan)])
        tiles = tiles.reshape(-1, across, height, width)
    framed = torch.nn.functional.pad(tiles, (0, 1, 0, 1), value=torch.nan)
    rows, columns = framed.shape[:2]
    return framed.transpose(1, 2).reshape(rows * (height + 1), columns * (width + 1))[:-1, :-1].numpy()


def weights(axes: Axes, weight: Tensor, title: str = "", limit: float | None = None) -> Axes:
    """One weight: blank where it is zero, else red and blue by sign.

    Args:
        axes: Where to draw.
        weight: A matrix or filters.
        title: What to write above, beside the sparsity.
        limit: The size that is drawn in full colour; the largest there is if not given.
    """
    image = weight_image(weight)
    top = limit or _top([weight])
    axes.imshow(image, cmap="RdBu_r", vmin=-top, vmax=top, interpolation="nearest", aspect="auto")
    zeros = float((weight == 0).double().mean())
    axes.set_title(f"{title}  {zeros:.1%} zeros".strip(), fontsize="small")
    axes.set(xticks=[], yticks=[])
    return axes


@style.styled
def film_strip(frames: Mapping[int, Tensor], count: int = 6) -> Figure:
    """Some frames of a weight, from the first to the last, side by side.

    Args:
        frames: The weight by epoch, as ``WeightFilm`` keeps it.
        count: How many to show.
    """
    chosen = _spaced(list(frames), count)
    made = Figure(figsize=(2.2 * len(chosen), 2.4), layout="constrained")
    limit = _top(frames.values())
    for axes, epoch in zip(made.subplots(1, len(chosen), squeeze=False)[0], chosen, strict=True):
        weights(axes, frames[epoch], f"epoch {epoch}", limit)
    return made


def animation(frames: Mapping[int, Tensor], path: str | Path, seconds: float = 0.2) -> None:
    """The film of a weight as an animated GIF, written whole or not at all.

    Args:
        frames: The weight by epoch.
        path: Where the .gif goes.
        seconds: How long each frame stands; the last stands ten times as long.
    """
    limit, pictures = _top(frames.values()), []
    for epoch in _spaced(list(frames), len(frames)):
        made = Figure(figsize=(4, 4), dpi=100, layout="constrained")
        weights(made.subplots(), frames[epoch], f"epoch {epoch}", limit)
        canvas = FigureCanvasAgg(made)
        canvas.draw()
        pictures.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").quantize(64))
    out = io.BytesIO()
    each = [round(1000 * seconds)] * len(pictures)
    each[-1] *= 10
    pictures[0].save(out, format="GIF", save_all=True, append_images=pictures[1:], duration=each, loop=0)
    write_bytes(path, out.getvalue())


def sparsity_by_layer(axes: Axes, epochs: Sequence[float], by_layer: Mapping[str, Sequence[float]]) -> Axes:
    """The fraction of zeros of every layer over time."""
    for index, (name, values) in enumerate(by_layer.items()):
        axes.plot(epochs, [100 * value for value in values], label=name.removesuffix(".weight"), **style.line(index))
    axes.set(xlabel="epoch", ylabel="zeros, %", ylim=(-2, 102))
    axes.legend(fontsize="small")
    return axes


def compression_curve(
    axes: Axes, curves: Mapping[str, Sequence[tuple[float, float]]], dense: float | None = None
) -> Axes:
    """Error against compression, all methods together: right and low is good.

    Args:
        axes: Where to draw.
        curves: By method, pairs of (|W| / |W ≠ 0|, error rate); several at one ratio are seeds: mean and range.
        dense: The error rate of the dense network, as a line.
    """
    if not curves:
        raise PosterityError("there is nothing to draw: no method has a point")
    for index, (name, points) in enumerate(curves.items()):
        ratios = sorted({ratio for ratio, _ in points})
        groups = [[100 * error for ratio, error in points if ratio == at] for at in ratios]
        means = [float(np.mean(group)) for group in groups]
        axes.plot(ratios, means, marker=style.marker(index), label=name, **style.line(index))
        if any(len(group) > 1 for group in groups):
            low, high = [min(g) for g in groups], [max(g) for g in groups]
            axes.fill_between(ratios, low, high, color=style.colour(index), alpha=0.15, linewidth=0)
    if dense is not None:
        axes.axhline(100 * dense, color=style.INK, linewidth=0.8, linestyle=":", label="dense")
    axes.set(xscale="log", xlabel="compression, weights over weights not zero", ylabel="error, %")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}×")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.legend(fontsize="small")
    return axes


def _top(frames: Any) -> float:
    """The largest magnitude of all frames, or 1 where everything is zero."""
    return max((float(frame.detach().abs().max()) for frame in frames), default=0.0) or 1.0


def _spaced(epochs: list[int], count: int) -> list[int]:
    """At most ``count`` epochs from the first to the last, evenly spaced."""
    if not epochs:
        raise PosterityError("there is nothing to draw: the film has no frame")
    places = np.linspace(0, len(epochs) - 1, min(count, len(epochs)))
    return [epochs[round(place)] for place in places]
