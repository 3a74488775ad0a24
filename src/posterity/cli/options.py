"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Target", "Task"]

Target = Annotated[str | None, typer.Option(help="The column to predict, of a .csv; the last if not given.")]
Task = Annotated[str | None, typer.Option(help="classification or regression, where the data do not say.")]
