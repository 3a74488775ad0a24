"""``posterity evaluate``: is this run's confidence to be believed?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder of `posterity fit`.")],
) -> None:
    """Score a fitted posterior on its test data."""
