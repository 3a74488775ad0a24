"""Every run behind the results page, the most valuable first, for ``farm.py``.

Rows with several candidates are chosen on held-out examples before their table is filled; a job names the groups that
it comes after. Epochs are those of the tables, fewer where said here, to fit twenty minutes of one large GPU.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.quality.catalogue import TABLES
from benchmarks.quality.runs import RESULTS, settings
from benchmarks.quality.tables import Table, slug


@dataclass(frozen=True)
class Job:
    """One process.

    Attributes:
        group: What others wait for.
        name: Of its log.
        line: A shell command; ``{run}`` stands for ``python -m benchmarks.quality``, ``{out}`` for the folder.
        after: Groups that must be over.
        workers: How many of the farm's places it takes.
        seconds: How long it may take.
    """

    group: str
    name: str
    line: str
    after: tuple[str, ...] = ()
    workers: int = 1
    seconds: float = math.inf

    def command(self, python: str, out: Path) -> str:
        """What the shell runs."""
        return self.line.format(python=f"{python} -W ignore", run=f"{python} -W ignore -m benchmarks.quality", out=out)


@dataclass(frozen=True)
class Part:
    """Some rows of a table.

    Attributes:
        table: Its name.
        rows: Of it; all if none are named.
        seeds: How many.
        epochs: Instead of the table's own.
        trials: Epochs of the runs on held-out examples; 0 takes the first candidate of every row.
        apart: Long runs: a process for each seed, where otherwise one has all seeds of a row.
        compile: Compile the network.
    """

    table: str
    rows: tuple[str, ...] = ()
    seeds: int = 1
    epochs: int | None = None
    trials: int = 0
    apart: bool = False
    compile: bool = False

    def jobs(self, results: Path | None = None) -> Iterator[Job]:
        """Trials, their gathering, and the table's runs; given the folder of results, those that it has not."""
        table, how = TABLES[self.table], " --compile --out {out}/tables" if self.compile else " --out {out}/tables"
        epochs = f" --epochs {self.epochs}" if self.epochs else ""
        have = stored(results, self.table, self.epochs or table.epochs) if results else set()
        rows = [slug(name) for name in self.rows or table.rows]
        follows = {row: slug(table.row(row)[1].follows or row) for row in rows}
        untried = [
            row
            for row in rows
            if self.trials and len(table.row(row)[1].candidates) > 1 and (follows[row], None) not in have
        ]
        group, waits = f"{self.table}-{'-'.join(rows)}", ()
        trials = [row for row in untried if follows[row] == row]
        for row in trials:
            for number in range(len(table.row(row)[1].candidates)):
                line = f"{{run}} {self.table} --row {row} --choose {number} --epochs {self.trials}{how}"
                yield Job(f"{group} trials", f"{self.table}-{row}-choose-{number}", line)
        if trials:
            waits = (f"{group} gathered",)
            line = f"{{run}} {self.table} --gather {{out}}/tables"
            yield Job(waits[0], f"{group}-gather", line, (f"{group} trials",))
        # What was run before a choice was made is run again with it, so that all seeds have one setting.
        wanted = {row: [s for s in range(self.seeds) if row in untried or (row, s) not in have] for row in rows}
        alone = [(row, [s]) for s in range(self.seeds) for row in rows if s in wanted[row]]
        alone.sort(key=lambda job: (job[0], job[1][0]) in have)  # what was never run comes first
        for row, seeds in alone if self.apart else wanted.items():
            words = " ".join(map(str, seeds))
            line = f"{{run}} {self.table} --row {row} --seed {words}{epochs}{how}"
            if seeds:
                yield Job(group, f"{self.table}-{row}-{slug(words)}", line, waits if row in untried else ())


def stored(results: Path, table: str, epochs: int) -> set[tuple[str, int | None]]:
    """Rows and seeds of a table with runs of at least so many epochs; None for a row that had trials.

    A run with another learning rate than its row has now does not count: it is to be made again.
    """

    def runs(file: Path) -> list[dict[str, Any]]:
        return json.loads(file.read_text())["runs"] if file.exists() else []  # type: ignore[no-any-return]

    known = [run for run in runs(results / f"{table}.json") if run["row"] in TABLES[table].rows]
    own = [run for run in known if run["epochs"] >= epochs and of_today(TABLES[table], run)]
    tried = {(slug(run["row"]), None) for run in runs(results / f"{table}_tuning.json")}
    return tried | {(slug(run["row"]), run["seed"]) for run in own}


def of_today(table: Table, run: dict[str, Any]) -> bool:
    """Whether a run had the learning rate that the table has now."""
    candidate = table.rows[run["row"]].candidates[run["candidate"]]
    return settings(candidate.training).get("lr") == run["training"].get("lr")


LONG = (
    Part("poster_lenet5", ("vogn",), seeds=3, trials=105, apart=True),
    Part("swag_cifar10", ("sgd",), seeds=3, apart=True, compile=True),
    Part("swag_five", ("swag",), seeds=3, apart=True, compile=True),
    Part("hwa_cifar10", seeds=5, apart=True),
    Part("swag_five", ("sgd",), seeds=3, apart=True, compile=True),
    # Compiled, an epoch of ResNet-18 takes 1.06 s by itself where it took 1.29 s; eight side by side do twice the work.
    Part("cyclical_cifar10", ("cyclical-sghmc-batches-of-64",), epochs=200, apart=True, compile=True),
    Part("cyclical_cifar10", ("cyclical-sghmc", "cyclical-sgld"), seeds=3, apart=True, compile=True),
    Part("cyclical_cifar10", ("ivon", "sgd"), seeds=3, trials=64, apart=True, compile=True),
    Part("mnf_cifar5", ("mnf", "meanfield", "l2", "dropout"), seeds=3, apart=True),
    Part("cyclical_cifar10", ("snapshot-ensemble", "sghmc", "sgld"), seeds=3, apart=True, compile=True),
    Part("poster_alexnet_augmented", ("noisy-k-fac", "k-fac"), seeds=3, epochs=80, apart=True),
    Part("cyclical_cifar10", ("adamw",), seeds=3, apart=True, compile=True),
)
FIRST = (
    Part("swag_cifar10", ("swag",), seeds=3, apart=True),
    Part("poster_lenet5", ("meanfield", "ivon"), seeds=3, trials=30, apart=True),
    Part("poster_lenet5", ("mc-dropout",), seeds=3, trials=210, apart=True),
    *(
        Part(name, ("vogn", "ivon", "adam", "mc-dropout"), seeds=3, trials=TABLES[name].epochs)
        for name in ("poster_alexnet", "poster_alexnet_augmented")
    ),
)
THEN = (
    *(
        Part(name, ("map", "ivon", "meanfield", "swag"), seeds=3)
        for name in ("ood_mnist", "ood_fashion", "ood_cifar10")
    ),
    Part("poster_resnet18", seeds=3),
    *(
        Part(name, ("hwa", "mc-dropout", "vogn", "laplace", "cyclical-sghmc", "ensemble"), seeds=3)
        for name in TABLES
        if name[:3] == "ood"
    ),
    Part("bcnn_lenet5_cifar10", seeds=3, trials=40),
    Part("bcnn_lenet5_mnist", seeds=3, trials=10),
    Part("poster_ablation", seeds=3, apart=True),
    Part("poster_lenet5", ("ogn",), seeds=3, trials=20, apart=True),
    Part("poster_lenet5", ("k-fac",), seeds=3, epochs=50, trials=20, apart=True),
    Part("poster_lenet5", ("noisy-k-fac",), seeds=3, epochs=20, trials=20, apart=True),
    Part("mnf_mnist", seeds=3, trials=10),
    Part("bcnn_alexnet_cifar10", seeds=3, trials=15),
    Part("bcnn_alexnet_mnist", seeds=3),
    *(Part(name, ("ogn",), seeds=3, apart=True) for name in ("poster_alexnet", "poster_alexnet_augmented")),
    Part("poster_alexnet", ("k-fac", "noisy-k-fac"), seeds=3, epochs=40, apart=True),
    Part("hwa_mnist", seeds=5),
    *(Part(name, seeds=3, trials=8) for name in ("text_transformer", "text_lstm")),
)


def sparse() -> Iterator[Job]:
    """The sparsity tables, three seeds; the VGG from one trained network at each width."""
    script = "{python} -m benchmarks.quality.sparse_mnist"
    for seed, row in itertools.product(range(3), ("lenet-5-caffe", "lenet-5-caffe-shifted", "structured")):
        line = f"{script} --row {row} --seed {seed} --out {{out}}/sparse"
        yield Job("sparse", f"sparse-{row}-{seed}", line)
    for width in (1, 0.5, 0.25):
        vgg = f"{{run}}.sparse_cifar10 --width {width} --dense {{out}}/dense-{width}.safetensors --out {{out}}/vgg"
        yield Job(f"vgg dense {width}", f"vgg-dense-{width}", f"{vgg} --dense-only")
        for seed in range(3 if width == 1 else 1):
            yield Job("vgg", f"vgg-{width}-{seed}", f"{vgg} --seed {seed}", (f"vgg dense {width}",))


def sparse_baselines() -> Iterator[Job]:
    """Rows of the sparsity tables that need no choice."""
    for seed in range(3):
        for row in ("random-labels-dropout", "random-labels"):
            line = f"{{python}} -m benchmarks.quality.sparse_mnist --row {row} --seed {seed} --out {{out}}/sparse"
            yield Job("random labels", f"sparse-{row}-{seed}", line)
        for model in ("lenet_300_100", "lenet5_caffe"):
            line = f"{{run}}.pruning --model {model} --seed {seed} --only 'magnitude, gradual' --out {{out}}/pruning"
            yield Job("pruning", f"pruning-{model}-{seed}", line)
        for method in ("sparse-vd", "magnitude", "ard", "random", "dense"):
            line = f"{{run}}.sparse_text --method {method} --seed {seed} --out {{out}}/text"
            yield Job("sparse text", f"sparse-text-{method}-{seed}", line)
    line = "{run}.sparse_cifar10 --random-labels --epochs 15 --lr 1e-3 --out {out}/vgg"
    yield Job("vgg random", "vgg-random-labels", line)


def flows() -> Iterator[Job]:
    """HCL on split MNIST."""
    for seed in range(3):
        yield Job("hcl", f"hcl-{seed}", f"{{run}}.hcl --seed {seed} --out {{out}}/hcl")


def mean_field() -> Iterator[Job]:
    """Mean field and HWA on MNIST and Fashion-MNIST at the setting chosen, in processes of the script's own."""
    line = "{python} benchmarks/quality/mean_field_mnist.py --estimator local --temperature 0.1 --workers 4"
    yield Job("mean field", "mean-field-mnist", f"{line} --out {{out}}/mean_field_mnist_cold.json", workers=4)


def examples() -> Iterator[Job]:
    """The applications that need a GPU."""
    for seed in range(3):
        yield Job(
            "adapters", f"adapters-{seed}", f"{{python}} examples/adapters.py --seed {seed} --out {{out}}/adapters"
        )
    for seed, method in itertools.product(range(3), ("dropout", "map", "mean-field", "swag", "ivon")):
        script = f"{{python}} examples/active_learning.py --method {method} --seed {seed} --out {{out}}/active"
        rule = "entropy" if method == "map" else "bald"
        yield Job("active", f"active-{method}-{rule}-{seed}", f"{script} --rule {rule}", seconds=300)
        if method == "dropout" or seed == 0:
            yield Job("active", f"active-{method}-random-{seed}", f"{script} --rule random --each 30", seconds=300)


def uci() -> Iterator[Job]:
    """Twenty splits of six sets."""
    methods = ("VOGN", "Laplace", "SGHMC", "SWAG", "ensemble", "MeanField", "IVON", "MAP")
    for name, method in itertools.product(("naval", "yacht", "boston", "energy", "concrete", "wine"), methods):
        yield Job("uci", f"uci-{name}-{method}", f"{{run}}.uci --sets {name} --methods {method} --out {{out}}/uci")


def jobs() -> list[Job]:
    """All of them."""
    long, first, then = (itertools.chain.from_iterable(part.jobs() for part in parts) for parts in (LONG, FIRST, THEN))
    return [*long, *sparse(), *sparse_baselines(), *examples(), *first, *then, *flows(), *mean_field(), *uci()]


def missing(results: Path = RESULTS) -> list[Job]:
    """What the tables of seeds still lack."""
    return [job for part in (*LONG, *FIRST, *THEN) for job in part.jobs(results)]
