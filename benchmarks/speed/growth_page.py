"""The figure and the section about growth on docs/benchmarks.md, from the JSON of ``growth.py``."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.speed.growth import LINEAR, exponent
from posterity.report.style import colour, figure, marker, png, styled

ROOT = Path(__file__).parents[2]
PANELS = (  # axis, what is measured, title, label of the axis
    ("weights", "seconds", "step, batch 128", "weights"),
    ("weights", "peak_bytes", "memory of a fit", "weights"),
    ("batch", "seconds", "step, 10⁶ weights", "examples a step"),
    ("draws", "seconds", "predict, 100 inputs, 10⁵ weights", "draws"),
    ("rank", "seconds", "eight draws of SWAG, 10⁶ weights", "deviations kept"),
    ("processes", "seconds", "a rank's CPU time, 128 examples each", "processes"),
)
MACHINES = {
    "cpu": (
        "On a CPU core",
        "Between 10⁶ and 10⁷ weights, where vectors no longer fit the caches, a step of MeanField grows by 14 and one "
        "of plain Adam (MAP) by 11; from there to 10⁸ both grow by 10.",
    ),
    "h200": (
        "On an H200",
        "Steps are launched piece by piece (no `record`), which costs a millisecond or more up to 10⁷ weights: only at "
        "10⁸ does the GPU, and not the launching, set the time.",
    ),
}
LINES = ("MAP", "MeanField", "IVON", "VOGN", "SGHMC")


def curves(found: dict, axis: str, measure: str) -> dict[str, tuple[list[float], list[float]]]:
    """Points by line, where all were measured."""
    points: dict[str, tuple[list[float], list[float]]] = {}
    for case, rows in found["cases"].items():
        name, value = case.split()
        for line, row in rows.items():
            if name == axis and row[measure]:
                x, y = points.setdefault(line, ([], []))
                x.append(float(value))
                y.append(row[measure])
    return {line: point for line, point in points.items() if len(point[0]) > 2}


@styled
def picture(found: dict) -> Figure:
    """A log–log panel for all that was measured; the legends give the exponents of the last decade."""
    measured = [panel for panel in PANELS if curves(found, *panel[:2])]
    made, axes = figure(len(measured), width=3.4, height=2.8)
    for panel, (axis, measure, title, label) in zip(axes, measured, strict=True):
        draw(panel, found, axis, measure)
        panel.set(title=title, xlabel=label, xscale="log", yscale="log")
        panel.set_ylabel("seconds" if measure == "seconds" else "MB")
        if axis == "processes":
            panel.set_xticks([1, 2, 4], ["1", "2", "4"])
            panel.set_xticks([], minor=True)
        panel.legend(fontsize=7)
    return made


def draw(panel: Axes, found: dict, axis: str, measure: str) -> None:
    what = "time" if measure == "seconds" else "memory"
    for line, (x, y) in curves(found, axis, measure).items():
        slope = found["figures"].get(f"{axis}: {what} of {line}")
        number = LINES.index(line) if line in LINES else 5
        if line == "floor":
            panel.plot(x, y, color="#7F7F7F", linestyle=":", label="floor of Adam")
            continue
        scaled = y if measure == "seconds" else [value / 1e6 for value in y]
        label = line if slope is None else f"{line}, {slope:.2f}"
        panel.plot(x, scaled, color=colour(number), marker=marker(number), markersize=3, label=label)


def section(results: Path) -> str:
    """What growth was measured, on each machine that there is a file of."""
    parts = [
        "## How cost grows",
        "A step of `fit` for two hidden layers, and predictions, against everything that can grow; on the CPU one "
        "thread and its own time. Both axes are logarithmic. A legend's number is the exponent over the last decade: 1 "
        "is linear, below it a fixed cost still shows. The dotted line is the physical floor of Adam's step: its FLOPs "
        "at the rate of a large matrix product, or its memory traffic at the rate of a large copy, whichever is "
        "longer.\n\n"
        "    python -m benchmarks.speed.growth --out benchmarks/results/growth_cpu.json\n"
        "    python -m benchmarks.speed.growth --device cuda --out benchmarks/results/growth_h200.json",
    ]
    for key, (title, remark) in MACHINES.items():
        file = results / f"growth_{key}.json"
        if file.exists():
            found = json.loads(file.read_text())
            (ROOT / "docs" / "images" / f"growth-{key}.png").write_bytes(png(picture(found), 130))
            parts += [f"### {title}", f"![Time and memory against size](images/growth-{key}.png)"]
            parts += [f"{verdict(found)} {remark}".strip(), distances(found)]
    return "\n\n".join(parts)


def verdict(found: dict) -> str:
    """Which exponents are above linear, and what they are between the last two points alone."""
    steep = []
    for name, slope in found["figures"].items():
        axis, _, rest = name.partition(": ")
        if rest and slope > LINEAR:
            what, line = rest.split(" of ")
            x, y = curves(found, axis, {"time": "seconds", "memory": "peak_bytes"}[what])[line]
            steep.append(f"{what} of {line} against {axis} ({slope:.2f}; {exponent(x[-2:], y[-2:]):.2f} at the end)")
    where = f"torch {found['torch']}, {found['date']}. "
    return where + (f"Above {LINEAR}: {', '.join(steep)}." if steep else f"No exponent is above {LINEAR}.")


def distances(found: dict) -> str:
    """How many floors a step takes, by weights."""
    cases = {case.split()[1]: rows for case, rows in found["cases"].items() if case.startswith("weights")}
    lines = ["| step / floor | " + " | ".join(f"{int(n):,}" for n in cases) + " |", "|---" * (len(cases) + 1) + "|"]
    for name in LINES:
        cells = [times(rows[name]["seconds"] / rows["floor"]["seconds"]) for rows in cases.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def times(ratio: float) -> str:
    """As many digits as say something."""
    return f"{ratio:.1f}" if ratio < 100 else f"{ratio:,.0f}"
