"""Split MNIST, five tasks of two digits, one after the other: HCL with nobody saying where a task ends.

    python -m benchmarks.quality.hcl --seed 0                          # HCL-FR, one seed
    python -m benchmarks.quality.hcl --seed 0 --against replay         # HCL-GR
    python -m benchmarks.quality.hcl --seed 0 --validate --weight 1    # judged on the last 5,000 training images
    python -m benchmarks.quality.hcl --table                           # all runs so far, mean and spread over seeds

Single head: at test time a picture is one of ten digits. The flow sees pixels as a vector. One process is one run, and
leaves a file in ``--out`` with its settings, accuracies, the steps at which it found tasks, and the trace of what
detection looked at. Settings are chosen with ``--validate``; such runs are kept apart in the table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path

import torch

import posterity as pst
from posterity import continual, data

HELD = 5000
AGAINST = {"functional": continual.FunctionalRegularisation, "replay": continual.GenerativeReplay}
RESULTS = Path(__file__).parents[1] / "results" / "hcl"
TRACE = ("task", "log_likelihood", "latent", "log_det")


def pictures(validate: bool) -> tuple[list, tuple]:
    """The five tasks to learn, always without the images that settings are chosen on, and what to judge on."""
    mnist = data.load("mnist")
    (x, y), held = mnist.train, mnist.test
    if validate:
        held = x[-HELD:], y[-HELD:]
    x, y = x[:-HELD], y[:-HELD]
    return [(x[y // 2 == task], y[y // 2 == task]) for task in range(5)], held


def found(history: list[dict[str, float]]) -> dict[str, object]:
    """True changes of task, the changes that were found, and batches set aside."""
    truth = [row["step"] for before, row in itertools.pairwise(history) if row["told"] != before["told"]]
    settled = [row for row in history if row["task"] >= 0]
    turns = [
        {"step": row["step"], "task": row["task"]}
        for before, row in itertools.pairwise(settled)
        if row["task"] != before["task"]
    ]
    return {"true": truth, "found": turns, "set_aside": len(history) - len(settled), "batches": len(history)}


def run(options: argparse.Namespace) -> dict[str, object]:
    """Learn the stream, judge it on all ten digits and on each task's."""
    tasks, (x, y) = pictures(options.validate)
    flow = continual.feature_flow(784, options.couplings, options.hidden, seed=options.seed)
    config = continual.HCL(
        against=AGAINST[options.against](options.weight),
        detection=None if options.told else continual.Typicality(),
        noise=options.noise,
        mean_std=options.mean_std,
    )
    training = pst.Training(
        batch_size=options.batch_size, lr=options.lr, clip=options.clip, device=options.device, progress=False
    )
    begun = time.perf_counter()
    posterior = continual.learn_hcl(flow, tasks, config, epochs=options.epochs, seed=options.seed, training=training)
    seconds = time.perf_counter() - begun
    prediction = posterior.predict(x, draws=1)
    right = (prediction.label == y).double()
    history = posterior.history
    return {
        "accuracy": right.mean().item(),
        "by_task": [right[y // 2 == task].mean().item() for task in range(5)],
        "seconds": seconds,
        "detection": found(history),
        "trace": {name: [round(row[name], 2) if name in row else None for row in history] for name in TRACE},
    }


def table(folder: Path) -> None:
    """Mean and standard deviation over the seeds of every setting."""
    groups: dict[str, list[dict]] = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        settings = {key: value for key, value in result["settings"].items() if key not in ("seed", "device")}
        groups.setdefault(" ".join(f"{key}={value}" for key, value in settings.items()), []).append(result)
    for settings, runs in groups.items():
        scores = [100 * result["accuracy"] for result in runs]
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        tasks = [len(result["detection"]["found"]) + 1 for result in runs]
        seconds = max(result["seconds"] for result in runs)
        print(
            f"{statistics.mean(scores):6.2f} ± {spread:.2f} of {len(runs)}, tasks {tasks}, {seconds:.0f} s  {settings}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--against", choices=list(AGAINST), default="functional")
    parser.add_argument("--weight", type=float, default=8.0)
    parser.add_argument("--epochs", type=int, default=8, help="passes over each task")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clip", type=float, default=50.0, help="largest norm of the gradient")
    parser.add_argument("--noise", type=float, default=0.4)
    parser.add_argument("--mean-std", type=float, default=0.7)
    parser.add_argument("--couplings", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--told", action="store_true", help="task-aware: say where tasks end")
    parser.add_argument("--validate", action="store_true", help="judge on held-out training images")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        table(options.out)
        return
    settings = {key: value for key, value in vars(options).items() if key not in ("out", "table")}
    result = {"settings": settings, **run(options)}
    options.out.mkdir(parents=True, exist_ok=True)
    special = {key: value for key, value in settings.items() if value != parser.get_default(key)}
    named = [f"{key}-{value}" for key, value in special.items() if key not in ("seed", "against", "device")]
    (options.out / f"{'-'.join([options.against, str(options.seed), *named])}.json").write_text(json.dumps(result))
    print(f"accuracy {result['accuracy']:.4f}, by task {result['by_task']}, {result['seconds']:.0f} s")
    print(json.dumps(result["detection"]))


if __name__ == "__main__":
    main()
