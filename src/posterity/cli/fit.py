"""``posterity fit``: train a method on a data set and keep the posterior."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from posterity import data, models
from posterity.cli.config import RunConfig
from posterity.cli.folder import RunFolder, outputs_for, with_earlier
from posterity.cli.options import Target, Task
from posterity.cli.show import console, interruptible
from posterity.continual.online import carry_on, weights_of
from posterity.posteriors import Posterior
from posterity.random import global_seed
from posterity.training.fit import fit as fit_posterior
from posterity.types import PosterityError

Config = Annotated[Path | None, typer.Option(help="A TOML file with the tables run, method and training.")]
Changes = Annotated[list[str] | None, typer.Option("--set", help="One value, such as method.lr=0.1; may be repeated.")]


def fit(
    out: Annotated[Path, typer.Option(help="The run folder.")],
    method: Annotated[str | None, typer.Option(help="See `posterity methods`; map if not given.")] = None,
    data_name: Annotated[
        str | None,
        typer.Option("--data", help="See `posterity data`, or a .npz, .csv, module:function; digits if not given."),
    ] = None,
    task: Task = None,
    target: Target = None,
    model: Annotated[
        str | None, typer.Option(help="See `posterity models`, or module:function; what suits the data if not given.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data; 20 if not given.")] = None,
    members: Annotated[
        int | None, typer.Option(help="Independent restarts, 1 if not given; 5 of map are a deep ensemble.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="All randomness of the run; 0 if not given.")] = None,
    prior: Annotated[
        Path | None, typer.Option(help="A run folder whose posterior is this run's prior: learning goes on.")
    ] = None,
    config: Config = None,
    changes: Changes = None,
    resume: Annotated[bool, typer.Option(help="Go on from the run folder's checkpoint.")] = False,
) -> None:
    """Fit a posterior over networks and save it in a run folder."""
    folder = RunFolder(out)
    given = {"method": method, "data": data_name, "model": model, "epochs": epochs, "members": members, "seed": seed}
    given |= {"task": task, "target": target, "prior": None if prior is None else str(prior)}
    settings = RunConfig.read(config or (folder.config_file if resume else None), changes or (), **given)
    if folder.posterior_file.exists():
        if resume and settings == folder.config():
            console().print(f"{out} holds this run already, finished")
            return
        raise PosterityError(f"{out} already holds a finished run: choose another --out")
    if not resume and folder.checkpoints():
        raise PosterityError(f"{out} holds an interrupted run: go on with --resume, or choose another --out")
    settings, dataset = with_earlier(settings)
    settings = replace(settings, model=settings.model or models.default_for(dataset))
    with interruptible("the same command with --resume goes on from the last checkpoint"):
        posterior = _fit(settings, dataset, folder, resume)
    if posterior is not None:
        console().print(f"{posterior!r}\nsaved in {out}")


def _fit(settings: RunConfig, dataset: data.DataSet, folder: RunFolder, resume: bool) -> Posterior | None:
    """Train, and write on the one rank that writes."""
    training = settings.make_training(checkpoint=folder.checkpoint, resume=resume, progress=True)
    with global_seed(settings.seed, torch.device("cpu")):
        network = models.make(settings.model, dataset, outputs_for(settings, dataset))
    chosen = settings.make_method()
    if settings.prior:
        network, chosen = carry_on(network, chosen, weights_of(RunFolder(Path(settings.prior)).posterior()))
    writes = int(os.environ.get("RANK", 0)) == 0
    if writes:
        if folder.config_file.exists() and not resume:
            raise PosterityError(f"{folder.config_file} is there already: go on with --resume, or choose another --out")
        if not folder.checkpoints():  # which may belong to other settings, and then goes on by its own
            settings.write(folder.config_file)
    try:
        posterior = fit_posterior(
            network,
            chosen,
            dataset,
            likelihood=settings.make_likelihood(),
            epochs=None if training.steps else settings.epochs,
            members=settings.members,
            seed=settings.seed,
            training=training,
        )
    except Exception:
        if writes and not resume and not folder.checkpoints():  # nothing to go on from, so nothing in the way
            folder.config_file.unlink()
        raise
    if writes:
        settings.write(folder.config_file)
        folder.write(posterior.to("cpu"), dataset, posterior.history)
    return posterior if writes else None
