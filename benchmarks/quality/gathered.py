"""The runs of a table put together: means and spreads by line, lines made of stored predictions, the page's section."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.quality.curves import curves
from benchmarks.quality.runs import RESULTS, meets, write
from benchmarks.quality.tables import Table, slug
from posterity.evaluation.calibration import ece
from posterity.evaluation.metrics import metric
from posterity.evaluation.scores import accuracy, nll
from posterity.evaluation.selective import misclassification_auroc
from posterity.posteriors.tempered import minimise
from posterity.training.config import Training

Run = dict[str, Any]
Summary = dict[str, dict[str, dict[str, float]]]
PERCENT = ("accuracy",)


def gather(table: Table, folder: Path, results: Path = RESULTS) -> Summary:
    """Merge the runs and trials found in a folder into ``results/TABLE.json`` and ``results/TABLE_tuning.json``."""
    trials = merged(results / f"{table.name}_tuning.json", folder / f"{table.name}_tuning", ("row", "candidate"))
    if trials:
        write(results / f"{table.name}_tuning.json", {"table": table.name, "runs": trials})
    runs = merged(results / f"{table.name}.json", folder / table.name, ("row", "seed"))
    if not runs:
        return {}
    predictions = {
        (run["row"], run["seed"]): read_predictions(file)
        for run in runs
        if (file := folder / table.name / f"{slug(run['row'])}-{run['seed']}.npz").exists()
    }
    runs = with_tempered(table, runs, predictions)
    runs = in_order(table, with_ensembles(table, runs, predictions))
    summary = summarise(runs, (*table.figures, "epoch"))
    write(results / f"{table.name}.json", {"table": table.name, "summary": summary, "runs": runs})
    return summary


def merged(known: Path, folder: Path, key: tuple[str, str]) -> list[Run]:
    """The runs of a results file and those in a folder, which replace older ones of the same row and seed."""
    before = json.loads(known.read_text())["runs"] if known.exists() else []
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    runs = {tuple(str(run[k]) for k in key): run for run in [*before, *found]}
    return list(runs.values())


def in_order(table: Table, runs: list[Run]) -> list[Run]:
    """Runs in the order of the table's rows, then what was made of them."""
    rank = {name: number for number, name in enumerate(table.rows)}
    return sorted(runs, key=lambda run: (rank.get(run["row"], len(rank)), run["seed"] or 0))


def read_predictions(file: Path) -> dict[str, Tensor]:
    """Probabilities by line, and the targets."""
    with np.load(file) as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored.files}


def with_tempered(table: Table, runs: list[Run], predictions: Mapping[tuple[str, int], dict[str, Tensor]]) -> list[Run]:
    """Each run with its temperature-scaled lines, where its predictions are there."""

    def extended(run: Run) -> Run:
        stored = predictions.get((run["row"], run["seed"]), {})
        new = {
            line: class_figures(cross_tempered(stored[of], stored["targets"]), stored["targets"])
            for line, of in table.tempered.items()
            if of in stored
        }
        return run | {"lines": run["lines"] | new}

    return [extended(run) for run in runs]


def with_ensembles(
    table: Table, runs: list[Run], predictions: Mapping[tuple[str, int], dict[str, Tensor]]
) -> list[Run]:
    """One more run for each ensemble: the mean of the predictions of all seeds, which is the mixture's prediction."""
    for line, of in table.ensembles.items():
        stored = [each for each in predictions.values() if of in each]
        if len(stored) < 2:
            continue
        figures = class_figures(torch.stack([each[of] for each in stored]).mean(0), stored[0]["targets"])
        run = {"row": line, "seed": None, "of": of, "members": len(stored), "lines": {line: figures}}
        runs = [r for r in runs if r["row"] != line] + [run]
    return runs


def class_figures(probs: Tensor, targets: Tensor) -> dict[str, float]:
    """The figures that follow from the probabilities alone."""
    found = {"accuracy": accuracy, "nll": nll, "ece": ece, "misclassification_auroc": misclassification_auroc}
    return {name: float(figure(probs, targets)) for name, figure in found.items()}


def cross_tempered(probs: Tensor, targets: Tensor) -> Tensor:
    """Probabilities under the temperature with the best NLL, found for each half of the examples on the other half."""
    logs = probs.double().clamp_min(1e-38).log()
    even = torch.arange(len(targets)) % 2 == 0
    scaled = torch.empty_like(logs)
    for judged in (even, ~even):
        fitting = ~judged
        loss = lambda log_t, own=fitting: torch.nn.functional.cross_entropy(  # noqa: E731
            logs[own] / float(np.exp(log_t)), targets[own]
        ).item()
        scaled[judged] = (logs[judged] / float(np.exp(minimise(loss, -5.0, 5.0)))).softmax(1)
    return scaled


def summarise(runs: Iterable[Run], figures: Iterable[str]) -> Summary:
    """Mean and standard deviation over seeds by line and figure; ``epoch`` is the seconds of one.

    A line whose seeds ran on different devices has no such seconds.
    """
    values: dict[str, dict[str, list[float]]] = {}
    runs, devices = list(runs), defaultdict[str, set[str | None]](set)
    for run in runs:
        for line in run["lines"]:
            devices[line].add(run.get("device"))
    for run in runs:
        for line, found in run["lines"].items():
            own = found | {"epoch": run.get("seconds", {}).get("epoch") if len(devices[line]) == 1 else None}
            for figure in figures:
                if own.get(figure) is not None:
                    values.setdefault(line, {}).setdefault(figure, []).append(own[figure])
    return {
        line: {
            figure: {"mean": statistics.mean(v), "std": statistics.stdev(v) if len(v) > 1 else 0.0, "seeds": len(v)}
            for figure, v in found.items()
        }
        for line, found in values.items()
    }


def section(table: Table, results: Path = RESULTS) -> str:
    """The table as a section of the page; empty without runs."""
    file = results / f"{table.name}.json"
    if not file.exists():
        return ""
    stored = json.loads(file.read_text())
    summary, runs = stored["summary"], [run for run in stored["runs"] if run["seed"] is not None]
    parts = [f"## {table.title}", f"{table.about} {conditions(table, runs)}"]
    for foreign, figures in blocks(table.figures).items():
        parts += [f"### Against {foreign}"] * bool(foreign) + [markdown(table, summary, figures, foreign)]
    parts += curves(table, results)
    parts += [table.remarks] * bool(table.remarks)
    parts += timed(results / f"{table.name}_epochs.json")
    missing = [name for name in table.rows if all(run["row"] != name for run in runs)]
    if missing:
        parts.append(f"Not run yet: {', '.join(missing)}.")
    return "\n\n".join(parts + failures(runs))


def failures(runs: list[Run]) -> list[str]:
    """Lines that came to nothing, with the seeds and the first sentence of the error."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        for line, error in run.get("failed", {}).items():
            seeds.setdefault((line, error.splitlines()[0]), []).append(run["seed"])
    return [f"{line}, seed {', '.join(map(str, own))}, failed: {error}." for (line, error), own in seeds.items()]


def timed(file: Path) -> list[str]:
    """What ``epoch_times`` found, in a sentence."""
    if not file.exists():
        return []
    stored = json.loads(file.read_text())
    ways = {"recorded": "with recorded steps", "launched": "launched piece by piece"}
    told = [
        ", ".join(f"{name} {found['ratio']:.2f}×" for name, found in list(stored[way].items())[1:]) + f" {words}"
        for way, words in ways.items()
        if way in stored
    ]
    first = next(name for way in ways if way in stored for name in stored[way])
    return [f"An epoch by itself on {stored['device']}, one draw a step, beside {first}'s: {'; '.join(told)}."]


def conditions(table: Table, runs: list[Run]) -> str:
    """How the runs were made, from their own records."""
    several = lambda values: ", ".join(dict.fromkeys(map(str, values)))  # noqa: E731
    chosen = "; ".join(dict.fromkeys(run["row"] for run in runs if run.get("chosen")))
    how = ("by how many published figures they met, then " if table.published else "") + (
        f"by {metric(table.choose_by).label}"
    )
    sentences = [
        mostly([(run["row"], f"{run['epochs']} epochs") for run in runs]),
        mostly([(run["row"], f"batch {_batch_size(run)}") for run in runs if "training" in run]),
        f"{table.draws} draws",
        several(f"{r['examples']['train']:,} training and {r['examples']['test']:,} test examples" for r in runs),
        mostly([(run["row"], run["device"]) for run in runs]),
        f"torch {several(run['versions']['torch'] for run in runs)}",
        several(sorted(run["date"] for run in runs)),
    ]
    return (
        ", ".join(sentences)
        + "."
        + (f" Chosen on held-out training examples, {how}: {chosen}." if chosen else "")
        + (f" In brackets: {table.source}; bold where met." if table.published else "")
        + f"\n\n    python -m benchmarks.quality {table.name} --row {slug(next(iter(table.rows)))} --seed 0 --out runs"
    )


def _batch_size(run: Run) -> str:
    """As its record has it, which tells what differs from the library's own."""
    return str(run["training"].get("batch_size", Training().batch_size))


def mostly(told: list[tuple[str, str]]) -> str:
    """What is true of most runs, and in brackets of which rows something else: ``CPU (OGN; K-FAC: NVIDIA H200)``."""
    usual = Counter(value for _, value in told).most_common(1)[0][0]
    others: dict[str, dict[str, None]] = {}
    for row, value in told:
        if value != usual:
            others.setdefault(value, {})[row] = None
    exceptions = ", ".join(f"{'; '.join(rows)}: {value}" for value, rows in others.items())
    return f"{usual} ({exceptions})" if exceptions else usual


def is_best(line: str, figure: str, summary: Summary) -> bool:
    """Whether no other line of the table is better by more than the spreads of the two over seeds."""
    sign, own = metric(figure).better, summary[line][figure]
    others = [found[figure] for found in summary.values() if figure in found]
    return all(sign * (other["mean"] - own["mean"]) <= own["std"] + other["std"] for other in others)


def blocks(figures: Iterable[str]) -> dict[str, list[str]]:
    """Figures in tables of their own: those of a foreign set where it has several, under its name, after the others."""
    sets = [figure.rpartition("/")[0] for figure in figures]
    found: dict[str, list[str]] = {"": []}
    for figure, foreign in zip(figures, sets, strict=True):
        found.setdefault(foreign if sets.count(foreign) > 1 else "", []).append(figure)
    return found


def markdown(table: Table, summary: Summary, figures: list[str], foreign: str) -> str:
    """Lines in the table's order, those of rows first; ours, and the published figure in brackets.

    Times and seeds are in the first of several tables, and what belongs to a foreign set does not repeat its name.
    """
    timed = not foreign and any("epoch" in found for found in summary.values())
    heads = [metric(f.removeprefix(f"{foreign}/")).label + (" %" if f in PERCENT else "") for f in figures]
    heads += ["s/epoch"] * timed + ["seeds"] * (not foreign)
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for line, found in summary.items():
        published = table.published.get(line, {})
        cells = [cell(figure, found.get(figure), published.get(figure)) for figure in figures]
        if timed:
            cells.append(f"{found['epoch']['mean']:.2f}" if "epoch" in found else "")
        if not foreign:
            cells.append(str(max((f["seeds"] for f in found.values()), default=0)))
        lines.append(f"| {line} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(figure: str, ours: Mapping[str, float] | None, published: float | None) -> str:
    """``**0.876 ± 0.004** (0.938)``: bold where ours is at least as good as the published figure."""
    if ours is None:
        return "" if published is None else f"({shown(figure, published)})"
    text = shown(figure, ours["mean"]) + (f" ± {shown(figure, ours['std'])}" if ours["seeds"] > 1 else "")
    if published is None:
        return text
    return f"{f'**{text}**' if meets(figure, ours['mean'], published) else text} ({shown(figure, published)})"


def shown(figure: str, value: float) -> str:
    """Percent with one digit after the point, counts as they are, anything else with three digits."""
    if figure == "stored":
        return f"{value:,.0f}"
    return f"{100 * value:.1f}" if figure in PERCENT else f"{value:.3f}"
