"""The time of an epoch of every row of a table against its first row, one after the other with nothing else running.

    python -m benchmarks.quality.epoch_times poster_lenet5 --out benchmarks/results/poster_lenet5_epochs.json
    python -m benchmarks.quality.epoch_times poster_lenet5 --rows adam vogn --out times.json

Every row has one draw a step. On a GPU each is timed with its steps launched piece by piece and with them recorded.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import fields, replace
from pathlib import Path

import torch

import posterity as pst
from benchmarks.quality.catalogue import TABLES
from benchmarks.quality.runs import Budget, Clock, shortened, write
from benchmarks.quality.tables import Row, Table
from posterity.data import DataSet

EPOCHS = 4  # of one fit, of which the last two count


def one_draw(method: pst.Method) -> pst.Method:
    """The method at one draw a step."""
    return replace(method, mc_samples=1) if "mc_samples" in {f.name for f in fields(method)} else method


def seconds(table: Table, row: Row, data: DataSet, record: bool) -> float:
    """Of one epoch of the row's first candidate."""
    clock, candidate = Clock(), row.candidates[0]
    training = replace(table.training(row, candidate), record=record, callbacks=(clock,))
    network = row.network or table.network
    pst.fit(lambda: network(data), one_draw(candidate.method), data.training(), epochs=EPOCHS, training=training)
    found = clock.epoch()
    assert found is not None
    return found


def times(table: Table, data: DataSet, record: bool, rounds: int) -> dict[str, dict[str, float]]:
    """The median over rounds in which the rows take turns, and its ratio to the first row's."""
    found: dict[str, list[float]] = {name: [] for name in table.rows}
    for _ in range(rounds):
        for name, row in table.rows.items():
            found[name].append(seconds(table, row, data, record))
    medians = {name: statistics.median(each) for name, each in found.items()}
    first = next(iter(medians.values()))
    return {name: {"seconds": median, "ratio": median / first} for name, median in medians.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--rows", nargs="+", help="only these, the first being what the others are compared with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train", type=int, help="use only so many training examples")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    options = parser.parse_args()
    table = TABLES[options.table]
    if options.rows:
        table = replace(table, rows=dict(table.row(name) for name in options.rows))
    data = shortened(table.data(0), Budget(train=options.train))
    ways = {"launched": False, "recorded": True} if torch.cuda.is_available() else {"launched": False}
    result = {way: times(table, data, record, options.rounds) for way, record in ways.items()}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    write(options.out, {"table": table.name, "batch_size": table.batch_size, "device": device, **result})
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
