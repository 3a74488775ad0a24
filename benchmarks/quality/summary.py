"""The summary at the top of docs/results.md: how often each method is best or tied, and what it costs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.quality import uci_page
from benchmarks.quality.gathered import Summary, is_best
from benchmarks.quality.runs import meets
from benchmarks.quality.tables import Table
from posterity.evaluation.metrics import metric

METHODS = {  # by how the lines of tables begin; the first that fits
    "MAP": ("MAP", "SGD", "Adam", "Plain", "L2"),
    "Ensemble": ("Ensemble", "ensemble"),
    "MC dropout": ("MC dropout", "Dropout"),
    "MeanField": ("MeanField", "Bayesian"),
    "HWA": ("HWA",),
    "MultiSWAG": ("MultiSWAG",),
    "SWAG": ("SWAG",),
    "SWA": ("SWA",),
    "Cyclical SG-MCMC": ("Cyclical",),
    "SG-MCMC": ("SGLD", "SGHMC"),
    "VOGN": ("VOGN",),
    "IVON": ("IVON",),
    "OGN, K-FAC": ("OGN", "K-FAC"),
    "Noisy K-FAC": ("Noisy",),
    "Laplace": ("Laplace",),
    "MNF": ("MNF",),
}
FIGURES = {"nll": "NLL", "ece": "ECE", "ood_auroc": "OOD AUROC"}
ABOUT = """## The methods side by side

On how many of the tables of this page a method is the best or tied: no other line is better by more than the spreads of
both over seeds (the standard errors over splits for UCI). 3/5 is three of five tables; a method counts with its best
line. Cost is the time of training relative to the plain network's in the same table, the median over tables: of epochs
by themselves where they were timed so, else of runs that shared a machine, which is rough.
"""


BESIDE = """### Beside the published figures

How many of a table's published figures our means meet, and which they do not, by line: by no more than the standard
deviation over seeds, or by more. Most tables have fewer epochs than was published; they say so below.
"""


@dataclass
class Record:
    """What a method has done so far."""

    won: dict[str, list[bool]] = field(default_factory=lambda: {figure: [] for figure in FIGURES})
    cost: list[float] = field(default_factory=list)


def overview(tables: Collection[Table], results: Path) -> str:
    """The summary as a section; empty without results."""
    found = summaries(tables, results)
    records = tally(found.values())
    if not records:
        return ""
    lines = ["| | " + " | ".join(f"best in {label}" for label in FIGURES.values()) + " | cost |", "|---" * 5 + "|"]
    for method, own in ((method, records[method]) for method in METHODS if method in records):
        cells = [f"{sum(won)}/{len(won)}" if won else "" for won in own.won.values()]
        cost = f"{statistics.median(own.cost):.1f}×" if own.cost else ""
        lines.append(f"| {method} | " + " | ".join([*cells, cost]) + " |")
    return "\n\n".join([ABOUT.strip(), "\n".join(lines), BESIDE.strip(), beside_published(tables, found)])


def beside_published(tables: Iterable[Table], found: dict[str, Summary]) -> str:
    """A line for each table that has published figures: how many are met, nearly met, missed and not measured."""
    lines = ["| | met | within the spread | missed | not run |", "|---|---|---|---|---|"]
    for table in tables:
        if not table.published or table.name not in found:
            continue
        figures = [(line, f, value) for line, own in table.published.items() for f, value in own.items()]
        sorts: dict[str, dict[str, list[str]]] = {}
        for line, figure, value in figures:
            sort = standing(figure, found[table.name].get(line, {}).get(figure), value)
            sorts.setdefault(sort, {}).setdefault(line, []).append(metric(figure).label)
        met = sum(map(len, sorts.get("met", {}).values()))
        rest = [
            "; ".join(f"{line}: {', '.join(own)}" for line, own in sorts.get(sort, {}).items())
            for sort in ("close", "missed", "unknown")
        ]
        lines.append(f"| {table.title} | {met} of {len(figures)} | {' | '.join(rest)} |")
    return "\n".join(lines)


def standing(figure: str, ours: Mapping[str, float] | None, published: float) -> str:
    """Where our mean is: ``met``, ``close`` (no further off than its spread over seeds), ``missed``, ``unknown``."""
    if ours is None:
        return "unknown"
    if meets(figure, ours["mean"], published):
        return "met"
    return "close" if abs(ours["mean"] - published) <= ours["std"] else "missed"


def summaries(tables: Iterable[Table], results: Path) -> dict[str, Summary]:
    """Means and spreads by table and line: the tables', UCI's, and those of the two older MNIST scripts."""
    found: dict[str, Summary] = {}
    for table in tables:
        file = results / f"{table.name}.json"
        if file.exists():
            found[table.name] = with_ood(json.loads(file.read_text()), table.same_load)
            by_itself(found[table.name], results / f"{table.name}_epochs.json")
    swag, mean_field = (
        json.loads((results / f"{name}.json").read_text()) for name in ("swag_mnist", "mean_field_mnist")
    )
    for name in ("mnist", "fashion-mnist"):
        found |= {f"SWAG, {name}": swag[name]["summary"], f"mean field, {name}": mean_field["summary"][name]}
    return found | uci_page.summaries(results)


def with_ood(stored: dict, same_load: bool) -> Summary:
    """With the AUROC by entropy averaged over foreign sets, seed by seed, and the seconds of training, by line.

    Seconds of different devices or loads are not to be compared, so a table whose runs had several has none.
    """
    summary: Summary = {line: dict(figures) for line, figures in stored["summary"].items()}
    comparable = same_load and len({run["device"] for run in stored["runs"] if "device" in run}) == 1
    values: dict[str, dict[str, list[float]]] = {}
    for run in stored["runs"]:
        for line, figures in run["lines"].items():
            own = values.setdefault(line, {"ood_auroc": [], "seconds": []})
            if figures.get("ood_auroc") is not None:
                own["ood_auroc"].append(figures["ood_auroc"])
            if "seconds" in run and comparable:
                own["seconds"].append(run["seconds"]["training"])
    for line, own in values.items():
        for figure, seen in own.items():
            if seen and line in summary:
                spread = statistics.stdev(seen) if len(seen) > 1 else 0.0
                summary[line][figure] = {"mean": statistics.mean(seen), "std": spread, "seeds": len(seen)}
    return summary


def by_itself(summary: Summary, file: Path) -> None:
    """Seconds of epochs that ran with nothing beside them (``epoch_times``) instead of those of the runs."""
    if not file.exists():
        return
    stored = json.loads(file.read_text())
    times = stored.get("recorded") or stored["launched"]
    for line, figures in summary.items():
        figures.pop("seconds", None)
        if line in times:
            figures["seconds"] = {"mean": times[line]["seconds"], "std": 0.0, "seeds": 1}


def tally(found: Iterable[Summary]) -> dict[str, Record]:
    """Wins and costs by method, over tables in which there is more than one."""
    records: dict[str, Record] = {}
    for summary in found:
        lines: dict[str, list[str]] = {}
        for line in summary:
            lines.setdefault(method_of(line), []).append(line)
        plain = seconds(lines.get("MAP", []), summary)
        for method, own in lines.items() if len(lines) > 1 else ():
            record = records.setdefault(method, Record())
            for figure in FIGURES:
                judged = [line for line in own if figure in summary[line]]
                if judged:
                    record.won[figure].append(any(is_best(line, figure, summary) for line in judged))
            cost = seconds(own, summary)
            if cost and plain:
                record.cost.append(cost / plain)
    return records


def seconds(lines: list[str], summary: Summary) -> float | None:
    """Of training, the least of these lines; None where it was not recorded."""
    return min((summary[line]["seconds"]["mean"] for line in lines if "seconds" in summary[line]), default=None)


def method_of(line: str) -> str:
    """The method that a line of a table belongs to; lines of no method are one of their own."""
    return next((method for method, starts in METHODS.items() if line.startswith(starts)), "other")
