"""How figures look: sizes and fonts that a paper could print, colours that the colour-blind can tell apart.

Figures are made without pyplot, so nothing global changes and no window ever opens. In SVG all text and lines that are
neither data nor colour take the colour of the page around them, so that one figure serves light and dark.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from posterity.types import PosterityError

__all__ = ["INK", "colour", "figure", "inline", "legend", "line", "marker", "png", "short", "styled", "svg"]

P = ParamSpec("P")

INK = "#222222"
"""Text and axes; becomes the page's own colour in SVG."""

_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#7F7F7F",
    "#8B5FBF",
    "#8C6D31",
    "#1FBFB8",
)
"""Okabe and Ito's colours without the yellow that white paper swallows, and three more that differ in lightness."""
_DASHES = ("-", "--", "-.", ":")
_MARKERS = "osD^vPX<>*"

_SETTINGS: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
}


def styled(function: Callable[P, Figure]) -> Callable[P, Figure]:
    """Make a plot in the house style; matplotlib's own settings are as before afterwards."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with rc_context(_SETTINGS):
            made = function(*args, **kwargs)
            made.get_layout_engine().execute(made)  # type: ignore[union-attr]  # ``figure`` gave it one
            made.set_layout_engine("none")  # the layout is found; every save would look for it again
            return made

    return wrapper


def figure(panels: int = 1, width: float = 3.5, height: float = 2.7, across: int = 3) -> tuple[Figure, list[Axes]]:
    """A figure of equal panels, ``across`` in a row, and its axes."""
    if panels < 1:
        raise PosterityError("there is nothing to plot: no finished run has these figures")
    rows, across = -(-panels // across), min(panels, across)
    made = Figure(figsize=(width * across, height * rows), layout="constrained")
    grid = made.subplots(rows, across, squeeze=False)
    axes = [ax for row in grid for ax in row]
    for spare in axes[panels:]:
        spare.remove()
    return made, axes[:panels]


def colour(index: int) -> str:
    """The colour of the index-th method."""
    return _COLOURS[index % len(_COLOURS)]


def line(index: int) -> dict[str, Any]:
    """How the index-th method's line looks; dashes tell apart what shares a colour."""
    return {"color": colour(index), "linestyle": _DASHES[index // len(_COLOURS) % len(_DASHES)]}


def marker(index: int) -> str:
    """The marker of the index-th method; the last method of the same colour has another."""
    return _MARKERS[(index + index // len(_COLOURS)) % len(_MARKERS)]


def short(name: str) -> str:
    """A name that leaves room for the picture; between two dollars matplotlib would read a formula."""
    return (name if len(name) <= 24 else f"{name[:23]}…").replace("$", r"\$")


def legend(made: Figure, axes: Sequence[Axes]) -> None:
    """One legend below all panels, as many entries in a row as there is room for; many rows make the figure higher."""
    handles, labels = axes[0].get_legend_handles_labels()
    if len(labels) > 1:
        room = made.get_figwidth() / (0.55 + 0.065 * max(map(len, labels)))
        columns = max(1, min(int(room), len(labels)))
        made.set_figheight(made.get_figheight() + 0.16 * max(0, -(-len(labels) // columns) - 3))
        made.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=1.8, columnspacing=1.2)


def svg(made: Figure, name: str) -> str:
    """The figure as an SVG file; ``name`` makes its ids its own."""
    out = io.StringIO()
    with rc_context({**_SETTINGS, "svg.hashsalt": name}):  # the canvas itself: savefig would draw everything twice
        FigureCanvasSVG(made).print_svg(out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return re.sub(r"<metadata>.*?</metadata>", "", out.getvalue(), flags=re.DOTALL)


def inline(text: str, title: str) -> str:
    """An SVG file as part of a page: in the page's ink and font, as wide as there is room, small."""
    text = text[text.index("<svg") :]
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # it would speak to the whole page
    text = re.sub(r" font-family: [^;\"]*;| transform=\"rotate\(-0 [^)]*\)\"", "", text)
    # A hundredth of a point is enough for shapes; what stands between tags is text and stays as it is.
    text = re.sub(r"<[^>]+>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), text)
    text = re.sub(r"\s*\n\s*", " ", text).replace("> <", "><")
    used = set(re.findall(r"#([\w-]+)[)\"]", text))
    text = re.sub(r' id="([\w.-]+)"', lambda found: found[0] if found[1] in used else "", text)
    described = f'<svg role="img" aria-label="{html.escape(title, quote=True)}"'
    return text.replace("<svg", described, 1).replace(INK, "currentColor")


def png(made: Figure, dpi: int = 200) -> bytes:
    """The figure as PNG on white, for slides."""
    out, before = io.BytesIO(), (made.dpi, made.get_facecolor())
    made.set_dpi(dpi)
    made.set_facecolor("white")
    with rc_context(_SETTINGS):
        FigureCanvasAgg(made).print_png(out)
    made.set_dpi(before[0])
    made.set_facecolor(before[1])
    return out.getvalue()
