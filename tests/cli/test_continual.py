"""Learning that goes on, from the shell: day one and day two, a stream of tasks, and one sentence for what is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from posterity.cli.config import RunConfig
from posterity.cli.continual import _recipe
from posterity.cli.folder import RunFolder
from posterity.continual import EWC
from posterity.types import PosterityError
from tests.cli.test_cli import posterity as posterity

FAST = ("--epochs", 2, "--set", "training.batch_size=256")


@pytest.fixture
def days(tmp_path):
    """Two days of flowers in other units; the second day has no roses, and the third a new kind."""
    generator = np.random.default_rng(0)
    for day, kinds, shift in (
        ("day1", "tulip rose iris", 0.0),
        ("day2", "iris tulip", 3.0),
        ("day3", "oak tulip", 0.0),
    ):
        names = kinds.split() * 40
        rows = [f"{len(n) + generator.normal() + shift:.3f},{ord(n[0]) + generator.normal():.3f},{n}" for n in names]
        (tmp_path / f"{day}.csv").write_text("\n".join(["size,shape,kind", *rows]))
    return tmp_path


def test_day_two_goes_on_from_day_one(posterity, days):
    code, out, err = posterity("fit", "--method", "vogn", "--data", "day1.csv", "--out", "runs/day1", *FAST)
    assert code == 0, err
    code, out, err = posterity(
        "fit", "--method", "vogn", "--data", "day2.csv", "--prior", "runs/day1", "--out", "two", *FAST
    )
    assert code == 0 and "saved in two" in out, err
    first, second = RunFolder(days / "runs/day1"), RunFolder(days / "two")
    assert second.config().prior == "runs/day1" and second.config().model == first.config().model
    assert second.blank().classes == first.blank().classes == ("iris", "rose", "tulip")
    torch.testing.assert_close(second.blank().standardiser.mean, first.blank().standardiser.mean)
    assert set(second.dataset().test[1].tolist()) == {0, 2}  # by name, not by place
    assert float(second.dataset().training()[0][:, 0].mean()) > 0.5  # in the units of day one
    before, after = first.posterior().variance(), second.posterior().variance()
    assert all(bool((after[name] < v).all()) for name, v in before.items())
    assert posterity("evaluate", "two")[0] == 0


def test_what_cannot_go_on_is_one_sentence(posterity, days):
    assert posterity("fit", "--method", "vogn", "--data", "day1.csv", "--out", "one", *FAST)[0] == 0
    assert posterity("fit", "--method", "map", "--data", "day1.csv", "--out", "point", *FAST)[0] == 0
    go_on = ("fit", "--method", "vogn", "--data", "day2.csv", "--out", "two", *FAST, "--prior")
    for words, sentence in (
        ((*go_on, "nowhere"), "not a run folder"),
        ((*go_on, "point"), "has no variances"),
        ((*go_on, "one", "--model", "mlp_50"), "belongs to another network"),
        ((*go_on[:4], "day3.csv", *go_on[5:], "one"), "the class 'oak', for which the network has no output"),
    ):
        code, _, err = posterity(*words)
        assert code == 2 and sentence in err and err.count("\n") == 1, err
    kept = (days / "one/posterior.safetensors").read_bytes()
    (days / "one/posterior.safetensors").write_bytes(kept[:-4] + b"oops")
    code, _, err = posterity(*go_on, "one")
    assert code == 2 and "damaged" in err


def test_a_stream_of_tasks_with_a_report(posterity, tmp_path):
    command = ("continual", "--benchmark", "split-digits", "--method", "vogn,ewc", "--tasks", 2, "--epochs", 2)
    code, out, err = posterity(*command, "--memory", 5, "--out", "found")
    assert code == 0 and "average accuracy" in out, err
    results = json.loads((tmp_path / "found/results.json").read_text())
    assert list(results["methods"]) == ["vogn", "ewc"] and len(results["methods"]["vogn"][0]["rows"]) == 2
    loop = {"epochs": 2, "steps": None, "lr": 0.003, "batch size": 32, "seed": 0, "draws": 32}
    assert results["methods"]["vogn"][0]["settings"] == loop  # the recipe's rate, and the stream's batches
    page = (tmp_path / "found/report.html").read_text()
    assert "Accuracy matrices" in page and "Memory(size=5" in page
    assert {"matrix_vogn.svg", "accuracy_over_tasks.png"} <= {p.name for p in (tmp_path / "found/figures").iterdir()}
    before = (tmp_path / "found/vogn-0/task-02.safetensors").read_bytes()
    assert posterity(*command, "--memory", 5, "--out", "found")[0] == 0  # nothing left to do
    assert (tmp_path / "found/vogn-0/task-02.safetensors").read_bytes() == before
    code, _, err = posterity(*command, "--memory", 6, "--out", "found")
    assert code == 2 and "belongs to another run: its strategy" in err
    assert posterity("continual", "--benchmark", "split-digts")[0] == 2
    assert posterity("continual", "--method", "vong")[0] == 2


def test_a_table_of_a_stream_cuts_no_word_off_at_80_columns(posterity, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    command = ("continual", "--benchmark", "split-digits", "--method", "functional,fine-tuning")
    code, out, err = posterity(*command, "--tasks", 2, "--epochs", 1)
    assert code == 0 and all(word in out for word in ("functional", "fine-tuning", "forgetting", "transfer", "seconds"))
    assert "…" not in out and max(map(len, out.splitlines())) <= 80, out
    assert "Held:" in err and "_Held" not in err


def test_a_learning_rate_of_the_method_s_own_takes_the_place_of_the_recipe_s(posterity, tmp_path):
    command = ("continual", "--benchmark", "split-digits", "--method", "vogn", "--tasks", 1, "--epochs", 1, "--out")
    for setting in ("method", "training"):
        code, _, err = posterity(*command, setting, "--set", f"{setting}.lr=0.01")
        assert code == 0, err
    means = [load_file(tmp_path / f"{name}/vogn-0/task-01.safetensors") for name in ("method", "training")]
    assert all(torch.equal(tensor, means[1][name]) for name, tensor in means[0].items() if tensor.is_floating_point())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--tasks", 0), "at least one task, got tasks=0"),
        (("--tasks", -1), "at least one task, got tasks=-1"),
        (("--seeds", 0), "seeds must be positive, got 0"),
        (("--method", ""), "no method was named"),
        (("--method", "ewc,joint", "--set", "method.strength=5"), "ewc, joint take none of their settings"),
        (("--method", "ewc", "--set", "strategy.strenght=5"), "unknown setting of ewc 'strenght'"),
        (("--method", "fine-tuning", "--set", "strategy.strength=5"), "unknown setting of fine-tuning 'strength'"),
        (("--method", "ewc", "--set", "strategy.strength=much"), "strength of ewc must be float, got 'much'"),
        (("--method", "ewc", "--set", "strategy.strength=0"), "strength must be positive and finite, got 0"),
        (("--method", "ewc,map"), "MAP cannot learn each task from the posterior of the last"),
        (("--method", "snapshot"), "Snapshot cannot learn each task from the posterior of the last"),
        (("--temperature", 0), "must be positive, got 0.0"),  # of vogn, which is the third to learn
        (("--memory", 5, "--rehearse", 2), "rehearse must lie in [0, 1), got 2.0"),
    ],
)
def test_a_stream_of_nothing_is_one_sentence(posterity, tmp_path, words, sentence):
    code, _, err = posterity("continual", *words)
    assert code == 2 and sentence in err and not list(tmp_path.iterdir())


def test_the_share_that_is_rehearsed_reaches_replay_and_no_temperature_is_left_out():
    def made(name, **options):
        given = {"memory": None, "rehearse": 0.0, "temperature": 1.0, **options}
        return _recipe(name, RunConfig.read(None, ()), given, {}).strategy

    assert made("replay").rehearse == 0.5 and made("replay", rehearse=0.2).rehearse == 0.2
    assert made("ewc", rehearse=0.2, temperature=2.0) == EWC()
    with pytest.raises(PosterityError, match="temperature"):
        made("vogn", temperature=0.0)


def test_a_strategy_s_own_settings_reach_those_that_have_them(posterity, tmp_path):
    command = ("continual", "--benchmark", "split-digits", "--method", "ewc,fine-tuning,functional", "--tasks", 1)
    code, _, err = posterity(*command, "--epochs", 1, "--set", "strategy.strength=10", "--out", "found")
    assert code == 0, err
    learned = {
        name: runs[0] for name, runs in json.loads((tmp_path / "found/results.json").read_text())["methods"].items()
    }
    assert learned["ewc"]["strategy"] == repr(EWC(strength=10))
    assert "strength=10" in learned["functional"]["strategy"] and "strength" not in learned["fine-tuning"]["strategy"]
