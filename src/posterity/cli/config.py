"""What a run is made of, as TOML and back.

    [run]        data, task, target, model, method, epochs, members, seed, likelihood, augment ("crop-flip"),
                 prior (a run folder)
    [method]     the method's own hyper-parameters; a prior is a table with its kind, a wrapped method its name or a
                 table with it
    [training]   the fields of posterity.Training

``--set method.lr=0.1`` changes one value. Unknown keys are refused with the nearest name.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from posterity.data import CropFlip, DataSet, load
from posterity.files import write_bytes
from posterity.methods import METHODS, Method, tempering
from posterity.probability import likelihoods, priors
from posterity.probability.likelihoods import Likelihood
from posterity.training.config import Training
from posterity.types import PosterityError, hint

__all__ = ["RunConfig", "check_types", "nearest", "read_toml", "set_value"]

_NO_FILE = ("callbacks", "augment", "checkpoint", "resume")
_FILE_TRAINING = [f.name for f in fields(Training) if f.name not in _NO_FILE]
"""What a file can say of training; the rest is code, or belongs to the run folder."""


@dataclass(frozen=True)
class RunConfig:
    """A run, as the shell writes and reads it."""

    data: str = "digits"
    task: str = ""
    target: str = ""
    model: str = ""
    method: str = "map"
    epochs: int = 20
    members: int = 1
    seed: int = 0
    likelihood: str = ""
    augment: str = ""
    prior: str = ""
    method_options: dict[str, Any] = field(default_factory=dict)
    training_options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None, changes: Iterable[str], **given: Any) -> RunConfig:
        """A config from a file, then from ``--set`` changes, then from options given on the command line."""
        tables = read_toml(path) if path is not None else {}
        for change in changes:
            set_value(tables, change)
        _known(tables, ("run", "method", "training"), "section")
        for name, table in tables.items():
            if not isinstance(table, Mapping):
                raise PosterityError(f"[{name}] must be a table, got {table!r}")
        run = {**tables.get("run", {}), **{key: value for key, value in given.items() if value is not None}}
        names = [f.name for f in fields(cls) if not f.name.endswith("_options")]
        _known(run, names, "key in [run]")
        check_types(run, cls, "[run]")
        config = cls(**run, method_options=tables.get("method", {}), training_options=tables.get("training", {}))
        _known(config.training_options, _FILE_TRAINING, "key in [training]")
        check_types(config.training_options, Training, "[training]")
        return config

    def load_data(self) -> DataSet:
        """The data, with what was said about a file of one's own."""
        return load(self.data, task=self.task or None, target=self.target or None)

    def make_method(self) -> Method:
        """The method with its hyper-parameters."""
        return build_method(self.method, self.method_options)

    def make_training(self, **more: Any) -> Training:
        """The loop's config; ``more`` is what the command itself adds."""
        augmented = {"crop-flip": CropFlip(), "": None}
        return Training(
            **self.training_options, augment=augmented[nearest(self.augment, augmented, "augmentation")], **more
        )

    def make_likelihood(self) -> Likelihood | None:
        """The likelihood named, or None to let the targets decide."""
        return likelihoods.by_name(self.likelihood) if self.likelihood else None

    def write(self, path: Path) -> None:
        """Save the resolved config: reading it again gives the same run."""
        import tomli_w

        run = {key: value for key, value in asdict(self).items() if not key.endswith("_options")}
        training = {key: value for key, value in plain(self.make_training()).items() if key in _FILE_TRAINING}
        tables = {"run": run, "method": plain(self.make_method()), "training": training}
        write_bytes(path, tomli_w.dumps(tables).encode())


def build_method(name: str, options: Mapping[str, Any]) -> Method:
    """A method by its name in the shell, with options as TOML gives them."""
    cls = METHODS[nearest(name, METHODS, "method")]
    _known(options, [f.name for f in fields(cls)], f"option of {name}")
    defaults = {f.name: f.default for f in fields(cls)}
    values = {key: _value(value, defaults[key]) for key, value in options.items()}
    check_types(values, cls, name)
    return cls(**values)


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """The name itself if it is known, else one sentence with the nearest."""
    known = list(known)
    if name in known:
        return name
    raise PosterityError(f"unknown {what} {name!r}: {hint(name, known)}")


def plain(config: Any) -> dict[str, Any]:
    """A frozen config as a TOML table; None and defaults that TOML cannot say are left out."""
    table: dict[str, Any] = {}
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value) and not isinstance(value, type):
            table[f.name] = _labelled(value)
        elif isinstance(value, tuple):
            table[f.name] = list(value)
        elif value is not None:
            table[f.name] = value
    return table


def _labelled(part: Any) -> dict[str, Any]:
    """A method's part as a table that says what it is: a method by ``method``, a prior or a schedule by ``kind``."""
    if isinstance(part, Method):
        return {"method": next(name for name, cls in METHODS.items() if cls is type(part)), **plain(part)}
    return {"kind": type(part).__name__, **plain(part)}


def _value(value: Any, default: Any) -> Any:
    """What a TOML value stands for: tables are methods, priors and schedules; without a label that of the default."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, str) and isinstance(default, Method):
        return build_method(value, {})
    if not isinstance(value, Mapping):
        return value
    if is_dataclass(default) and not value.keys() & {"method", "kind"}:
        value = {**_labelled(default), **value}
    options = {key: v for key, v in value.items() if key not in ("method", "kind")}
    if "method" in value:
        return build_method(value["method"], options)
    if "kind" not in value:
        return value
    kinds = _kinds()
    cls = kinds[nearest(value["kind"], kinds, "kind")]
    _known(options, [f.name for f in fields(cls)], f"option of {cls.__name__}")
    check_types(options, cls, cls.__name__)
    return cls(**options)


def _kinds() -> dict[str, type]:
    """Priors and schedules of the KL, which some methods have by default, by the names of their classes."""
    found: dict[str, type] = {name: getattr(module, name) for module in (priors, tempering) for name in module.__all__}
    return {name: cls for name, cls in found.items() if is_dataclass(cls) and name not in ("Prior", "KLSchedule")}


def _known(table: Mapping[str, Any], names: Iterable[str], what: str) -> None:
    for key in table:
        nearest(key, names, what)


def check_types(values: Mapping[str, Any], cls: type, where: str) -> None:
    """Refuse values of another type than the dataclass declares."""
    hints = get_type_hints(cls)
    for f in fields(cls):
        if f.name in values and not _fits(values[f.name], hints[f.name]):
            expected = "a number" if hints[f.name] is Any else f.type
            raise PosterityError(f"{f.name} of {where} must be {expected}, got {values[f.name]!r}")


def _fits(value: Any, declared: Any) -> bool:
    kind, parts = get_origin(declared) or declared, get_args(declared)
    if kind in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if kind is Literal:
        return value in parts
    if kind is Any:  # a prior's hyper-parameter: one number, or a table of them by parameter
        return isinstance(value, int | float | Mapping)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file."""
    if not path.is_file():
        raise PosterityError(f"there is no config file {path}")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # with the mark that editors of Windows begin with
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PosterityError(f"{path} is not TOML: {error}") from error


def set_value(tables: dict[str, Any], change: str) -> None:
    """Set one dotted key, such as ``method.prior.std=0.5``."""
    key, separator, text = change.partition("=")
    *path, last = key.split(".")
    if not separator or not path:
        raise PosterityError(f"--set takes section.key=value, such as method.lr=0.1, got {change!r}")
    table = tables
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise PosterityError(f"--set {change} goes into {part}, which is {table!r} and no table")
    try:
        table[last] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        table[last] = text  # a bare word is a string
