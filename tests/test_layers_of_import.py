"""A folder imports only what stands above it. Read off the syntax tree, so imports inside functions count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import posterity

ROOT = Path(posterity.__file__).parent
# "posterity" is the package itself, whose __init__ gathers what stands above it.
ORDER = [
    *("types", "random", "flat", "files", "calling", "networks", "devices", "masks"),
    *("padding", "last_layer", "unrolled", "recorded"),
    "run",
    *("data", "models"),
    *("probability", "layers"),
    *("prediction", "posteriors", "curvature", "optim", "methods", "training", "evaluation", "compression"),
    *("continual", "report", "posterity", "integrations", "cli"),
]


def imported_parts(source: str) -> Iterator[str]:
    """The parts of posterity that this code imports, wherever in the file."""
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write imports in full, so that this test can read them"
            names = [f"{node.module}.{name}" for name in names]
        for package, _, rest in (name.partition(".") for name in names):
            if package == "posterity":
                part = rest.partition(".")[0]
                yield part if part in ORDER else "posterity"


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_what_stands_above_its_folder(path):
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    own = {"__init__": "posterity", "__main__": "cli"}.get(own, own)
    below = {part for part in imported_parts(path.read_text()) if ORDER.index(part) > ORDER.index(own)}
    assert not below, f"{own} imports {sorted(below)}, which stand below it"
