"""MNIST and Fashion-MNIST with LeNet-5: SGD against SWA, SWAG and cyclical SGHMC, over several seeds.

    python benchmarks/quality/swag_mnist.py --out results.json

Every method gets the same epochs, batch size, prior and network. SGD anneals its rate to zero (a cosine); SWA and SWAG
come from one run of their own, whose rate falls to ``swa-lr`` and stays there. Accuracy, negative log-likelihood and
calibration error (15 bins) on the 10,000 test images; predictive means of 32 draws.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

import posterity as pst
from posterity import data
from posterity.models.convolutional import lenet5
from posterity.posteriors import Empirical

FIGURES = ("accuracy", "nll", "ece")


def fits(options: argparse.Namespace, train, seed: int) -> dict[str, pst.Posterior]:
    """One posterior of each method."""
    common = {"batch_size": options.batch_size, "device": options.device, "record": True, "progress": False}
    sgd = pst.Training(optimizer="sgd", lr=options.lr, **common)
    run = {"epochs": options.epochs, "seed": seed}
    prior = pst.priors.Normal(options.prior_std)
    network = lambda: lenet5((1, 28, 28))  # noqa: E731
    swag = pst.fit(network, pst.SWAG(rank=20, lr=options.swa_lr, prior=prior), train, training=sgd, **run)
    sampler = pst.SGHMC(lr=options.sghmc_lr, temperature=options.temperature)
    cyclical = pst.Cyclical(
        of=sampler, cycles=options.cycles, explore=options.explore, samples=options.samples, prior=prior
    )
    return {
        "SGD": pst.fit(network, pst.MAP(prior=prior), train, training=sgd, **run),
        "SWA": Empirical(swag.module, swag.likelihood, [swag.mean()]),
        "SWAG": swag,
        "Cyclical SGHMC": pst.fit(network, cyclical, train, training=pst.Training(**common), **run),
    }


def one(job: tuple[argparse.Namespace, str, int]) -> dict[str, dict[str, float]]:
    """The figures of every method on one set with one seed."""
    options, name, seed = job
    torch.set_num_threads(1)
    images = data.load(name)
    found = fits(options, tuple(t[: options.train] for t in images.training()), seed)
    scores = {method: pst.evaluate(q, images, resamples=0) for method, q in found.items()}
    return {method: {figure: s[figure] for figure in FIGURES} for method, s in scores.items()}


def summary(rows: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean and standard deviation over seeds; and of how many seeds a method beats its own seed's SGD."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for method in rows[0]:
        table[method] = {}
        for figure in FIGURES:
            values = [row[method][figure] for row in rows]
            sign = 1 if figure == "accuracy" else -1
            wins = sum(sign * (row[method][figure] - row["SGD"][figure]) > 0 for row in rows)
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            table[method][figure] = {"mean": statistics.mean(values), "std": spread, "beats_sgd": wins}
    return table


def show(name: str, table: dict[str, dict[str, dict[str, float]]], seeds: int) -> None:
    print(f"\n{name}: mean ± standard deviation over {seeds} seeds (seeds in which it beats SGD)")
    for method, figures in table.items():
        cells = [f"{k} {v['mean']:.4f} ± {v['std']:.4f} ({v['beats_sgd']})" for k, v in figures.items()]
        print(f"  {method:15s} " + "   ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="*", default=["mnist", "fashion-mnist"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--swa-lr", type=float, default=0.02)
    parser.add_argument("--prior-std", type=float, default=1.0)
    parser.add_argument("--sghmc-lr", type=float, default=0.05)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--cycles", type=int, default=4)
    parser.add_argument("--explore", type=float, default=0.8)
    parser.add_argument("--samples", type=int, default=8, help="samples kept from each cycle")
    parser.add_argument(
        "--workers", type=int, default=10, help="processes side by side; a LeNet's step is launch-bound"
    )
    parser.add_argument("--train", type=int, help="use only the first so many training images")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    settings = {key: str(value) for key, value in vars(options).items() if key != "out"}
    results: dict[str, object] = {"settings": settings}
    begun = time.perf_counter()
    jobs = [(options, name, seed) for name in options.sets for seed in range(options.seeds)]
    rows: dict[str, list] = {name: [] for name in options.sets}
    with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for (_, name, seed), row in zip(jobs, pool.map(one, jobs), strict=True):
            rows[name].append(row)
            print(f"{name}, seed {seed}: {time.perf_counter() - begun:.0f} s", flush=True)
            results[name] = {"summary": summary(rows[name]), "seeds": rows[name]}
            if options.out:
                options.out.write_text(json.dumps(results, indent=2))
    for name in options.sets:
        show(name, summary(rows[name]), options.seeds)


if __name__ == "__main__":
    main()
