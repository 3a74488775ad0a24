"""How the loss of a table's rows falls with the epochs, as a picture."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.quality.tables import Table
from posterity.report.style import colour, figure, png, styled

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def curves(table: Table, results: Path) -> list[str]:
    """The picture of a table that wants one, drawn from the losses of its runs, as a line of the page."""
    file = results / f"{table.name}.json"
    runs = json.loads(file.read_text())["runs"] if table.curves and file.exists() else []
    runs = [run for run in runs if run.get("losses")]
    if not runs:
        return []
    (IMAGES / f"{table.name}.png").write_bytes(png(picture(runs), 130))
    return [f"![The training loss of every row by epoch](images/{table.name}.png)"]


@styled
def picture(runs: list[dict]) -> Figure:
    """One line a run, one colour a row."""
    made, (axes,) = figure(1, width=5.2, height=3.4)
    rows = list(dict.fromkeys(run["row"] for run in runs))
    for run in runs:
        first = run is next(other for other in runs if other["row"] == run["row"])
        epochs = range(1, len(run["losses"]) + 1)
        axes.plot(epochs, run["losses"], color=colour(rows.index(run["row"])), label=run["row"] if first else None)
    axes.set(xlabel="epoch", ylabel="training loss")
    axes.legend()
    return made
