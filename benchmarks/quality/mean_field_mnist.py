"""MNIST and Fashion-MNIST with LeNet-5: MAP, MeanField, and HWA of it at equal epochs, over several seeds.

    python benchmarks/quality/mean_field_mnist.py --tune --out tuned.json        # on a validation split; one seed each
    python benchmarks/quality/mean_field_mnist.py --out results.json             # the table, on the full test sets

Runs are independent processes, eight at a time: a LeNet's step is bound by launching kernels, so they share one GPU
well. Expected on an H200 with 16 cores: the table (2 sets × 5 seeds × 5 fits of 40 epochs) about 5 minutes, the tuning
about 2. Accuracy, negative log-likelihood and calibration error (15 bins), predictive means of 32 draws; the moments
row is the single-pass prediction of the same MeanField posterior.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

import posterity as pst
from posterity import data
from posterity.evaluation.calibration import ece
from posterity.evaluation.scores import accuracy, nll
from posterity.models import lenet5

FIGURES = ("accuracy", "nll", "ece")
SETS = ("mnist", "fashion-mnist")
ESTIMATORS = ("local", "flipout", "reparameterised")
TUNED = ("prior_std", "init_std", "lr", "estimator", "temperature")


def mean_field(options: dict) -> pst.MeanField:
    return pst.MeanField(
        prior=pst.priors.Normal(options["prior_std"]),
        init_std=options["init_std"],
        estimator=options["estimator"],
        temperature=options["temperature"],
    )


def method(name: str, options: dict) -> pst.Method:
    """What a row of the table is fitted by."""
    of = mean_field(options)
    return {
        "MAP": pst.MAP(prior=pst.priors.Normal(1.0)),
        "MeanField": of,
        "HWA moments": pst.HWA(of=of, start=0.75, spread="moments"),
        "HWA mixture": pst.HWA(of=of, start=0.75, spread="mixture"),
        "HWA low rank": pst.HWA(of=of, start=0.75, spread="mixture", rank=10),
    }[name]


def one(job: dict) -> dict:
    """One fit and its figures."""
    torch.set_num_threads(1)
    images = data.load(job["set"])
    if job["validate"]:
        images = images.with_validation(10_000, torch.Generator().manual_seed(0))
    begun = time.perf_counter()
    training = pst.Training(
        batch_size=job["batch_size"], lr=job["lr"], device=job["device"], record=True, progress=False
    )
    posterior = pst.fit(
        lambda: lenet5((1, 28, 28), 10),
        method(job["method"], job),
        images.training(),
        epochs=job["epochs"],
        seed=job["seed"],
        training=training,
    )
    seconds = time.perf_counter() - begun
    held = images.validation if job["validate"] else images.test
    held = tuple(t.to(job["device"]) for t in held)
    scores = pst.evaluate(posterior, held, resamples=0)
    rows = {job["method"]: {figure: scores[figure] for figure in FIGURES}}
    if job["method"] == "MeanField":
        rows["MeanField, one pass"] = moments_figures(posterior, held)
    return {**job, "rows": rows, "seconds": seconds, "last_epoch": posterior.history[-1]}


def moments_figures(posterior: pst.Posterior, held: tuple[torch.Tensor, torch.Tensor]) -> dict[str, float]:
    """The same figures of the single-pass prediction."""
    probs = torch.cat([posterior.predict(x, draws="moments").probs for x in held[0].split(1000)])
    return {figure: float(score(probs, held[1])) for figure, score in zip(FIGURES, (accuracy, nll, ece), strict=True)}


def run_all(jobs: list[dict], workers: int, out: Path | None) -> list[dict]:
    """All jobs, in processes of their own; what is done is on disk at once."""
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        results = []
        for result in pool.map(one, jobs):
            results.append(result)
            figures = "; ".join(
                f"{name}: " + " ".join(f"{f} {v:.4f}" for f, v in row.items()) for name, row in result["rows"].items()
            )
            chosen = {key: result[key] for key in TUNED}
            print(f"{result['set']} seed {result['seed']} {chosen} {figures} ({result['seconds']:.0f} s)", flush=True)
            if out:
                out.write_text(json.dumps({"runs": results}, indent=1))
    return results


def table(results: list[dict]) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Mean and standard deviation over seeds by set, row and figure; and in how many seeds it beats MeanField."""
    summary: dict = {}
    for name in SETS:
        rows: dict[str, dict[int, dict[str, float]]] = {}
        for result in (r for r in results if r["set"] == name):
            for row, figures in result["rows"].items():
                rows.setdefault(row, {})[result["seed"]] = figures
        summary[name] = {}
        for row, by_seed in rows.items():
            summary[name][row] = {}
            for figure in FIGURES:
                values = [f[figure] for f in by_seed.values()]
                sign = 1 if figure == "accuracy" else -1
                wins = sum(sign * (f[figure] - rows["MeanField"][seed][figure]) > 0 for seed, f in by_seed.items())
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                summary[name][row][figure] = {"mean": statistics.mean(values), "std": spread, "beats_mean_field": wins}
    return summary


def show(summary: dict) -> None:
    for name, rows in summary.items():
        print(f"\n{name} (in brackets: seeds in which it beats MeanField)")
        for row, figures in rows.items():
            cells = [f"{k} {v['mean']:.4f} ± {v['std']:.4f} ({v['beats_mean_field']})" for k, v in figures.items()]
            print(f"  {row:20s} " + "   ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true", help="try settings on a validation split of the training set")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--prior-std", type=float, default=1.0)
    parser.add_argument("--init-std", type=float, default=0.01)
    parser.add_argument("--estimator", choices=("auto", *ESTIMATORS), default="auto")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = vars(parser.parse_args())
    base = {key: options[key] for key in ("epochs", "batch_size", "device", *TUNED)}
    if options["tune"]:
        grid = {"prior_std": (0.3, 1.0), "estimator": ESTIMATORS, "temperature": (1.0, 0.3, 0.1)}
        jobs = [
            base
            | {"method": "MeanField", "set": "mnist", "seed": 0, "validate": True}
            | dict(zip(grid, point, strict=True))
            for point in itertools.product(*grid.values())
        ]
    else:
        rows = ("MAP", "MeanField", "HWA moments", "HWA mixture", "HWA low rank")
        jobs = [
            base | {"method": row, "set": name, "seed": seed, "validate": False}
            for name in SETS
            for seed in range(options["seeds"])
            for row in rows
        ]
    results = run_all(jobs, options["workers"], options["out"])
    summary = {} if options["tune"] else table(results)
    show(summary)
    if options["tune"]:
        best = min(results, key=lambda r: r["rows"]["MeanField"]["nll"])
        print("best:", *(f"--{key.replace('_', '-')} {best[key]}" for key in TUNED))
    if options["out"]:
        settings = {key: str(value) for key, value in options.items() if key != "out"}
        options["out"].write_text(json.dumps({"settings": settings, "summary": summary, "runs": results}, indent=1))


if __name__ == "__main__":
    main()
