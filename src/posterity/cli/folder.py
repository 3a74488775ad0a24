"""A run folder: the resolved config, the posterior, the training curve, and what is needed to feed it raw inputs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from posterity import models
from posterity.cli.config import RunConfig
from posterity.data import DataSet, Kind, Standardiser, Task, Vocabulary
from posterity.files import read_state, write_bytes, write_state
from posterity.posteriors import Posterior, load, save
from posterity.types import PosterityError

__all__ = ["RunFolder"]


class RunFolder:
    """Where a fit leaves its results."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.checkpoint = path / "checkpoint.safetensors"
        self.posterior_file = path / "posterior.safetensors"
        self.card = path / "data.safetensors"

    def write(self, posterior: Posterior, dataset: DataSet, history: list[dict[str, float]]) -> None:
        """Save a finished fit; its checkpoint is no longer needed."""
        write_state(self.card, _card(dataset), "data card")
        write_bytes(self.path / "history.json", json.dumps(history, indent=1).encode())
        save(posterior, self.posterior_file)
        for part in self.checkpoints():
            part.unlink()

    def checkpoints(self) -> list[Path]:
        """What an interrupted fit has left to go on from; members have a file each."""
        return list(self.path.glob(f"{self.checkpoint.name}*"))

    def config(self) -> RunConfig:
        """The resolved config."""
        if not self.config_file.is_file():
            raise PosterityError(f"{self.path} is not a run folder: it has no config.toml")
        return RunConfig.read(self.config_file, ())

    def blank(self) -> DataSet:
        """A data set with this one's units, classes and sizes and a single empty example."""
        return _blank(read_state(self.card, "data card"))

    def dataset(self) -> DataSet:
        """The data of this run, in the units that its network knows: a file may have grown since."""
        dataset, known = self.config().load_data(), self.blank()
        return dataset if _units_and_classes(dataset) == _units_and_classes(known) else dataset.continuing(known)

    def device(self) -> torch.device:
        """Where predictions are made: as in the fit, since BatchNorm's statistics are those of draws made there."""
        return self.config().make_training().pick_device()

    def posterior(self, device: torch.device | str = "cpu") -> Posterior:
        """The posterior, on a freshly made network."""
        config, dataset = self.config(), self.blank()
        module = models.make(config.model, dataset, outputs_for(config, dataset))
        return load(self.posterior_file, module, device)


def with_earlier(config: RunConfig) -> tuple[RunConfig, DataSet]:
    """The data; where a run goes on from an earlier one, in its units and classes, with its network and target."""
    if not config.prior:
        return config, config.load_data()
    earlier = RunFolder(Path(config.prior))
    known = earlier.config()
    same = {name: getattr(config, name) or getattr(known, name) for name in ("model", "likelihood", "task", "target")}
    config = replace(config, **same)
    return config, config.load_data().continuing(earlier.blank())


def outputs_for(config: RunConfig, dataset: DataSet) -> int:
    """How many outputs the network needs under this likelihood."""
    twice = config.likelihood == "HeteroscedasticGaussian"
    return dataset.outputs * (2 if twice else 1)


def _card(dataset: DataSet) -> dict[str, Any]:
    return {
        "name": dataset.name,
        "task": str(dataset.task),
        "kind": str(dataset.kind),
        "shape": list(dataset.shape),
        "outputs": dataset.outputs,
        "classes": list(dataset.classes) if dataset.classes is not None else None,
        "standardiser": _units(dataset.standardiser),
        "target_standardiser": _units(dataset.target_standardiser),
        "vocabulary": list(dataset.vocabulary.words) if dataset.vocabulary is not None else None,
        "columns": list(dataset.columns) if dataset.columns is not None else None,
    }


def _blank(card: dict[str, Any]) -> DataSet:
    classes = tuple(card["classes"]) if card["classes"] is not None else None
    columns = card.get("columns")  # older run folders say nothing of them
    tokens = card["kind"] == Kind.TEXT
    inputs = torch.zeros(1, *card["shape"], dtype=torch.int64 if tokens else torch.float32)
    targets = torch.zeros(1, dtype=torch.int64) if classes else torch.zeros(1, card["outputs"])
    return DataSet(
        card["name"],
        Task(card["task"]),
        Kind(card["kind"]),
        train=None,
        test=(inputs, targets),
        classes=classes,
        standardiser=Standardiser(**card["standardiser"]) if card["standardiser"] else None,
        target_standardiser=Standardiser(**card["target_standardiser"]) if card["target_standardiser"] else None,
        vocabulary=Vocabulary(tuple(card["vocabulary"]), card["shape"][0]) if card["vocabulary"] is not None else None,
        columns=tuple(columns) if columns is not None else None,
    )


def _units_and_classes(dataset: DataSet) -> tuple[Any, ...]:
    units = (_units(dataset.standardiser) or {}, _units(dataset.target_standardiser) or {})
    return dataset.classes, dataset.columns, *({name: value.tolist() for name, value in own.items()} for own in units)


def _units(standardiser: Standardiser | None) -> dict[str, Any] | None:
    return None if standardiser is None else {"mean": standardiser.mean, "std": standardiser.std}
