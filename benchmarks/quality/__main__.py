"""Tables of results on real data.

python -m benchmarks.quality                                            # the tables and their rows
python -m benchmarks.quality TABLE --row NAME --seed S … --out DIR      # one row: DIR/TABLE/NAME-S.json for each seed
python -m benchmarks.quality TABLE --row NAME --choose [N] --out DIR    # its candidates (or one) on held-out examples
python -m benchmarks.quality --gather DIR                               # merge into benchmarks/results
python -m benchmarks.quality.page                                       # write docs/results.md
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.quality.catalogue import TABLES
from benchmarks.quality.gathered import gather
from benchmarks.quality.runs import Budget, choose, run_row
from benchmarks.quality.tables import Table, slug
from posterity import PosterityError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", help="one of the tables; none lists them")
    parser.add_argument("--row")
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--choose", type=int, nargs="*", metavar="N", help="try these candidates (all if none given)")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--train", type=int, help="use only so many training examples")
    parser.add_argument("--test", type=int, help="use only so many test examples")
    parser.add_argument("--compile", action="store_true", help="compile the network: for long runs on a GPU")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--gather", type=Path, metavar="DIR", help="merge what runs have left there")
    options = parser.parse_args()
    if options.table is not None and options.table not in TABLES:
        raise PosterityError(f"there is no table {options.table!r}: there are {', '.join(TABLES)}")
    chosen = [TABLES[options.table]] if options.table else list(TABLES.values())
    if options.gather:
        for table in chosen:
            for line, found in gather(table, options.gather).items():
                print(f"{table.name}: {line}: " + ", ".join(f"{k} {v['mean']:.4f}" for k, v in found.items()))
    elif options.table is None:
        for table in chosen:
            print(f"{table.name}: {table.epochs} epochs, {table.seeds} seeds: {', '.join(map(slug, table.rows))}")
    else:
        one(chosen[0], options)


def one(table: Table, options: argparse.Namespace) -> None:
    """One row of one table."""
    if options.row is None:
        raise PosterityError(f"say which row: there are {', '.join(map(slug, table.rows))}")
    budget = Budget(options.epochs, options.train, options.test, options.compile)
    if options.choose is None:
        for seed in options.seed:
            report(run_row(table, options.row, seed, options.out, budget))
        return
    _, row = table.row(options.row)
    for number in options.choose or range(len(row.candidates)):
        report(choose(table, options.row, number, options.out, budget))


def report(record: dict) -> None:
    """One line a run on the terminal."""
    wanted = ("accuracy", "nll", "ece", "rmse")
    lines = {line: {k: round(found[k], 4) for k in wanted if k in found} for line, found in record["lines"].items()}
    print(json.dumps({k: record[k] for k in ("table", "row", "seconds", "failed")} | {"lines": lines}), flush=True)


if __name__ == "__main__":
    try:
        main()
    except PosterityError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
