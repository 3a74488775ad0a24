"""``posterity evaluate``: is this run's confidence to be believed?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posterity import data
from posterity.cli.folder import RunFolder
from posterity.cli.show import console, table
from posterity.types import PosterityError


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder of `posterity fit`.")],
    ood: Annotated[list[str] | None, typer.Option(help="An out-of-distribution set; may be repeated.")] = None,
    shift: Annotated[bool, typer.Option(help="Also under corruptions of growing severity.")] = False,
    draws: Annotated[int, typer.Option(help="Networks to average.")] = 32,
    out: Annotated[Path | None, typer.Option(help="Also write the scores to this .json file.")] = None,
) -> None:
    """Score a fitted posterior on its test data."""
    from posterity.evaluation import evaluate as score
    from posterity.report.chains import CHAIN_HEAD, chain_row

    if out is not None and out.suffix != ".json":
        raise PosterityError(f"scores are written as .json, got {out.suffix or 'no suffix'}")
    folder = RunFolder(run)
    dataset = folder.dataset()
    others = {name: data.load(name) for name in ood or ()}
    scores = score(folder.posterior(folder.device()), dataset, ood=others, shift=shift, draws=draws)
    console().print(scores.table())
    if "chains" in scores.details:
        table("chains, by what they predict", CHAIN_HEAD, [chain_row([scores.details["chains"]])])
        for symptom in scores.details["chains"]["symptoms"]:
            console().print(symptom, highlight=False)
    if out is not None:
        scores.save(out)
