"""``posterity continual``: learn a stream of tasks, and see what is remembered."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

import posterity
from posterity.cli.config import RunConfig, build_method, check_types, nearest, plain, set_value
from posterity.cli.show import console, interruptible, table
from posterity.continual import BENCHMARKS, Learned, Memory, Strategy, benchmark, learn
from posterity.continual.recipes import BASELINES, Recipe, names, recipe
from posterity.files import make_folder, write_bytes
from posterity.types import PosterityError


def continual(
    benchmark_name: Annotated[
        str, typer.Option("--benchmark", help=f"One of {', '.join(BENCHMARKS)}.")
    ] = "permuted-digits",
    method: Annotated[
        str, typer.Option(help="Methods and baselines (fine-tuning, joint, ewc, replay, functional), with commas.")
    ] = "fine-tuning,ewc,vogn",
    tasks: Annotated[int | None, typer.Option(help="How many tasks; all if not given.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over each task; 0 takes what suits the stream.")] = 0,
    memory: Annotated[int, typer.Option(help="Examples of each task to keep, for those that can use them.")] = 0,
    choose: Annotated[str, typer.Option(help="How they are chosen: random or k-centre.")] = "random",
    rehearse: Annotated[float, typer.Option(help="Their share among the examples of a later task.")] = 0.0,
    temperature: Annotated[float, typer.Option(help="Of the carried prior: above 1 it forgets.")] = 1.0,
    seeds: Annotated[int, typer.Option(help="Repetitions with other random numbers.")] = 1,
    draws: Annotated[int, typer.Option(help="Networks averaged in predictions.")] = 32,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="One value, such as training.batch_size=512 or strategy.strength=10; repeatable."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where posteriors, results and report.html go.")] = Path("continual"),
) -> None:
    """Learn a stream of tasks by each method; an interrupted run goes on where it was."""
    own = [change for change in changes or () if change.startswith("strategy.")]
    config = RunConfig.read(None, [change for change in changes or () if change not in own])
    for change in changes or ():
        if change.startswith("run."):
            raise PosterityError(f"--set {change} has no effect here: give --epochs, --method or another option")
    nearest(benchmark_name, BENCHMARKS, "benchmark")
    chosen = {name: nearest(name, names(), "method") for name in (part.strip() for part in method.split(",")) if name}
    if not chosen or seeds < 1:
        raise PosterityError("no method was named" if not chosen else f"seeds must be positive, got {seeds}")
    if config.method_options and chosen.keys() <= BASELINES.keys():
        raise PosterityError(f"--set method.… is for methods, and {', '.join(chosen)} take none of their settings")
    options = {"memory": Memory(memory, choose) if memory else None, "rehearse": rehearse, "temperature": temperature}
    records: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    settings = _settings(own, list(chosen))
    # All of them first: what is wrong is refused before any is learned.
    recipes = {name: _recipe(name, config, options, settings) for name in chosen}
    for name, made in recipes.items():
        for seed in range(seeds):
            with interruptible("the same command goes on where it was"):
                learned = _learn(name, made, config, benchmark_name, tasks, epochs, seed, draws, out)
            records[name].append(learned.record())
            _finish({"benchmark": benchmark_name, "methods": {n: r for n, r in records.items() if r}}, out)
    _show(benchmark_name, records, out)


def _settings(changes: list[str], chosen: list[str]) -> dict[str, Any]:
    """What ``--set strategy.…`` says; each value must be one that a chosen strategy has of its own."""
    tables: dict[str, Any] = {"strategy": {}}
    for change in changes:
        set_value(tables, change)
    known = dict.fromkeys(key for name in chosen for key in _own(recipe(name).strategy))
    for key in tables["strategy"]:
        nearest(key, known, f"setting of {', '.join(chosen)}")
    return tables["strategy"]


def _own(strategy: Strategy) -> list[str]:
    """The settings that this strategy has and others have not."""
    shared = {f.name for f in fields(Strategy)}
    return [f.name for f in fields(strategy) if f.name not in shared]


def _recipe(name: str, config: RunConfig, options: dict[str, Any], settings: dict[str, Any]) -> Recipe:
    """The recipe of a name, with what the command changes."""
    own = None
    if config.method_options and name not in BASELINES:
        own = build_method(name, {**plain(recipe(name).strategy.method), **config.method_options})
    given = {key: value for key, value in options.items() if value is not None}
    if name in BASELINES:
        kept = {"replay": ("memory", "rehearse"), "functional": ("memory",)}.get(name, ())
        given = {key: value for key, value in given.items() if key in kept and value}
    strategy = recipe(name).strategy
    given |= {key: value for key, value in settings.items() if key in _own(strategy)}
    check_types(given, type(strategy), name)
    return recipe(name, own, **given)


def _learn(
    name: str,
    made: Recipe,
    config: RunConfig,
    stream: str,
    tasks: int | None,
    epochs: int,
    seed: int,
    draws: int,
    out: Path,
) -> Learned:
    known = benchmark(stream, tasks=tasks, seed=seed)
    make_folder(out)
    training = config.make_training(progress=True)
    if "lr" not in {**config.training_options, **config.method_options}:
        training = replace(training, lr=made.lr)
    if "batch_size" not in config.training_options:
        training = replace(training, batch_size=known.batch_size)

    def told(learned: Learned) -> None:
        done, figures = len(learned.tasks), learned.figures()
        console().print(
            f"{name}, seed {seed}: task {done} of {len(known.tasks)}, average accuracy {figures['accuracy']:.3f}",
            highlight=False,
        )

    return learn(
        known.module,
        made.strategy,
        known.tasks,
        epochs=epochs or known.epochs,
        seed=seed,
        training=training,
        folder=out / f"{name}-{seed}",
        resume=True,
        draws=draws,
        watch=told,
    )


def _finish(results: dict[str, Any], out: Path) -> None:
    """Write the results and the page of all that is done."""
    from posterity.report.continual import write_page

    write_bytes(out / "results.json", json.dumps(results, indent=1).encode())
    write_page(results, out, posterity.__version__)


def _show(stream: str, records: dict[str, list[dict[str, Any]]], out: Path) -> None:
    from posterity.report.continual import COLUMNS, cells

    # What fits 80 characters: spreads below their means, and no backward transfer, which is on the page.
    shown = [name for name in COLUMNS if name != "backward_transfer"]
    head = [text.replace(" ", "\n") for text in ("learned by", *(COLUMNS[name][0] for name in shown))]
    found = {name: cells(runs) for name, runs in records.items()}
    rows = [(name, *(row[key].replace(" ± ", "\n± ") for key in shown)) for name, row in found.items()]
    table(stream, head, rows)
    console().print(f"{out / 'report.html'} · {out / 'results.json'} · {out / 'figures'}", highlight=False)
