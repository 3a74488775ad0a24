"""``posterity compare``: every method on the same data, a ranked table, a verdict and report.html."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from posterity.cli.options import Target, Task
from posterity.cli.show import console, interruptible
from posterity.evaluation.compare import compare as run_comparison
from posterity.evaluation.contest import Contest, Watch
from posterity.types import PosterityError


def compare(
    data: Annotated[str, typer.Option(help="See `posterity data`, or a .npz, .csv, module:function.")] = "digits",
    model: Annotated[
        str, typer.Option(help="See `posterity models`, or module:function; what suits the data if not given.")
    ] = "",
    methods: Annotated[str, typer.Option(help="core, all, or names with commas: map,swag,ensemble.")] = "core",
    seeds: Annotated[int, typer.Option(help="Repetitions with other random numbers.")] = 3,
    epochs: Annotated[int, typer.Option(help="Passes over the data; 0 takes what suits its size.")] = 0,
    ood: Annotated[str, typer.Option(help="Out-of-distribution sets by name, with commas.")] = "",
    budget: Annotated[str, typer.Option(help="equal-epochs, or equal-time (that of MAP).")] = "equal-epochs",
    task: Task = None,
    target: Target = None,
    draws: Annotated[int, typer.Option(help="Networks averaged in predictions.")] = 32,
    shift: Annotated[bool, typer.Option(help="Also test on corrupted inputs.")] = True,
    tune: Annotated[bool, typer.Option(help="Choose settings on the validation part.")] = True,
    out: Annotated[Path, typer.Option(help="Where report.html, results.json and the figures go.")] = Path("report"),
) -> None:
    """Compare methods on your data and write a report; an interrupted comparison goes on where it was."""
    contest = Contest(
        data=data,
        model=model,
        methods=_names(methods),
        seeds=seeds,
        epochs=epochs,
        ood=_names(ood),
        budget=budget,  # type: ignore[arg-type]
        task=task,
        target=target,
        draws=draws,
        shift=shift,
        tune=tune,
    )
    _check(out)
    with interruptible("the same command goes on where it was"), _progress(console()) as watch:
        results = run_comparison(contest, out, watch)
    _finish(results, out)


def _check(out: Path) -> None:
    """Refuse a place that holds something else, before anything is trained."""
    if out.exists() and not out.is_dir():
        raise PosterityError(f"{out} is no folder: choose another --out")
    if (out / "results.json").exists():
        from posterity.report.page import read_results

        read_results(out)


def _finish(results: dict[str, Any], out: Path) -> None:
    """Write the report, print the table and the verdict."""
    from posterity.report.page import write_report
    from posterity.report.standing import done
    from posterity.report.tables import as_rich
    from posterity.report.verdict import verdict

    page = write_report(results, out)
    shown = console()
    shown.print(as_rich(results), crop=False)  # in a narrow terminal lines go on below, and no column is lost
    shown.print(f"\n{verdict(results)}\n", highlight=False)
    shown.print(f"{page} · {out / 'results.json'} · {out / 'figures'}", highlight=False)
    if not done(results):
        raise typer.Exit(2)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


@contextmanager
def _progress(shown: Console) -> Iterator[Watch]:
    """A live table on a terminal, a line a run elsewhere."""
    if not shown.is_terminal:

        def told(method: str, seed: int, status: str, record: dict[str, Any]) -> None:
            if status in ("done", "failed", "kept"):
                shown.print(f"{method} seed {seed}: {_line(status, record)}", highlight=False)

        yield told
        return
    rows: dict[tuple[str, int], str] = {}
    with Live(_live(rows), console=shown, refresh_per_second=4, transient=True) as live:

        def update(method: str, seed: int, status: str, record: dict[str, Any]) -> None:
            rows[method, seed] = _line(status, record)
            live.update(_live(rows))

        yield update


def _live(rows: dict[tuple[str, int], str]) -> Table:
    """One line a method, one column a seed."""
    seeds = sorted({seed for _, seed in rows})
    table = Table(title="comparing", title_justify="left")
    table.add_column("method")
    for seed in seeds:
        table.add_column(f"seed {seed}")
    for method in dict.fromkeys(method for method, _ in rows):
        table.add_row(method, *(rows.get((method, seed), "") for seed in seeds))
    return table


def _line(status: str, record: dict[str, Any]) -> str:
    """What became of a run, in a few words."""
    if status in ("choosing", "training"):
        return f"{status} …"
    if status == "failed":
        return f"[red]failed: {escape(record['reason'])}[/red]"
    figures = record["scores"]["figures"]
    first = "accuracy" if "accuracy" in figures else "rmse"
    kept = ", kept from before" if status == "kept" else ""
    seconds = record["figures"]["train_seconds"]
    return f"{first} {figures[first]:.3f}, NLL {figures['nll']:.3f} ({seconds:.1f} s{kept})"
