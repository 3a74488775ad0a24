"""What a table of results is: a frozen description of the data, the network, the rows and the published figures.

A table stands in a small file of its own beside this one and joins ``MODULES`` in ``catalogue.py``. A row is a way of
fitting, with several candidates where something must be chosen; one fit may give several lines (SWA and SWAG come from
one path). ``runs.py`` fits rows, ``gathered.py`` puts the runs together and writes the page's section.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

import posterity as pst
from posterity.data import DataSet
from posterity.run import Run

CLASSES = ("accuracy", "nll", "ece", "misclassification_auroc")
"""The figures of most classification tables."""

Network = Callable[[DataSet], nn.Module]


@dataclass(frozen=True)
class Candidate:
    """One way of fitting; the table adds batch size, augmentation and precision to ``training``."""

    method: pst.Method
    training: pst.Training = pst.Training()
    members: int = 1


@dataclass(frozen=True)
class Finished:
    """A fit that is over: what the lines of a row are read off.

    Attributes:
        posterior: What the fit gave.
        method: How.
        run: Its last (or only) member's run.
        data: What it was fitted on.
        seed: Of the fit.
    """

    posterior: pst.Posterior
    method: pst.Method
    run: Run
    data: DataSet
    seed: int


Line = Callable[[Finished], pst.Posterior]


@dataclass(frozen=True)
class Row:
    """Candidates, the first of which is taken where nothing was chosen.

    Attributes:
        candidates: Ways of fitting among which ``--choose`` chooses.
        lines: What is read off the fit, by the name of its line; empty for its own posterior under the row's name.
        network: A network of its own, where it is not the table's.
        follows: Another row whose choice it takes, because the two must not differ in what is chosen.
        batch_size: Of its own, where it is not the table's.
    """

    candidates: tuple[Candidate, ...]
    lines: Mapping[str, Line] = field(default_factory=dict)
    network: Network | None = None
    follows: str | None = None
    batch_size: int | None = None


def row(method: pst.Method, *others: pst.Method, **training: Any) -> Row:
    """A row whose candidates differ in the method alone."""
    config = pst.Training(**training)
    return Row(tuple(Candidate(each, config) for each in (method, *others)))


def own(finished: Finished) -> pst.Posterior:
    """The line that is the fit's own posterior."""
    return finished.posterior


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of results.

    Attributes:
        name: Of its files, and what the shell calls it.
        title: Its heading.
        about: What is compared and how it was made, for the page.
        data: The set for a seed; most tables have one set, UCI has a split a seed.
        network: A fresh network for the set.
        rows: What is fitted, by name.
        epochs: The same for all rows.
        seeds: How many.
        batch_size: Of all rows that have none of their own.
        augment: The same for all rows.
        autocast: Forward passes of training in bfloat16, on a GPU.
        record: Replay training steps on a GPU; not all networks can be.
        draws: Networks averaged for a prediction.
        figures: What is shown; those of an out-of-distribution set are called ``set/figure``.
        likelihood: None takes it from the targets.
        held: Training examples held out for choosing, the last ones.
        choose_by: The figure by which candidates are chosen.
        ood: Out-of-distribution sets by name.
        published: Published figures by line.
        source: Where those are from.
        ensembles: Lines that average the predictions of all seeds of another: ``{"MultiSWAG": "SWAG"}``.
        tempered: Lines that scale the temperature of another: ``{"SWA, scaled": "SWA"}``.
        curves: Draw how the training loss of every row falls.
        same_load: Rows ran beside equally many others, so that their seconds can be compared.
        remarks: What there is to say of the figures, below them.
    """

    name: str
    title: str
    about: str
    data: Callable[[int], DataSet]
    network: Network
    rows: Mapping[str, Row]
    epochs: int
    seeds: int = 3
    batch_size: int = 128
    augment: Callable[[torch.Tensor, torch.Generator], torch.Tensor] | None = None
    autocast: bool = False
    record: bool = True
    draws: int = 32
    figures: tuple[str, ...] = CLASSES
    likelihood: Any = None
    held: int | float = 5000
    choose_by: str = "nll"
    ood: Callable[[DataSet], Mapping[str, DataSet]] | None = None
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    source: str = ""
    ensembles: Mapping[str, str] = field(default_factory=dict)
    tempered: Mapping[str, str] = field(default_factory=dict)
    curves: bool = False
    same_load: bool = True
    remarks: str = ""

    def row(self, name: str) -> tuple[str, Row]:
        """A row by its name or by its file's: ``MC dropout`` and ``mc-dropout`` are one."""
        for own, found in self.rows.items():
            if slug(own) == slug(name):
                return own, found
        raise pst.PosterityError(f"{self.name} has no row {name!r}: there are {', '.join(map(slug, self.rows))}")

    def training(self, row: Row, candidate: Candidate) -> pst.Training:
        """The candidate's training with what all rows share."""
        return replace(
            candidate.training,
            batch_size=row.batch_size or self.batch_size,
            augment=self.augment,
            autocast=self.autocast and torch.cuda.is_available(),
            record=self.record,
            progress=False,
        )

    @property
    def kept(self) -> set[str]:
        """Lines whose predictions are stored, because other lines are made of them."""
        return {*self.ensembles.values(), *self.tempered.values()}


def slug(name: str) -> str:
    """A name as a file has it."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def decay(weight_decay: float, num_data: int = 50_000) -> pst.priors.Normal:
    """The Normal prior of which a published weight decay is the gradient: 1/(N std²) = decay."""
    return pst.priors.Normal((num_data * weight_decay) ** -0.5)


def only(dataset: DataSet, classes: tuple[int, ...]) -> DataSet:
    """The examples of these classes, numbered anew; standardised as the whole set was."""
    numbers = torch.full((dataset.outputs,), -1)
    numbers[list(classes)] = torch.arange(len(classes))

    def part(pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = numbers[pair[1]] >= 0
        return pair[0][rows], numbers[pair[1][rows]]

    assert dataset.classes is not None
    names = tuple(dataset.classes[c] for c in classes)
    return replace(dataset, train=part(dataset.training()), test=part(dataset.test), classes=names)
