"""Permuted and split MNIST, one task after another: posteriors carried on beside the baselines, three seeds.

    python -m benchmarks.quality.continual --tune --workers 8        # choose settings on the last 5,000 training images
    python -m benchmarks.quality.continual --workers 8               # every row and seed on the test sets
    python -m benchmarks.quality.continual --table                   # gather the JSON files, and print the table
    python -m benchmarks.quality.continual --benchmarks permuted-mnist --rows vogn --seeds 0 --workers 1 --out h200

Every run is a process of its own and writes one JSON file; a run whose file is there is not repeated, so the same
command goes on after a stop. Settings chosen by ``--tune`` are written to continual_chosen.json, which the other runs
read; without it they take the first of each grid below. "200" rows remember 200 examples of each task.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import posterity as pst
from posterity import continual
from posterity.continual import EWC, Carry, FineTuning, Functional, Joint, Memory, Replay, Strategy

RESULTS = Path(__file__).parents[1] / "results"
RUNS, TUNING, CHOSEN = RESULTS / "continual", RESULTS / "continual_tuning", RESULTS / "continual_chosen.json"
BENCHMARKS = ("permuted-mnist", "split-mnist")
SEEDS = (0, 1, 2)
BATCH = 512  # a step of a small network is bound by launching kernels: fewer, larger ones

Options = dict[str, Any]


def vogn(o: Options) -> pst.VOGN:
    return pst.VOGN(
        prior=pst.priors.Normal(o["prior"]),
        damping=0.0,  # it would add to the precision of every weight with every task
        beta2=0.99,
        init_precision=o["init_precision"],
        mc_samples=o["mc_samples"],
    )


def mean_field(o: Options) -> pst.MeanField:
    return pst.MeanField(prior=pst.priors.Normal(o["prior"]), init_std=o["init_std"])


def ivon(o: Options) -> pst.IVON:
    return pst.IVON(prior=pst.priors.Normal(o["prior"]), hess_init=o["hess_init"], beta2=0.9995)


STRATEGIES: dict[str, Callable[[Options], Strategy]] = {
    "fine-tuning": lambda o: FineTuning(),
    "ewc": lambda o: EWC(strength=o["strength"]),
    "vogn": lambda o: Carry(method=vogn(o)),
    "ivon": lambda o: Carry(method=ivon(o)),
    "mean-field": lambda o: Carry(method=mean_field(o)),
    "replay, 200": lambda o: Replay(memory=Memory(200), rehearse=o["rehearse"]),
    "functional, 200": lambda o: Functional(memory=Memory(200), strength=o["strength"]),
    "vogn, coreset of 200": lambda o: Carry(method=vogn(o), memory=Memory(200, "k-centre")),
    "vogn, rehearsing 200": lambda o: Carry(method=vogn(o), memory=Memory(200), rehearse=o["rehearse"]),
    "joint": lambda o: Joint(),
}

_VOGN = {"lr": [0.003], "prior": [0.3, 1.0], "init_precision": [0.1], "mc_samples": [1], "epochs": [6, 12, 24]}
GRIDS: dict[str, dict[str, list[Any]]] = {
    "fine-tuning": {"lr": [1e-3], "epochs": [10, 30]},
    "ewc": {"lr": [1e-3], "strength": [10.0, 1.0, 3.0, 30.0, 100.0, 300.0, 1000.0, 3000.0], "epochs": [10]},
    "vogn": {**_VOGN, "mc_samples": [1, 3]},
    "ivon": {"lr": [0.1, 0.3], "prior": [1.0, 0.3], "hess_init": [0.1, 0.02], "epochs": [30]},
    "mean-field": {"lr": [3e-3, 1e-3], "prior": [1.0, 0.3], "init_std": [0.03, 0.1], "epochs": [30, 100]},
    "replay, 200": {"lr": [1e-3], "rehearse": [0.5, 0.3], "epochs": [10, 30]},
    "functional, 200": {"lr": [1e-3], "strength": [3.0, 0.3, 1.0, 10.0], "epochs": [10, 30]},
    "vogn, coreset of 200": _VOGN,
    "vogn, rehearsing 200": {**_VOGN, "prior": [0.3], "rehearse": [0.2, 0.1], "epochs": [6]},
    "joint": {"lr": [1e-3], "epochs": [10]},
}
"""What is tried on validation images; the first of each is what is used where nothing was tried."""


def settings_of(row: str) -> Iterator[Options]:
    """Every combination of a row's grid."""
    grid = GRIDS[row]
    return (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))


def one(job: dict[str, Any]) -> dict[str, Any]:
    """One stream by one strategy, and its record, written at once."""
    torch.set_num_threads(1)
    o = job["options"]
    known = continual.benchmark(job["benchmark"], seed=job["seed"], validate=job["validate"])
    training = pst.Training(batch_size=BATCH, lr=o["lr"], device=job["device"], progress=False)
    began = time.perf_counter()
    learned = continual.learn(
        known.module, STRATEGIES[job["row"]](o), known.tasks, epochs=o["epochs"], seed=job["seed"], training=training
    )
    about = {key: value for key, value in job.items() if key != "file"}
    record = {**about, "wall_seconds": time.perf_counter() - began, **learned.record()}
    file = Path(job["file"])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record, indent=1))
    return record


def jobs(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What is still to be run."""
    chosen = json.loads(CHOSEN.read_text()) if CHOSEN.exists() else {}
    found = []
    for stream, row in itertools.product(options.benchmarks, options.rows):
        usual = next(settings_of(row))
        tried = list(settings_of(row)) if options.tune else [chosen.get(stream, {}).get(row, usual)]
        for o, seed in itertools.product(tried, [0] if options.tune else options.seeds):
            tag = "-".join(f"{key}{value}" for key, value in o.items()) if options.tune else str(seed)
            name = f"{stream}--{row.replace(', ', '-').replace(' ', '-')}--{tag}.json"
            file = (TUNING if options.tune else options.out) / name
            job = {"benchmark": stream, "row": row, "options": o, "seed": seed, "validate": options.tune}
            found.append({**job, "device": options.device, "file": str(file)})
    return [job for job in found if not Path(job["file"]).exists()]


def run(todo: list[dict[str, Any]], workers: int) -> None:
    """Every job in a process; a line each when it is done."""
    with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=4) as pool:
        for record in pool.imap(one, todo):
            figures = record["figures"]
            print(
                f"{record['benchmark']} {record['row']} seed {record['seed']} {record['options']}: accuracy "
                f"{figures['accuracy']:.4f}, forgetting {figures['forgetting']:.4f}, ECE {figures['ece']:.4f} "
                f"({record['wall_seconds']:.0f} s)",
                flush=True,
            )


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def choose() -> None:
    """Write the best settings of every row, by the average accuracy on validation images."""
    best: dict[str, dict[str, Any]] = {}
    for record in records(TUNING):
        known = best.setdefault(record["benchmark"], {}).get(record["row"])
        if known is None or record["figures"]["accuracy"] > known["figures"]["accuracy"]:
            best[record["benchmark"]][record["row"]] = record
    for stream, rows in best.items():
        for row, record in rows.items():
            print(f"{stream} {row}: {record['options']} → {record['figures']['accuracy']:.4f} on validation images")
    chosen = {stream: {row: r["options"] for row, r in rows.items()} for stream, rows in best.items()}
    CHOSEN.write_text(json.dumps(chosen, indent=1))


def table(folder: Path) -> None:
    """Means and standard deviations over seeds: printed, and in a file beside the folder with every record."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for record in records(folder):
        found.setdefault(record["benchmark"], {}).setdefault(record["row"], []).append(record)
    content = {}
    for stream, rows in found.items():
        rows = {name: rows[name] for name in STRATEGIES if name in rows}
        summary = {name: {figure: _spread(runs, figure) for figure in FIGURES} for name, runs in rows.items()}
        content[stream] = {"benchmark": stream, "summary": summary, "methods": rows}
        print(f"\n{stream}")
        for name, figures in summary.items():
            cells = "  ".join(f"{key} {value['mean']:.4f} ± {value['std']:.4f}" for key, value in figures.items())
            print(f"  {name:<22} {cells}  ({len(rows[name])} seeds)")
    folder.with_suffix(".json").write_text(json.dumps(content, indent=1))


FIGURES = ("accuracy", "forgetting", "nll", "ece", "seconds")


def _spread(runs: list[dict[str, Any]], figure: str) -> dict[str, float]:
    values = [run["figures"][figure] for run in runs]
    return {"mean": statistics.mean(values), "std": statistics.stdev(values) if len(values) > 1 else 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true", help="try every setting on validation images, seed 0")
    parser.add_argument("--table", action="store_true", help="only gather and print what was run")
    parser.add_argument("--benchmarks", nargs="*", default=BENCHMARKS, choices=list(continual.BENCHMARKS))
    parser.add_argument("--rows", nargs="*", default=list(STRATEGIES), choices=list(STRATEGIES))
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RUNS, help="where the test runs are, one file each")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if not options.table:
        run(jobs(options), options.workers)
    if options.tune:
        choose()
    else:
        table(options.out)


if __name__ == "__main__":
    main()
