"""One page for each method there is: its options, then what its module's docstring says.

A file docs/methods/NAME.md, where there is one, is used instead. Nothing else needs to be written for a new method.
"""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from posterity.methods import METHODS, Method

FOLDER = "methods"


def on_config(config: Any) -> None:
    """Put every page of the methods folder into the navigation, the overview first."""
    written = {path.name for path in Path(config.docs_dir, FOLDER).glob("*.md")}
    pages = sorted((written | {f"{name}.md" for name in METHODS}) - {"index.md"})
    for entry in config.nav:
        if entry.get("Methods") == f"{FOLDER}/":
            entry["Methods"] = [f"{FOLDER}/index.md", *(f"{FOLDER}/{page}" for page in pages)]


def on_files(files: Files, config: Any) -> None:
    """Make the overview and the pages that nobody has written."""
    pages = {f"{FOLDER}/{name}.md": page(name, cls) for name, cls in METHODS.items()}
    for path, content in {f"{FOLDER}/index.md": overview(), **pages}.items():
        if files.get_file_from_path(path) is None:
            files.append(File.generated(config, path, content=content))


def page(name: str, cls: type[Method]) -> str:
    """The page of one method."""
    rows = "\n".join(f"| `{f.name}` | `{_default(f)}` |" for f in fields(cls))
    return (
        f"# {cls.__name__}\n\n"
        f"In the shell `posterity fit --method {name}`; in Python:\n\n"
        f"```python\nposterior = pst.fit(model, pst.{cls.__name__}(), data, epochs=20)\n```\n\n"
        f"| option | default |\n|---|---|\n{rows}\n\n"
        f"::: {cls.__module__}\n    options:\n      show_root_heading: false\n      show_root_toc_entry: false\n"
    )


def overview() -> str:
    """All methods with their first sentences."""
    rows = "\n".join(
        f"| [`{cls.__name__}`]({name}.md) | `{name}` | {_first_line(cls)} |" for name, cls in METHODS.items()
    )
    return f"# Methods\n\n| Python | shell | what it is |\n|---|---|---|\n{rows}\n"


def _first_line(cls: type[Method]) -> str:
    return (inspect.getdoc(inspect.getmodule(cls)) or "").partition("\n")[0].replace("|", "\\|")


def _default(field: Any) -> str:
    if field.default is not MISSING:
        return repr(field.default).replace("|", "\\|")
    return "required" if field.default_factory is MISSING else repr(field.default_factory())
