"""The farm: order, waiting, room, failures and the end of time."""

from __future__ import annotations

import json

from benchmarks.quality import everything, farm
from benchmarks.quality.everything import Job
from benchmarks.quality.farm import Farm, done


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


def test_a_job_is_interrupted_and_killed_only_if_that_does_not_help(tmp_path, monkeypatch):
    monkeypatch.setattr(farm, "PATIENCE", 1.0)
    tidy = "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: open('{out}/tidied', 'w')"
    jobs = [Job("a", "deaf", "trap '' INT; sleep 60; true"), Job("a", "tidy", f'{{python}} -c "{tidy}"')]
    Farm(jobs, tmp_path, workers=2).run(2)
    assert told(tmp_path, "killed") == ["deaf", "tidy"] and (tmp_path / "tidied").exists()


def test_a_wide_job_is_not_passed_by_the_narrow_ones_behind_it(tmp_path):
    jobs = [
        Job("a", "first", "sleep 0.1"),
        Job("a", "second", "sleep 1.5"),
        Job("b", "wide", "true", workers=2),
        Job("c", "narrow", "true"),
    ]
    Farm(jobs, tmp_path, workers=2).run(20)
    assert told(tmp_path, "start") == ["first", "second", "wide", "narrow"]


def test_a_job_wider_than_the_farm_has_it_to_itself(tmp_path):
    Farm([Job("a", "wide", "true", workers=3), Job("a", "narrow", "true")], tmp_path, workers=1).run(20)
    assert told(tmp_path, "done") == ["wide", "narrow"]


def test_every_job_has_a_name_of_its_own_and_waits_for_groups_that_there_are():
    jobs = everything.jobs()
    assert len({job.name for job in jobs}) == len(jobs)
    assert {group for job in jobs for group in job.after} <= {job.group for job in jobs}


def test_a_row_that_follows_another_has_no_trials_and_waits_for_the_choice():
    part = everything.Part("bcnn_lenet5_cifar10", ("plain", "plain-half-width"), trials=2)
    *trials, gather, plain, half = part.jobs()
    assert {job.name.rsplit("-choose-")[0] for job in trials} == {"bcnn_lenet5_cifar10-plain"}
    assert plain.after == half.after == (gather.group,)


def test_a_second_call_leaves_out_what_is_done(tmp_path):
    Farm([Job("a", "one", "true"), Job("a", "two", "false")], tmp_path, workers=2).run(20)
    assert done(tmp_path) == {"one"}
    assert done(tmp_path / "nothing yet") == set()


def test_what_is_stored_at_full_length_is_not_missing(tmp_path):
    part = everything.Part("bcnn_lenet5_mnist", ("plain", "bayesian"), seeds=3, trials=10)
    runs = [("Plain", 0, 20), ("Plain", 2, 20), ("Bayesian", 0, 10), ("Ensemble", None, None)]
    how = {"candidate": 0, "training": {"lr": "0.001"}}
    kept = [{"row": row, "seed": seed, "epochs": epochs, **how} for row, seed, epochs in runs]
    (tmp_path / "bcnn_lenet5_mnist.json").write_text(json.dumps({"runs": kept}))
    (tmp_path / "bcnn_lenet5_mnist_tuning.json").write_text(json.dumps({"runs": [{"row": "Plain"}]}))
    names = [job.name for job in part.jobs(tmp_path)]
    trials = [f"bcnn_lenet5_mnist-bayesian-choose-{n}" for n in range(4)]
    rest = ["bcnn_lenet5_mnist-plain-bayesian-gather", "bcnn_lenet5_mnist-plain-1", "bcnn_lenet5_mnist-bayesian-0-1-2"]
    assert names == trials + rest


def test_a_run_with_another_learning_rate_than_the_rows_is_missing(tmp_path):
    part = everything.Part("bcnn_lenet5_mnist", ("plain",), seeds=2)
    kept = [
        {"row": "Plain", "seed": seed, "epochs": 20, "candidate": 0, "training": {"lr": lr}}
        for seed, lr in enumerate(("0.001", "0.01"))
    ]
    (tmp_path / "bcnn_lenet5_mnist.json").write_text(json.dumps({"runs": kept}))
    assert [job.name for job in part.jobs(tmp_path)] == ["bcnn_lenet5_mnist-plain-1"]
