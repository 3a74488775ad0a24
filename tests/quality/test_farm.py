"""The farm: order, waiting, room, failures and the end of time."""

from __future__ import annotations

import pytest
from benchmarks.quality import everything
from benchmarks.quality.chosen import RULES
from benchmarks.quality.everything import Job
from benchmarks.quality.farm import Farm


def told(out, word: str) -> list[str]:
    lines = (out / "farm.log").read_text().splitlines()
    return [line.split()[-1] for line in lines if line.split()[1] == word]


def test_a_job_waits_for_the_groups_it_comes_after_even_where_they_fail(tmp_path):
    last = Job("c", "last", "cat {out}/first > {out}/last", after=("a", "b"))
    first = Job("a", "first", "sleep 0.2; echo found > {out}/first")
    Farm([last, first, Job("b", "broken", "exit 3")], tmp_path, workers=3).run(20)
    assert (tmp_path / "last").read_text() == "found\n"
    assert told(tmp_path, "FAILED") == ["broken"] and told(tmp_path, "done") == ["first", "last"]


def test_no_more_run_than_there_is_room_for_and_time_ends_it(tmp_path):
    jobs = [
        Job("a", "wide", "sleep 60", workers=2),
        Job("a", "narrow", "sleep 60"),
        Job("a", "late", "true", workers=2),
    ]
    Farm(jobs, tmp_path, workers=3).run(1)
    assert told(tmp_path, "start") == ["wide", "narrow"]
    assert told(tmp_path, "killed") == ["wide", "narrow"] and told(tmp_path, "never") == ["late"]


def test_every_job_has_a_name_of_its_own_and_waits_for_groups_that_there_are():
    jobs = everything.jobs()
    assert len({job.name for job in jobs}) == len(jobs)
    assert {group for job in jobs for group in job.after} <= {job.group for job in jobs}


@pytest.mark.parametrize(
    ("what", "runs", "best"),
    [
        ("caffe", [{"ratio": 300, "error": 0.8}, {"ratio": 295, "error": 0.7}, {"ratio": 200, "error": 0.6}], 1),
        ("structured", [{"flops_ratio": 8, "error": 0.7}, {"error": 0.5}], 0),
        ("vgg", [{"dense": {}}, {"sparse": {"ratio": 60, "error": 7.0}}, {"sparse": {"ratio": 70, "error": 7.2}}], 1),
    ],
)
def test_the_rules_take_the_best_of_what_is_small_enough(what, runs, best):
    assert RULES[what][1](runs) is runs[best]
