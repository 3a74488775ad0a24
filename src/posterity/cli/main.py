"""``posterity``: the command and its sub-commands. Bad input is one sentence and exit code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

import posterity
from posterity.cli.compare import compare
from posterity.cli.compress import compress
from posterity.cli.continual import continual
from posterity.cli.evaluate import evaluate
from posterity.cli.fit import fit
from posterity.cli.lists import data, methods, models
from posterity.cli.predict import predict
from posterity.types import PosterityError

app = typer.Typer(
    name="posterity",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def alone(command: Callable[..., None]) -> Callable[..., None]:
    """A command that is the work of one process: of those that torchrun starts, the others do nothing."""

    @wraps(command)
    def wrapper(*args: object, **kwargs: object) -> None:
        if int(os.environ.get("RANK", 0)) == 0:
            os.environ.pop("WORLD_SIZE", None)
            command(*args, **kwargs)

    return wrapper


def _version(asked: bool) -> None:
    if asked:
        print(f"posterity {posterity.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is, and end.")
    ] = False,
) -> None:
    """Bayesian deep learning for PyTorch: any network, any posterior, one interface."""


for command in (compare, fit, evaluate, predict, compress, continual, methods, data, models):
    app.command()(command if command is fit else alone(command))


def run() -> None:
    """Run the command of this shell; the user's own modules are found from the current folder."""
    sys.path.insert(0, str(Path.cwd()))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # where there is no ★, as in a Windows log, results still come
    try:
        app()
    except PosterityError as error:
        print(f"posterity: {error}", file=sys.stderr)
        sys.exit(2)
