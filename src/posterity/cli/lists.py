"""``posterity methods | data | models``: what there is."""

from __future__ import annotations

import inspect
from dataclasses import fields

from posterity import data as sets
from posterity import models as networks
from posterity.cli.show import table
from posterity.methods import METHODS


def methods() -> None:
    """List the methods with their options."""
    rows = []
    for name, cls in METHODS.items():
        about = (inspect.getdoc(cls) or "").partition("\n")[0]
        rows.append((name, about, ", ".join(f.name for f in fields(cls))))
    table("Methods (--method NAME, --set method.OPTION=VALUE)", ("name", "what it is", "options"), rows)


def data() -> None:
    """List the data sets, and whether they are there."""
    rows = [
        (d.name, str(d.task), "×".join(map(str, d.shape)), f"{d.train:,} + {d.test:,}", "yes" if d.here else "no")
        for d in sets.describe()
    ]
    table(
        "Data sets (--data NAME, a .npz or .csv file, or module:function)",
        ("name", "task", "input", "size", "here"),
        rows,
    )


def models() -> None:
    """List the networks, and how many weights they have for the data that they usually meet."""
    rows = [(n.name, n.about, n.usual, f"{n.weights:,}") for n in networks.describe()]
    title = "Networks (--model NAME, or module:function of your own)"
    table(title, ("name", "what it is for", "usual data", "weights"), rows)
