import copy

import numpy as np
import pytest

from posterity.report import plots
from posterity.report.chains import CHAIN_HEAD, chain_row
from posterity.report.page import page

FOUND = {
    "chains": 2,
    "samples": 4,
    "rhat": [1.0, 1.25, None],
    "ess": [8.0, 4.0, 2.0],
    "disagreement": 0.125,
    "label_disagreement": 0.05,
    "symptoms": ["the chains disagree"],
    "trace": [[0.0, 0.0, 0.5, 0.5], [1.0, 1.0, 1.0, 1.0]],
}


@pytest.fixture
def results(moons):
    changed = copy.deepcopy(moons)
    for run in changed["runs"]:
        if run["method"] == "swag":
            run["scores"]["details"]["chains"] = FOUND
    return changed


def test_a_row():
    assert chain_row([FOUND]) == ["2 × 4", "1.00 · 1.25 · ∞", "8 · 4 · 2", "0.125", "5.0%"]
    assert len(chain_row([FOUND])) == len(CHAIN_HEAD)
    assert chain_row([FOUND, FOUND | {"rhat": [2.0, 2.25, 3.0]}])[1] == "1.50 · 1.75 · 3.00"
    alone = FOUND | {"chains": 1, "disagreement": 0.0, "label_disagreement": None}
    assert chain_row([alone])[3:] == ["–", "–"]


def test_the_page_has_a_section(results, moons):
    text = page(results)
    assert 'id="chains"' in text and "SWAG: the chains disagree." in text and "1.00 · 1.25 · ∞" in text
    assert 'id="chains"' not in page(moons)


def test_the_note_is_of_the_seed_that_mixed_worst(results):
    """The table has means over seeds: a note of the first seed would say less than they do, or nothing."""
    later = FOUND | {"rhat": [2.0, 2.25, 3.0], "symptoms": ["split-R̂ up to 3.00"]}
    first = FOUND | {"rhat": [1.0, 1.1, 1.2], "symptoms": []}
    other = [run | {"seed": run["seed"] + 1} for run in copy.deepcopy(results["runs"])]
    for runs, found in ((results["runs"], first), (other, later)):
        for run in runs:
            if run["method"] == "swag":
                run["scores"]["details"]["chains"] = found
    text = page(results | {"runs": results["runs"] + other})
    assert "SWAG: split-R̂ up to 3.00." in text and "1.50 · 1.68 · 2.10" in text and "averaged over seeds" in text


def test_traces_and_densities(results):
    axes = plots.chains(results).axes[0]
    np.testing.assert_allclose([line.get_ydata() for line in axes.lines], FOUND["trace"])
    (side,) = axes.child_axes
    shares = [patch.get_data().values for patch in side.patches if not patch.get_fill()]
    assert shares[0][[0, 10]].tolist() == [0.5, 0.5] and shares[1][-1] == 1.0
