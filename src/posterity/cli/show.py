"""Tables in the shell, and the last word of a command that was interrupted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["console", "interruptible", "table"]


def console() -> Console:
    """Where results go."""
    return Console()


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; what a class is called is no markup."""
    shown = Table()
    for name in head:
        shown.add_column(escape(name))
    for row in rows:
        shown.add_row(*map(escape, row))
    # The title is a line of its own: as the table's it would be folded to the width of a narrow one.
    console().print(f"[italic]{escape(title)}[/italic]", shown, sep="\n", highlight=False)


@contextmanager
def interruptible(next_time: str) -> Iterator[None]:
    """Say what Ctrl-C leaves to do; here, because typer lets no KeyboardInterrupt out of a command."""
    try:
        yield
    except KeyboardInterrupt:
        console().print(f"interrupted; {next_time}")
        raise typer.Exit(130) from None
