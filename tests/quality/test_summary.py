"""The summary of all tables: wins, ties and costs by method."""

import json

from benchmarks.quality.summary import beside_published, by_itself, method_of, tally, with_ood
from benchmarks.quality.tables import Table


def figure(mean: float, std: float = 0.0) -> dict[str, float]:
    return {"mean": mean, "std": std, "seeds": 3}


def test_lines_belong_to_methods():
    lines = ("SGD", "SWA", "SWAG, diagonal", "MultiSWAG", "HWA, moments", "Cyclical SGLD", "SGHMC", "without momentum")
    methods = ["MAP", "SWA", "SWAG", "MultiSWAG", "HWA", "Cyclical SG-MCMC", "SG-MCMC", "other"]
    assert [method_of(line) for line in lines] == methods


def test_wins_ties_and_costs():
    first = {
        "Adam": {"nll": figure(0.5, 0.01), "seconds": figure(10.0)},
        "SWAG": {"nll": figure(0.3, 0.01), "seconds": figure(12.0)},
        "SWAG, diagonal": {"nll": figure(0.4, 0.0), "seconds": figure(11.0)},
        "IVON": {"nll": figure(0.315, 0.01)},
    }
    second = {"MAP": {"ood_auroc": figure(0.9)}, "IVON": {"ood_auroc": figure(0.8)}}
    found = tally([first, second, {"VOGN": {"nll": figure(1.0)}}])
    assert {method: record.won["nll"] for method, record in found.items()} == {
        "MAP": [False], "SWAG": [True], "IVON": [True]
    }  # fmt: skip
    assert found["MAP"].won["ood_auroc"] == [True] and found["IVON"].won["ood_auroc"] == [False]
    assert found["SWAG"].cost == [1.1] and found["IVON"].cost == []


def test_seconds_count_only_where_the_loads_were_alike():
    run = {"device": "GPU", "seconds": {"training": 3.0}, "lines": {"MAP": {"nll": 0.5}}}
    stored = {"summary": {"MAP": {"nll": figure(0.5)}}, "runs": [run]}
    assert with_ood(stored, same_load=True)["MAP"]["seconds"]["mean"] == 3.0
    assert "seconds" not in with_ood(stored, same_load=False)["MAP"]


def test_epochs_by_themselves_count_instead_of_runs(tmp_path):
    summary = {line: {"nll": figure(0.5), "seconds": figure(9.0)} for line in ("Adam", "VOGN", "IVON")}
    by_itself(summary, tmp_path / "absent.json")
    assert summary["VOGN"]["seconds"]["mean"] == 9.0
    times = {"Adam": {"seconds": 2.0}, "VOGN": {"seconds": 5.0}}
    (tmp_path / "digits_epochs.json").write_text(json.dumps({"launched": {}, "recorded": times}))
    by_itself(summary, tmp_path / "digits_epochs.json")
    found = tally([summary])
    assert found["VOGN"].cost == [2.5] and found["IVON"].cost == []


def test_published_figures_are_met_nearly_met_missed_or_not_measured():
    published = {"Adam": {"accuracy": 0.9, "nll": 0.3, "ece": 0.02}, "VOGN": {"nll": 0.3}}
    nothing: dict = {"data": None, "network": None, "rows": {}, "epochs": 1}
    table = Table(name="digits", title="Digits", about="", published=published, source="a book", **nothing)
    ours = {"accuracy": figure(0.91), "nll": figure(0.31, 0.02), "ece": figure(0.05, 0.01)}
    told = beside_published([table], {"digits": {"Adam": ours}}).splitlines()
    assert told[-1] == "| Digits | 1 of 4 | Adam: NLL | Adam: ECE | VOGN: NLL |"
