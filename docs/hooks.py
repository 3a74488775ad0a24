"""One page for each module of methods: what its docstring says, then the options of the methods in it.

A file docs/methods/MODULE.md, where there is one, is used instead. Nothing else needs to be written for a new method:
the pages, the overview and the navigation are made from ``posterity.METHODS``.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from posterity.methods import METHODS, Method

FOLDER = "methods"


def on_config(config: Any) -> None:
    """Put every page of the methods folder into the navigation, the overview first."""
    written = {path.name for path in Path(config.docs_dir, FOLDER).glob("*.md")}
    pages = dict.fromkeys(["index.md", *(f"{name}.md" for name in modules()), *sorted(written)])
    for entry in config.nav:
        if entry.get("Methods") == f"{FOLDER}/":
            entry["Methods"] = [f"{FOLDER}/{page}" for page in pages]


def on_files(files: Files, config: Any) -> None:
    """Make the pages that nobody has written."""
    pages = {"index": overview(), **{name: page(methods) for name, methods in modules().items()}}
    for name, content in pages.items():
        path = f"{FOLDER}/{name}.md"
        if files.get_file_from_path(path) is None:
            files.append(File.generated(config, path, content=content))


def modules() -> dict[str, dict[str, type[Method]]]:
    """Methods by the name of their module, then by their name in the shell."""
    grouped: dict[str, dict[str, type[Method]]] = {}
    for name, cls in METHODS.items():
        grouped.setdefault(cls.__module__.rpartition(".")[2], {})[name] = cls
    return grouped


def page(methods: dict[str, type[Method]]) -> str:
    """The page of one module: how to call its methods, then its docstring."""
    classes = list(methods.values())
    title = ", ".join(cls.__name__ for cls in classes)
    python = "\n".join(f"posterior = pst.fit(model, {_example(cls)}, data, epochs=20)" for cls in classes)
    shell = "\n".join(f"posterity fit --method {name} --data digits --out runs/{name}" for name in methods)
    return (
        f"# {title}\n\n```python\n{python}\n```\n\n```sh\n{shell}\n```\n\n"
        f"::: {classes[0].__module__}\n    options:\n      show_root_heading: false\n      show_root_toc_entry: false\n"
    )


def overview() -> str:
    """All methods with the first lines of their docstrings."""
    rows = "\n".join(
        f"| [`{cls.__name__}`]({module}.md) | `{name}` | {_about(cls)} |"
        for module, methods in modules().items()
        for name, cls in methods.items()
    )
    return (
        "# Methods\n\nEvery method is a frozen object with its hyper-parameters, and every one can be restarted "
        "several times: `members=5` with `MAP` is a deep ensemble, `members=3` with `SWAG` is MultiSWAG.\n\n"
        f"| in Python | in the shell | what it is |\n|---|---|---|\n{rows}\n"
    )


def _about(cls: type[Method]) -> str:
    """The first sentence of the class's docstring, as one cell of a table."""
    text = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
    return re.sub(r"``", "`", text).replace("|", "\\|")


def _example(cls: type[Method]) -> str:
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    return f"pst.{cls.__name__}({', '.join(f'{name}=...' for name in required)})"
