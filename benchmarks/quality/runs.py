"""One process fits one row with one seed and writes one JSON; choosing works the same on held-out training examples."""

from __future__ import annotations

import datetime
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import posterity as pst
from benchmarks.quality.tables import Candidate, Finished, Line, Row, Table, own, slug
from posterity.data import DataSet
from posterity.evaluation.classes import ClassJudge
from posterity.evaluation.extras import stored
from posterity.evaluation.gather import gather
from posterity.files import write_bytes
from posterity.posteriors import Empirical
from posterity.run import Run

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class Budget:
    """How much of a table to run; None is all of it. Anything less is for trying things out, or said in the table.

    ``compile`` compiles the network, which takes a minute and pays in long runs of large networks on a GPU.
    """

    epochs: int | None = None
    train: int | None = None
    test: int | None = None
    compile: bool = False


class Clock:
    """A callback that remembers when each epoch ended, and the run itself; a log shows how far it is."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.marks: list[float] = []

    def on_epoch(self, run: Run, figures: dict[str, float]) -> None:
        self.run = run
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.marks.append(time.perf_counter())
        print(f"epoch {len(self.marks)}: loss {figures['loss']:.4f}", file=sys.stderr, flush=True)

    def epoch(self) -> float | None:
        """The median seconds of an epoch after the first two, which warm up; None where there are too few."""
        spans = [after - before for before, after in zip(self.marks[1:-1], self.marks[2:], strict=True)]
        return statistics.median(spans) if spans else None


def run_row(table: Table, name: str, seed: int, out: Path, budget: Budget) -> dict[str, Any]:
    """Fit a row on all training examples, judge its lines on the test set, and write ``out/TABLE/ROW-SEED.json``."""
    name, row = table.row(name)
    number, chosen = choice(table, name)
    data = shortened(table.data(seed), budget)
    finished, record = fitted(table, row, row.candidates[number], data, seed, budget)
    record |= {"table": table.name, "row": name, "seed": seed, "candidate": number, "chosen": chosen}
    file = out / table.name / f"{slug(name)}-{seed}.json"
    judge(table, row, finished, outside(table, data, budget), record, file)
    return record


def choose(table: Table, name: str, number: int, out: Path, budget: Budget) -> dict[str, Any]:
    """Fit one candidate without the held-out training examples, judge it on them: ``out/TABLE_tuning/ROW-N.json``."""
    name, row = table.row(name)
    data = shortened(table.data(0), budget)
    held = table.held if isinstance(table.held, float) or budget.train is None else 0.1
    split = data.with_validation(held)
    assert split.validation is not None
    data = replace(split, test=split.validation, validation=None)  # from here on there is no test set
    finished, record = fitted(table, row, row.candidates[number], data, 0, budget)
    record |= {"table": table.name, "row": name, "candidate": number}
    file = out / f"{table.name}_tuning" / f"{slug(name)}-{number}.json"
    no_others = replace(table, ensembles={}, tempered={})  # no line is made of a trial's predictions
    judge(no_others, row, finished, outside(table, data, budget), record, file)
    return record


def lines_of(row: Row, name: str) -> Mapping[str, Line]:
    """The lines that a row gives."""
    return row.lines or {name: own}


def judge(
    table: Table, row: Row, finished: Finished, ood: Mapping[str, DataSet], record: dict[str, Any], file: Path
) -> None:
    """Judge line by line, writing after each; one that fails is recorded with its error and leaves the others be.

    Predictions of which other lines are made are stored beside the record, in ``.npz``.
    """
    record |= {"lines": {}, "failed": {}}
    begin, data, predictions = time.perf_counter(), finished.data, dict[str, np.ndarray]()
    for line, read in lines_of(row, record["row"]).items():
        try:
            posterior = read(finished)
            record["lines"][line] = scored(posterior, data, ood, table.draws)
            if line in table.kept:
                predictions[line] = probabilities(posterior, data, table.draws)
        except (pst.PosterityError, RuntimeError) as error:
            record["failed"][line] = f"{type(error).__name__}: {error}"
        record["seconds"]["judging"] = time.perf_counter() - begin
        write(file, record)
        if line in predictions:
            np.savez(file.with_suffix(".npz"), targets=data.test[1].numpy(), **predictions)


def choice(table: Table, name: str) -> tuple[int, bool]:
    """The candidate that did best on held-out examples, and whether any was tried; the first where none was.

    Best is what misses the fewest of the row's published figures, and among those the best ``choose_by``. Only the
    longest trials count: a short one says little of a long run.
    """
    file, name = RESULTS / f"{table.name}_tuning.json", table.rows[name].follows or name
    tried = [run for run in json.loads(file.read_text())["runs"] if run["row"] == name] if file.exists() else []
    if not tried:
        return 0, False
    longest = max(run["epochs"] for run in tried)
    tried = [run for run in tried if run["epochs"] == longest]
    sign = -pst.evaluation.metrics.metric(table.choose_by).better
    scores = {run["candidate"]: (missed(table, name, run), best_line(run, table.choose_by, sign)) for run in tried}
    return min(scores, key=lambda number: scores[number]), True


def missed(table: Table, name: str, run: dict[str, Any]) -> int:
    """How many of the published figures of a row its trial does not reach."""
    found, published = run["lines"].get(name, {}), table.published.get(name, {})
    return sum(found.get(f) is None or not meets(f, found[f], value) for f, value in published.items())


def meets(figure: str, ours: float, published: float) -> bool:
    """Whether ours is at least as good."""
    return pst.evaluation.metrics.metric(figure).better * (ours - published) >= 0


def best_line(run: dict[str, Any], figure: str, sign: int) -> float:
    """The figure of a trial's best line, the lower the better; infinite where there is none."""
    values = [line[figure] for line in run["lines"].values() if line.get(figure) is not None]
    return min((sign * value for value in values), default=math.inf)


def fitted(
    table: Table, row: Row, candidate: Candidate, data: DataSet, seed: int, budget: Budget
) -> tuple[Finished, dict[str, Any]]:
    """The fit, and the record of how it was made."""
    clock, epochs = Clock(), budget.epochs or table.epochs
    training = replace(table.training(row, candidate), callbacks=(clock,), compile=budget.compile)
    network = row.network or table.network
    begin = time.perf_counter()
    posterior = pst.fit(
        lambda: network(data),
        candidate.method,
        data.training(),
        likelihood=table.likelihood,
        epochs=epochs,
        members=candidate.members,
        seed=seed,
        training=training,
    )
    seconds = time.perf_counter() - begin
    assert clock.run is not None
    record = {
        "method": repr(candidate.method),
        "training": settings(training),
        "members": candidate.members,
        "epochs": epochs,
        "examples": {"train": len(data.training()[1]), "test": len(data.test[1])},
        "parameters": sum(p.numel() for p in posterior.module.parameters()),
        "seconds": {"training": seconds, "epoch": clock.epoch()},
        "losses": [round(figures["loss"], 4) for figures in posterior.history if "loss" in figures],
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "posterity": pst.__version__},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "date": datetime.date.today().isoformat(),
    }
    return Finished(posterior, candidate.method, clock.run, data, seed), record


def scored(posterior: pst.Posterior, data: DataSet, ood: Mapping[str, DataSet], draws: int) -> dict[str, float]:
    """Every figure of a line that is one number, and how many numbers the posterior holds."""
    return {**pst.evaluate(posterior, data, ood=ood, draws=draws, resamples=0), "stored": numbers(posterior)}


def outside(table: Table, data: DataSet, budget: Budget) -> dict[str, DataSet]:
    """The table's out-of-distribution sets."""
    found = table.ood(data) if table.ood else {}
    return {name: shortened(foreign, Budget(test=budget.test)) for name, foreign in found.items()}


def numbers(posterior: pst.Posterior) -> int:
    """What the posterior's file would hold, without the zeros of a pruned network."""
    match posterior:
        case Empirical(points=[point]):
            return sum(int(w.count_nonzero()) for w in point.values())
    return stored(posterior)


def probabilities(posterior: pst.Posterior, data: DataSet, draws: int) -> np.ndarray:
    """Class probabilities of the test examples, of which ensembles and tempered lines are made."""
    return gather(posterior, data, draws, ClassJudge()).prediction.probs.float().numpy()


def shortened(data: DataSet, budget: Budget) -> DataSet:
    """Fewer examples, for trying things out."""
    if budget.train is not None and budget.train < len(data.training()[1]):
        data = data.subset(torch.arange(budget.train))
    return (
        data if budget.test is None else replace(data, test=(data.test[0][: budget.test], data.test[1][: budget.test]))
    )


def settings(training: pst.Training) -> dict[str, str]:
    """What differs from the defaults, as text."""
    plain = pst.Training()
    return {
        f.name: str(getattr(training, f.name))
        for f in fields(training)
        if getattr(training, f.name) != getattr(plain, f.name) and f.name not in ("callbacks", "progress")
    }


def write(file: Path, record: Mapping[str, Any]) -> None:
    """A JSON file, whole or not at all; numbers that are none become null."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(file, (json.dumps(_finite(record), indent=1, allow_nan=False) + "\n").encode())


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
