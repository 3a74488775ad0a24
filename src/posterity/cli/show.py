"""Tables in the shell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

__all__ = ["console", "table"]


def console() -> Console:
    """Where results go."""
    return Console()


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table."""
    shown = Table(title=title, title_justify="left")
    for name in head:
        shown.add_column(name)
    for row in rows:
        shown.add_row(*row)
    console().print(shown)
