"""What the runs of a comparison share, and how one of them goes.

    settings are chosen on the validation part (first seed only), the posterior is fitted on the training part,
    evaluated on test, foreign and corrupted inputs, tempered on the validation part, and its figures are written

Every finished (method, seed) is one JSON file, so that an interrupted comparison goes on where it was. A method that
fails is kept with its reason, and the rest go on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import time
import warnings
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posterity import data as sets
from posterity import models
from posterity.data.foreign import foreign
from posterity.evaluation.calibration import ece
from posterity.evaluation.contest import Contest, Watch
from posterity.evaluation.evaluate import evaluate
from posterity.evaluation.extras import TrainingState, shown_examples, stored, surface
from posterity.evaluation.recipes import Options, Recipe, Sizes, recipes, sizes
from posterity.evaluation.scores import nll
from posterity.files import write_bytes
from posterity.methods import METHODS
from posterity.posteriors import Posterior, temper
from posterity.random import generator_for
from posterity.training.config import Training
from posterity.training.fit import fit
from posterity.types import PosterityError

__all__ = ["Arena"]

Made = tuple[Posterior, dict[str, float], int]
"""A fitted posterior, what it cost, and the epochs it took."""


@dataclass
class Arena:
    """Everything that the runs of a comparison share."""

    contest: Contest
    folder: Path
    dataset: sets.DataSet
    model: str
    sizes: Sizes
    entries: list[Recipe]
    outside: dict[str, Any]
    made_of: str
    chosen: dict[str, Options] = field(default_factory=dict)
    pace: dict[str, float] = field(default_factory=dict)
    warm: bool = False

    @classmethod
    def build(cls, contest: Contest, folder: Path) -> Arena:
        """Load the data, split off the validation part, and see that every name means something."""
        loaded = sets.load(contest.data, task=contest.task, target=contest.target)
        size = sizes(len(loaded.training()[0]))
        dataset = loaded.with_validation(size.validation, generator_for(0))
        model = contest.model or models.default_for(dataset)
        network = models.make(model, dataset)
        outside: dict[str, Any] = {}
        if dataset.task == sets.Task.CLASSIFICATION:
            outside = foreign(dataset, generator_for(1)) | {name: sets.load(name) for name in contest.ood}
            for name in contest.ood:
                outside[name].in_units_of(dataset)  # inputs of another shape are refused before anything is trained
        elif contest.ood:
            raise PosterityError(f"out-of-distribution figures need classes, but {dataset.name} is a regression")
        entries = recipes(contest.methods, network, dataset)
        seen = [dataset, *(outside[name] for name in contest.ood)]
        return cls(contest, folder, dataset, model, size, entries, outside, _fingerprint(network, seen))

    @property
    def epochs(self) -> int:
        """Passes over the data of MAP, and of all under equal epochs."""
        return self.contest.epochs or self.sizes.epochs

    def record(self, recipe: Recipe, seed: int, tell: Watch) -> dict[str, Any]:
        """One finished run: read from its file if it is there, else made and written."""
        path = self.folder / "runs" / f"{recipe.name}-{seed}.json"
        identity = self._identity(recipe, seed)
        known = _read(path)
        if known.get("identity") == identity and known["status"] == "done":
            self.chosen.setdefault(recipe.name, recipe.settings[known["setting"]])
            self.pace.setdefault(recipe.name, known["figures"]["train_seconds"] / known["epochs"])
            tell(recipe.name, seed, "kept", known)
            return known
        record: dict[str, Any] = {"method": recipe.name, "seed": seed, "identity": identity}
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                record |= self._run(recipe, seed, tell) | {"status": "done"}
            record["warnings"] = sorted({str(w.message) for w in caught})
        except Exception as error:  # whatever a method or a user's network raises, the others go on
            record |= {"status": "failed", "reason": f"{error}" or type(error).__name__}
        write_bytes(path, json.dumps(record).encode())
        tell(recipe.name, seed, record["status"], record)
        return record

    def _run(self, recipe: Recipe, seed: int, tell: Watch) -> dict[str, Any]:
        tried: list[dict[str, Any]] = []
        made = None
        if recipe.name not in self.chosen:
            tell(recipe.name, seed, "choosing", {})
            made, tried = self._choose(recipe, seed)
        tell(recipe.name, seed, "training", {})
        posterior, costs, epochs = made or self._fit(recipe, self.chosen[recipe.name], seed)
        return self._judge(posterior, costs, self.contest.shift and seed == 0) | {
            "epochs": epochs,
            "setting": recipe.settings.index(self.chosen[recipe.name]),
            "method_repr": repr(recipe.make(self.chosen[recipe.name]))
            + ("" if recipe.members == 1 else f" × {recipe.members}"),
            "tried": tried,
            "history": posterior.history or (posterior.parts[0].history if posterior.parts else []),
        }

    def _choose(self, recipe: Recipe, seed: int) -> tuple[Made, list[dict[str, Any]]]:
        """Fit every setting and keep the best on the validation part; restarts take what their method took.

        A later setting must beat the best so far by more than a standard error of the paired difference: a small
        validation part must not talk a method out of its first setting. A failing setting is left out, unless all do.
        """
        settings = recipe.settings if self.contest.tune else recipe.settings[:1]
        if recipe.name != recipe.method and recipe.method in self.chosen:
            settings = (self.chosen[recipe.method],)
        best: tuple[Tensor, Options, Made] | None = None
        tried: list[dict[str, Any]] = []
        for options in settings:
            note: dict[str, Any] = {"method": repr(recipe.make(options))}
            try:
                made = self._fit(recipe, options, seed)
            except PosterityError as error:
                tried.append(note | {"validation_nll": None, "reason": str(error)})
                if best is None and options == settings[-1]:
                    raise
                continue
            losses = self._validation_losses(made[0])
            tried.append(note | {"validation_nll": losses.mean().item()})
            if best is None or _clearly_less(losses, best[0]):
                best = losses, options, made
        assert best is not None
        self.chosen[recipe.name] = best[1]
        return best[2], tried if len(settings) > 1 else []

    def _fit(self, recipe: Recipe, options: Options, seed: int) -> Made:
        state = TrainingState()
        lr = self.sizes.lr if recipe.plain else None
        training = Training(batch_size=self.sizes.batch_size, lr=lr, progress=False, callbacks=(state,))
        if not self.warm:  # what happens only once in a process must not count as the first method's time
            self.warm = True
            with contextlib.suppress(Exception):  # what is wrong with MAP is no reason for another method's failure
                fit(
                    self._network,
                    METHODS["map"](),
                    self.dataset.training(),
                    epochs=1,
                    training=Training(progress=False),
                )
        epochs = self._epochs(recipe, options, seed, training)
        posterior, seconds = self._timed(recipe, options, seed, training, epochs)
        self.pace.setdefault(recipe.name, seconds / epochs)
        costs = {"train_seconds": seconds, "memory_mb": state.bytes / 2**20, "stored": stored(posterior)}
        return posterior, costs, epochs

    def _epochs(self, recipe: Recipe, options: Options, seed: int, training: Training) -> int:
        """The same for all, or what fits in MAP's time: measured on two epochs."""
        if self.contest.budget == "equal-epochs" or recipe.name == "map":
            return self.epochs
        if recipe.name not in self.pace:
            self.pace[recipe.name] = self._timed(recipe, options, seed, training, epochs=2)[1] / 2
        if "map" not in self.pace:
            raise PosterityError("MAP has failed, so that there is no time to keep to: use the budget equal-epochs")
        return max(2, round(self.epochs * self.pace["map"] / self.pace[recipe.name]))

    def _timed(
        self, recipe: Recipe, options: Options, seed: int, training: Training, epochs: int
    ) -> tuple[Posterior, float]:
        """A fit, and the seconds it took."""
        start = time.perf_counter()
        posterior = fit(
            self._network,
            recipe.make(options),
            self.dataset.training(),
            epochs=epochs,
            members=recipe.members,
            seed=seed,
            training=training,
        )
        return posterior, time.perf_counter() - start

    def _network(self) -> nn.Module:
        return models.make(self.model, self.dataset)

    def _validation_losses(self, posterior: Posterior) -> Tensor:
        """−log p(y) of each validation example."""
        assert self.dataset.validation is not None
        inputs, targets = (part.to(posterior.device) for part in self.dataset.validation)
        return -posterior.predict(inputs, self.contest.draws).log_prob(targets).double().cpu()

    def _judge(self, posterior: Posterior, costs: dict[str, float], shift: bool) -> dict[str, Any]:
        """Scores on the test set, costs, and what the report shows."""
        scores = evaluate(posterior, self.dataset, ood=self.outside, shift=shift, draws=self.contest.draws)
        figures = costs | {"predict_ms": 1000 * scores.about["predict_seconds"]}
        if posterior.likelihood.classifies:
            figures |= self._tempered(posterior)
            scores.details["examples"] = shown_examples(self.dataset, scores.details["examples"])
            if self.dataset.kind == sets.Kind.PLANE and self.dataset.outputs == 2:
                scores.details["surface"] = surface(posterior, self.dataset, self.contest.draws)
        return {"scores": scores.to_dict(), "figures": figures}

    def _tempered(self, posterior: Posterior) -> dict[str, float]:
        """Temperature scaling: found on the validation part, shown on the test part."""
        other = temper(posterior, self.dataset.validation, self.contest.draws)
        inputs, targets = self.dataset.test
        prediction = other.predict(inputs.to(other.device), self.contest.draws)
        return {
            "temperature": other.likelihood.temperature,  # type: ignore[attr-defined]
            "nll_tempered": nll(prediction, targets).item(),
            "ece_tempered": ece(prediction, targets).item(),
        }

    def _identity(self, recipe: Recipe, seed: int) -> str:
        """Changes whenever a run would come out differently."""
        contest = {key: value for key, value in asdict(self.contest).items() if key not in ("methods", "seeds")}
        parts = (contest, self.model, self.epochs, repr(recipe), seed, version("posterity"), self.made_of)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def about(self, seconds: float) -> dict[str, Any]:
        """How the comparison was made."""
        device = Training().pick_device()
        return {
            "config": asdict(self.contest) | {"model": self.model, "epochs": self.epochs},
            "batch_size": self.sizes.batch_size,
            "examples": {
                "train": len(self.dataset.training()[1]),
                "validation": len(self.dataset.validation[1]) if self.dataset.validation else 0,
                "test": len(self.dataset.test[1]),
            },
            "parameters": sum(p.numel() for p in self._network().parameters()),
            "foreign": list(self.outside),
            "versions": {name: version(name) for name in ("posterity", "torch", "numpy")}
            | {"python": platform.python_version()},
            "device": torch.cuda.get_device_name(device)
            if device.type == "cuda"
            else f"CPU, {torch.get_num_threads()} threads",
            "seconds": seconds,
            "date": time.strftime("%Y-%m-%d %H:%M"),
        }


def _fingerprint(network: nn.Module, seen: list[sets.DataSet]) -> str:
    """Changes with the examples and the layers: a file or a function of the user's may hold others the next time."""
    digest = hashlib.sha256(repr(network).encode())
    for dataset in seen:
        for tensor in (t for pair in (dataset.train, dataset.validation, dataset.test) if pair for t in pair):
            digest.update(tensor.contiguous().numpy())  # type: ignore[arg-type]
    return digest.hexdigest()


def _clearly_less(losses: Tensor, than: Tensor) -> bool:
    """Whether the mean loss falls by more than the standard error of the paired difference; any number beats none."""
    if not than.isfinite().all():
        return bool(losses.isfinite().all())
    gain = than - losses
    return bool(gain.mean() > gain.std() / len(gain) ** 0.5)


def _read(path: Path) -> dict[str, Any]:
    """A run's record, or nothing where there is none that can be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
