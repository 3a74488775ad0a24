"""Figures and page of a stream of tasks, from results alone."""

from __future__ import annotations

import pytest

from posterity.report.continual import _verdict as verdict
from posterity.report.continual import accuracy_matrix, cells, over_tasks, write_page


def record(last: float) -> dict:
    rows = [
        {"accuracy": [0.9, 0.1], "nll": [0.3, 2.0], "ece": [0.02, 0.5]},
        {"accuracy": [last, 0.8], "nll": [0.5, 0.4], "ece": [0.03, 0.05]},
    ]
    figures = {"accuracy": (last + 0.8) / 2, "forgetting": 0.9 - last, "nll": 0.45, "ece": 0.04, "seconds": 12.0}
    return {"strategy": "Carry(<VOGN>)", "tasks": ["a", "b"], "rows": rows, "figures": figures}


RESULTS = {"benchmark": "two", "methods": {"vogn": [record(0.7), record(0.9)], "fine-tuning": [record(0.2)]}}


def test_a_row_has_means_and_spread():
    row = cells(RESULTS["methods"]["vogn"])
    assert row["accuracy"] == "80.0% ± 7.1" and row["forgetting"] == "10.0% ± 14.1" and row["seconds"] == "12 ± 0"
    assert row["forward_transfer"] == "–"


def test_the_matrix_shows_every_number_and_colours_only_what_was_learned():
    (ax,) = accuracy_matrix(record(0.7)).axes
    assert [text.get_text() for text in ax.texts] == ["90", "10", "70", "80"]
    assert ax.images[0].get_array().mask.tolist() == [[False, True], [False, False]]


def test_a_stream_that_has_grown_is_drawn():
    """Tests of later tasks are known only once they have come: the first rows are shorter."""
    (ax,) = accuracy_matrix({"rows": [{"accuracy": [0.9]}, {"accuracy": [0.7, 0.8]}]}).axes
    assert [text.get_text() for text in ax.texts] == ["90", "70", "80"]


def test_curves_are_averages_over_the_tasks_so_far():
    (ax,) = over_tasks(RESULTS).axes
    assert ax.lines[0].get_ydata().tolist() == pytest.approx([90.0, 80.0])
    assert ax.lines[1].get_ydata().tolist() == pytest.approx([90.0, 50.0])
    (band,) = ax.collections  # of the one with two seeds, which end at 75% and 85%
    ends = {round(y, 4) for x, y in band.get_paths()[0].vertices if x == 2}
    assert sorted(ends) == pytest.approx([80 - 50**0.5, 80 + 50**0.5], abs=1e-3)


def test_the_page_is_whole_and_escapes(tmp_path):
    text = write_page(RESULTS, tmp_path, "0").read_text()
    assert "vogn knows most after the last task: 80.0%" in text and "fine-tuning knows least, 50.0%" in text
    assert "Carry(&lt;VOGN&gt;)" in text and "<VOGN>" not in text and text.count("<svg") == 5
    assert len(list((tmp_path / "figures").iterdir())) == 10


@pytest.mark.parametrize(
    ("accuracies", "said"),
    [
        ((0.9,), "a knows most after the last task: 90.0% of a task's test examples are right on average."),
        ((0.9, 0.9), "a and b know equally much after the last task: 90.0%"),
        ((0.9, 0.9001, 0.9, 0.5), "a, b and c know most after the last task: 90.0%"),
        ((0.9, 0.5, 0.5), "average; b and c know least, 50.0%."),
    ],
)
def test_the_verdict_tells_no_equals_apart(accuracies, said):
    methods = {name: [{"figures": {"accuracy": value}}] for name, value in zip("abcd", accuracies, strict=False)}
    assert said in verdict({"methods": methods})
