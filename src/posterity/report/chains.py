"""What is said of chains, in the shell and on the page: one row of texts a posterior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from posterity.report.plots.select import mean

__all__ = ["CHAIN_HEAD", "chain_row"]

CHAIN_HEAD = ("chains × samples", "split-R̂", "effective samples", "disagreement", "other label")
"""What the columns of ``chain_row`` are; R̂ and effective samples as median, 95% (5%) and worst over predictions."""


def chain_row(seeds: Sequence[dict[str, Any]]) -> list[str]:
    """The figures of ``chain_details``, averaged over seeds."""
    rhat, ess = (mean([found[key] for found in seeds]).tolist() for key in ("rhat", "ess"))
    labels = [found["label_disagreement"] for found in seeds if found["label_disagreement"] is not None]
    alone = seeds[0]["chains"] == 1
    return [
        f"{seeds[0]['chains']} × {seeds[0]['samples']}",
        " · ".join(f"{value:.2f}" if math.isfinite(value) else "∞" for value in rhat),
        " · ".join(f"{value:.0f}" for value in ess),
        "–" if alone else f"{mean([found['disagreement'] for found in seeds]):.3f}",
        "–" if alone or not labels else f"{100 * mean(labels):.1f}%",
    ]
