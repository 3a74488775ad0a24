"""``compare``: every method on the same data, splits and network, judged on the same test examples (``arena``)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from posterity.evaluation.arena import Arena
from posterity.evaluation.contest import Contest, Watch
from posterity.files import make_folder, write_bytes

__all__ = ["Contest", "compare"]


def compare(contest: Contest, folder: Path, watch: Watch | None = None) -> dict[str, Any]:
    """Run a comparison, or go on with one.

    Args:
        contest: What to compare.
        folder: Where the runs' files go, and results.json.
        watch: Is told of every step, for a live table.
    """
    start = time.perf_counter()
    arena = Arena.build(contest, folder)
    make_folder(folder)
    tell: Watch = watch or (lambda *_: None)
    records = []
    for seed in range(contest.seeds):
        for recipe in arena.entries:
            records.append(arena.record(recipe, seed, tell))
    results = {
        "title": arena.dataset.name,
        "task": str(arena.dataset.task),
        "kind": str(arena.dataset.kind),
        "classes": list(arena.dataset.classes or ()),
        "methods": [recipe.name for recipe in arena.entries],
        "runs": records,
        "about": arena.about(time.perf_counter() - start),
    }
    write_bytes(folder / "results.json", json.dumps(results).encode())
    return results
