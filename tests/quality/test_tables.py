"""Quality tables: one row a process, gathered into means and spreads, written as a section of the page."""

import json

import numpy as np
import pytest
import torch
from benchmarks.quality import gathered, runs
from benchmarks.quality.catalogue import TABLES
from benchmarks.quality.tables import Finished, Row, Table, decay, only, own, row, slug

import posterity as pst
from posterity import data
from posterity.models import mlp
from posterity.posteriors import Empirical


def mean_weights(finished: Finished) -> pst.Posterior:
    return Empirical(finished.posterior.module, finished.posterior.likelihood, [finished.posterior.mean()])


def singular(finished: Finished) -> pst.Posterior:
    raise torch.linalg.LinAlgError("singular")


def table(**changes: object) -> Table:
    options: dict = {
        "name": "digits",
        "title": "Digits",
        "about": "Small.",
        "data": lambda seed: data.load("digits"),
        "network": lambda dataset: mlp(64, 10, (16,)),
        "rows": {
            "MAP": row(pst.MAP(), pst.MAP(prior=pst.priors.Normal(0.01)), lr=1e-2),
            "Mean field": Row(
                row(pst.MeanField(), lr=1e-2).candidates, {"q": own, "its mean": mean_weights, "broken": singular}
            ),
        },
        "epochs": 2,
        "draws": 4,
        "held": 200,
        "published": {"MAP": {"accuracy": 0.5, "nll": 0.1}},
        "source": "a book",
    }
    return Table(**{**options, **changes})


def record(row: str, seed: int, **figures: float) -> dict:
    return {
        "row": row,
        "seed": seed,
        "training": {},
        "epochs": 2,
        "device": "CPU",
        "date": "2026-11-15",
        "versions": {"torch": "2.13"},
        "examples": {"train": 1297, "test": 500},
        "chosen": True,
        "seconds": {"epoch": 0.5},
        "lines": {row: figures},
        "failed": {},
    }


def test_the_row_is_fitted_and_judged_and_a_broken_line_leaves_the_others(tmp_path):
    found = runs.run_row(table(), "mean-field", 0, tmp_path, runs.Budget(train=300, test=100))
    stored = json.loads((tmp_path / "digits" / "mean-field-0.json").read_text())
    assert set(stored["lines"]) == {"q", "its mean"} and "singular" in stored["failed"]["broken"]
    assert stored["examples"] == {"train": 300, "test": 100} and stored["epochs"] == 2 and not stored["chosen"]
    size = 64 * 16 + 16 + 16 * 10 + 10
    assert stored["lines"]["its mean"]["stored"] == size
    assert stored["lines"]["q"]["stored"] == 2 * size - 26  # biases have no std
    assert found["seconds"]["training"] > 0


def test_failures_are_told_in_a_sentence_with_their_seeds():
    runs_of_two = [record("MAP", seed) | {"failed": {"q": "RuntimeError: singular\nlong story"}} for seed in (0, 2)]
    assert gathered.failures(runs_of_two) == ["q, seed 0, 2, failed: RuntimeError: singular."]


def test_choosing_takes_the_candidate_with_the_best_held_out_nll(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "RESULTS", tmp_path / "results")
    assert runs.choice(table(), "MAP") == (0, False)
    own_table = table(epochs=20, rows={"MAP": Row(table().rows["MAP"].candidates[::-1])})  # the poor one first
    for number in (0, 1):
        runs.choose(own_table, "map", number, tmp_path, runs.Budget())
    gathered.gather(own_table, tmp_path, tmp_path / "results")
    assert runs.choice(own_table, "MAP") == (1, True)
    trials = json.loads((tmp_path / "results" / "digits_tuning.json").read_text())["runs"]
    assert [trial["examples"] for trial in trials] == 2 * [{"train": 1097, "test": 200}]


def test_choosing_prefers_what_meets_the_published_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "RESULTS", tmp_path)
    trials = [
        {"row": "MAP", "candidate": n, "epochs": 5, "lines": {"MAP": {"nll": nll, "ece": ece}}}
        for n, (nll, ece) in enumerate([(0.3, 0.05), (0.4, 0.02), (0.35, 0.02), (None, None)])
    ]
    (tmp_path / "digits_tuning.json").write_text(json.dumps({"runs": trials}))
    assert runs.choice(table(published={"MAP": {"nll": 0.5, "ece": 0.03}}), "MAP") == (2, True)


def test_a_row_that_follows_takes_the_other_rows_choice(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "RESULTS", tmp_path)
    rows = {"MAP": table().rows["MAP"], "same": Row(table().rows["MAP"].candidates, follows="MAP")}
    trials = [
        {"row": "MAP", "candidate": n, "epochs": 5, "lines": {"MAP": {"nll": nll}}}
        for n, nll in enumerate((0.5, None, 0.3))
    ]
    (tmp_path / "digits_tuning.json").write_text(json.dumps({"runs": trials}))
    assert runs.choice(table(rows=rows), "same") == (2, True)


def test_choosing_counts_only_the_longest_trials(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "RESULTS", tmp_path)
    trials = [
        {"row": "MAP", "candidate": n, "epochs": epochs, "lines": {"MAP": {"nll": nll}}}
        for n, (epochs, nll) in enumerate([(5, 0.1), (20, 0.4), (20, 0.3)])
    ]
    (tmp_path / "digits_tuning.json").write_text(json.dumps({"runs": trials}))
    assert runs.choice(table(), "MAP") == (2, True)


def test_gathering_gives_means_and_spreads_and_adds_to_what_was_there(tmp_path):
    folder, results = tmp_path / "runs", tmp_path / "results"
    for seed, nll in enumerate((0.3, 0.5)):
        runs.write(folder / "digits" / f"map-{seed}.json", record("MAP", seed, accuracy=0.9, nll=nll))
    gathered.gather(table(), folder, results)
    runs.write(tmp_path / "more" / "digits" / "map-1.json", record("MAP", 1, accuracy=0.9, nll=0.7))
    summary = gathered.gather(table(), tmp_path / "more", results)
    assert summary["MAP"]["nll"] == {"mean": 0.5, "std": pytest.approx(0.4 / 2**0.5), "seeds": 2}
    assert summary["MAP"]["epoch"]["mean"] == 0.5


def test_seconds_of_different_devices_have_no_mean():
    mixed = [record("MAP", seed, nll=0.3) | {"device": device} for seed, device in enumerate(("CPU", "GPU"))]
    alike = [record("Mean field", seed, nll=0.3) | {"device": "GPU"} for seed in range(2)]
    summary = gathered.summarise([*mixed, *alike], ("nll", "epoch"))
    assert "epoch" not in summary["MAP"] and summary["Mean field"]["epoch"]["seeds"] == 2


def test_the_section_shows_the_published_figure_and_what_is_met_and_missing(tmp_path):
    runs.write(tmp_path / "runs" / "digits" / "map-0.json", record("MAP", 0, accuracy=0.9123, nll=0.25))
    assert gathered.section(table(), tmp_path) == ""
    gathered.gather(table(), tmp_path / "runs", tmp_path)
    text = gathered.section(table(), tmp_path)
    assert "| MAP | **91.2** (50.0) | 0.250 (0.100) |  |  | 0.50 | 1 |" in text
    assert "Not run yet: Mean field." in text and "In brackets: a book" in text
    assert "2 epochs, batch 128, 4 draws, 1,297 training and 500 test examples" in text
    assert "held-out training examples, by how many published figures they met, then by NLL: MAP." in text


def test_spreads_decide_what_is_best_or_tied():
    found = lambda mean, std: {"nll": {"mean": mean, "std": std, "seeds": 3}}  # noqa: E731
    summary = {"a": found(0.5, 0.01), "b": found(0.52, 0.02), "c": found(0.6, 0.02)}
    assert [gathered.is_best(line, "nll", summary) for line in summary] == [True, True, False]


def test_an_ensemble_of_seeds_is_the_mean_of_their_predictions(tmp_path):
    first = torch.tensor([[0.8, 0.2], [0.4, 0.6]])
    second = torch.tensor([[0.6, 0.4], [0.8, 0.2]])
    targets = torch.tensor([0, 1])
    for seed, probs in enumerate((first, second)):
        runs.write(tmp_path / "digits" / f"map-{seed}.json", record("MAP", seed, nll=1.0))
        np.savez(tmp_path / "digits" / f"map-{seed}.npz", targets=targets.numpy(), MAP=probs.numpy())
    summary = gathered.gather(table(ensembles={"Ensemble": "MAP"}), tmp_path, tmp_path / "results")
    assert summary["Ensemble"]["nll"]["mean"] == pytest.approx(-(np.log(0.7) + np.log(0.4)) / 2, abs=1e-6)
    assert summary["Ensemble"]["accuracy"]["mean"] == 0.5


def test_the_temperature_of_each_half_is_found_on_the_other():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20_000, 3, generator=generator, dtype=torch.float64)
    targets = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    sharp = (3 * logits).softmax(1)  # three times too sure: the temperature is 3
    found = gathered.cross_tempered(sharp, targets)
    # The temperature's standard error at 10,000 examples is about 3 %, which moves a probability by less than 0.01.
    torch.testing.assert_close(found, logits.softmax(1), atol=0.02, rtol=0)


def test_only_keeps_and_renumbers_classes():
    digits = data.load("digits")
    part = only(digits, (7, 2))
    assert part.outputs == 2 and part.classes == (digits.classes[7], digits.classes[2])
    sevens = digits.test[0][digits.test[1] == 7]
    torch.testing.assert_close(part.test[0][part.test[1] == 0], sevens)


def test_names_and_priors():
    assert slug("MC dropout, p = 0.1") == "mc-dropout-p-0-1"
    assert decay(5e-4, 50_000).std == pytest.approx(0.2)
    with pytest.raises(pst.PosterityError, match="no row 'svm': there are map, mean-field"):
        table().row("svm")


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_whole(name):
    found = TABLES[name]
    lines = {line for key, each in found.rows.items() for line in (each.lines or {key: own})}
    lines |= {*found.ensembles, *found.tempered}
    assert set(found.published) <= lines
    assert found.kept <= lines
    assert len({slug(key) for key in found.rows}) == len(found.rows)
    assert all(each.follows in (None, *found.rows) for each in found.rows.values())
    for each in found.rows.values():
        for candidate in each.candidates:
            assert found.training(each, candidate).batch_size == (each.batch_size or found.batch_size)


def test_a_foreign_set_with_several_figures_has_a_table_of_its_own():
    figures = ("accuracy", "other/auroc_entropy", "letters/auroc_entropy", "letters/fpr95_entropy")
    found = gathered.blocks(figures)
    assert found == {"": list(figures[:2]), "letters": list(figures[2:])}
    summary = {"MAP": {name: {"mean": 0.5, "std": 0.1, "seeds": 2} for name in figures}}
    text = gathered.markdown(table(), summary, found["letters"], "letters")
    assert text.splitlines()[0] == "| | AUROC, entropy | FPR95, entropy |"
    assert text.splitlines()[2] == "| MAP | 0.500 ± 0.100 | 0.500 ± 0.100 |"


def test_conditions_that_differ_are_told_by_row():
    told = [("A", "CPU"), ("A", "CPU"), ("B", "H200"), ("C", "H200"), ("C", "CPU")]
    assert gathered.mostly(told) == "CPU (B; C: H200)" and gathered.mostly(told[:2]) == "CPU"
    ensemble = {key: value for key, value in record("both", 0).items() if key != "training"}  # no run of its own
    old, small = record("a row that is no more", 0), record("A", 0) | {"training": {"batch_size": "64"}}
    assert "2 epochs, batch 128 (A: batch 64), 4 draws" in gathered.conditions(table(), [old, old, small, ensemble])
