"""The summary of all tables: wins, ties and costs by method."""

from benchmarks.quality.summary import method_of, tally


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
