import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import posterity as pst
from posterity import data
from posterity.data.foreign import foreign, photos
from posterity.evaluation import recipes as recipes_module
from posterity.evaluation.arena import _clearly_less
from posterity.evaluation.compare import Contest, compare
from posterity.evaluation.extras import TrainingState, shown_examples, stored, surface
from posterity.evaluation.recipes import recipes, sizes
from posterity.evaluation.shift import corruptions_of
from posterity.methods import METHODS
from posterity.random import generator_for
from posterity.types import PosterityError

FAST = {"epochs": 2, "draws": 2, "shift": False, "data": "two-moons"}


@dataclass(frozen=True, kw_only=True, repr=False)
class Breaking(pst.MAP):
    def posterior(self, run, likelihood, batches):
        raise PosterityError("the loss became nan at step 3")


@pytest.fixture
def breaking(monkeypatch):
    monkeypatch.setitem(METHODS, "breaking", Breaking)


def told(contest, folder):
    steps = []
    results = compare(contest, folder, lambda method, seed, status, record: steps.append((method, seed, status)))
    return results, steps


def test_every_method_and_seed_has_a_run_and_a_file(tmp_path):
    results, steps = told(Contest(methods=("ensemble",), seeds=2, tune=False, **FAST), tmp_path)
    assert results["methods"] == ["map", "ensemble"]  # MAP is always there: times are relative to it
    assert [(r["method"], r["seed"], r["status"]) for r in results["runs"]] == [
        ("map", 0, "done"),
        ("ensemble", 0, "done"),
        ("map", 1, "done"),
        ("ensemble", 1, "done"),
    ]
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        f"{method}-{seed}.json" for method in ("map", "ensemble") for seed in (0, 1)
    }
    assert json.loads((tmp_path / "results.json").read_text())["methods"] == results["methods"]
    first, ensemble = results["runs"][:2]
    assert ensemble["figures"]["stored"] == 5 * first["figures"]["stored"] == 5 * results["about"]["parameters"]
    assert ensemble["figures"]["memory_mb"] > 4 * first["figures"]["memory_mb"]
    assert first["scores"]["about"]["fingerprint"] == ensemble["scores"]["about"]["fingerprint"]
    assert math.isfinite(first["figures"]["temperature"])
    assert steps[0] == ("map", 0, "choosing") and steps[-1] == ("ensemble", 1, "done")


def test_an_interrupted_comparison_goes_on(tmp_path):
    contest = Contest(methods=("swag",), seeds=1, tune=False, **{**FAST, "epochs": 3})

    def interrupt(method, seed, status, record):
        if method == "swag":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(contest, tmp_path, interrupt)
    before = (tmp_path / "runs" / "map-0.json").read_bytes()
    results, steps = told(contest, tmp_path)
    assert steps == [("map", 0, "kept"), ("swag", 0, "choosing"), ("swag", 0, "training"), ("swag", 0, "done")]
    assert (tmp_path / "runs" / "map-0.json").read_bytes() == before
    again, steps = told(contest, tmp_path)
    assert [status for *_, status in steps] == ["kept", "kept"] and again["runs"] == results["runs"]
    # what would come out differently is made anew; so is a damaged file
    for damaged in ("{", "[]"):
        (tmp_path / "runs" / "map-0.json").write_text(damaged)
        _, steps = told(contest, tmp_path)
        assert ("map", 0, "done") in steps and ("swag", 0, "kept") in steps
    _, steps = told(Contest(methods=("swag",), seeds=1, tune=False, **{**FAST, "epochs": 4}), tmp_path)
    assert all(status != "kept" for *_, status in steps)


def test_runs_on_a_file_that_has_changed_are_made_anew(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2
    contest = Contest(methods=("map",), seeds=1, tune=False, **{**FAST, "data": str(tmp_path / "own.npz")})
    other = np.where(np.arange(60) == 37, 1 - y, y)  # a single label
    for labels, said in ((y, "done"), (y, "kept"), (other, "done")):
        np.savez(tmp_path / "own.npz", x=x, y=labels)
        _, steps = told(contest, tmp_path / "out")
        assert steps[-1] == ("map", 0, said)


def test_a_failing_method_is_shown_and_the_rest_go_on(tmp_path, breaking):
    results, _ = told(Contest(methods=("breaking", "map"), seeds=1, tune=False, **FAST), tmp_path)
    states = {run["method"]: run["status"] for run in results["runs"]}
    assert states == {"map": "done", "breaking": "failed"}
    assert results["runs"][1]["reason"] == "the loss became nan at step 3"


def test_settings_are_chosen_by_validation_loss(tmp_path, monkeypatch):
    from posterity.probability.priors import Normal

    offered = [{"prior": Normal(0.001)}, {"prior": Normal(1.0)}]  # the first keeps all weights at zero
    monkeypatch.setitem(recipes_module._SETTINGS, "map", lambda module, dataset: offered)
    results, _ = told(Contest(methods=("map", "ensemble"), seeds=1, **{**FAST, "epochs": 10}), tmp_path)
    run, ensemble = results["runs"]
    assert run["setting"] == 1 and run["method_repr"] == "MAP()"
    losses = [tried["validation_nll"] for tried in run["tried"]]
    assert losses[1] < losses[0] and losses[0] == pytest.approx(math.log(2), abs=0.05)
    assert ensemble["setting"] == 1 and ensemble["tried"] == []  # restarts take what their method took


def test_nothing_is_chosen_on_test_data(tmp_path):
    """Of two files that differ in the test labels alone only the scores differ."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    y = (x[:, 0] + 0.5 * rng.normal(size=300) > 0).astype(int)
    runs = []
    for name, labels in (("right", y[200:]), ("wrong", 1 - y[200:])):
        np.savez(tmp_path / f"{name}.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=labels)
        contest = Contest(methods=("map",), seeds=1, **{**FAST, "data": str(tmp_path / f"{name}.npz")})
        runs.append(compare(contest, tmp_path / name)["runs"][0])
    one, two = runs
    assert len(one["tried"]) == 2 and one["tried"] == two["tried"] and one["setting"] == two["setting"]
    assert one["history"] == two["history"] and one["figures"]["temperature"] == two["figures"]["temperature"]
    assert one["scores"]["figures"]["nll"] < two["scores"]["figures"]["nll"]
    assert one["figures"]["nll_tempered"] < two["figures"]["nll_tempered"]


def test_a_later_setting_must_win_by_more_than_a_standard_error():
    """Gains of 0.3 and −0.1 are 0.1 ± 0.2, of 0.3 and 0.1 they are 0.2 ± 0.1."""
    first = torch.tensor([1.0, 1.0])
    for gains, clear in (([0.3, -0.1], False), ([0.3, 0.1], True), ([-0.3, -0.1], False), ([0.0, 0.0], False)):
        assert _clearly_less(first - torch.tensor(gains), first) == clear


def test_a_setting_without_a_number_is_not_kept():
    nan, inf = torch.tensor([0.1, math.nan]), torch.tensor([0.1, math.inf])
    good = torch.tensor([0.5, 0.7])
    assert _clearly_less(good, nan) and _clearly_less(good, inf)
    assert not _clearly_less(nan, good) and not _clearly_less(inf, good) and not _clearly_less(nan, nan)


@pytest.mark.parametrize("budget", ["equal-epochs", "equal-time"])
def test_the_failure_of_map_is_not_that_of_others(tmp_path, monkeypatch, budget):
    monkeypatch.setitem(METHODS, "map", Breaking)
    results, _ = told(Contest(methods=("dropout",), seeds=1, tune=False, budget=budget, **FAST), tmp_path)
    point, dropout = results["runs"]
    assert point["reason"] == "the loss became nan at step 3"
    if budget == "equal-epochs":
        assert dropout["status"] == "done"
    else:
        assert "use the budget equal-epochs" in dropout["reason"]


def test_a_setting_that_fails_is_left_out(tmp_path, monkeypatch, breaking):
    offered = [{"lr": 1e9}, {"lr": 0.01}]
    monkeypatch.setitem(recipes_module._SETTINGS, "sgld", lambda module, dataset: offered)
    results, _ = told(Contest(methods=("sgld",), seeds=1, **FAST), tmp_path)
    run = results["runs"][1]
    assert run["status"] == "done" and run["setting"] == 1
    assert run["tried"][0]["validation_nll"] is None and "steps of lr=1e+09 diverge" in run["tried"][0]["reason"]


def test_equal_time_gives_dear_methods_fewer_epochs(tmp_path):
    contest = Contest(methods=("ensemble",), seeds=1, tune=False, budget="equal-time", **{**FAST, "epochs": 12})
    results, _ = told(contest, tmp_path)
    epochs = {run["method"]: run["epochs"] for run in results["runs"]}
    assert epochs["map"] == 12 and 2 <= epochs["ensemble"] < 12
    assert all(len(run["history"]) == run["epochs"] for run in results["runs"])


def test_own_data_and_own_network(tmp_path, monkeypatch):
    (tmp_path / "own_things.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def loaders():\n"
        "    g = torch.Generator().manual_seed(0)\n"
        "    def part(n):\n"
        "        x = torch.randn(n, 3, generator=g)\n"
        "        return x, (x.sum(1, keepdim=True) + 0.1 * torch.randn(n, 1, generator=g))\n"
        "    return part(120), part(60)\n"
        "def make_model():\n"
        "    return nn.Linear(3, 1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    contest = Contest(data="own_things:loaders", model="own_things:make_model", methods=("map",), seeds=1, epochs=2)
    results, _ = told(contest, tmp_path / "out")
    assert results["task"] == "regression" and results["about"]["parameters"] == 4
    assert "rmse" in results["runs"][0]["scores"]["figures"]


def test_sizes_grow_with_the_data():
    small, large = sizes(1000), sizes(60_000)
    assert small.epochs > large.epochs >= 10 and large.batch_size == 128 and large.validation == 5000
    assert small.lr > large.lr


def test_names():
    module, dataset = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)), data.load("two-moons")
    assert [r.name for r in recipes(("swag", "map", "swag"), module, dataset)] == ["map", "swag"]
    core = recipes(("core",), module, dataset)
    assert core[0].name == "map" and {"dropout", "ensemble", "swag"} <= {r.name for r in core}
    assert {r.method for r in recipes(("all",), module, dataset)} == set(METHODS)
    dropout = next(r for r in core if r.name == "dropout")
    assert dropout.settings[0]["insert"] == ("2",)  # not on the inputs
    own = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.3), nn.Linear(4, 2))
    assert recipes(("dropout",), own, dataset)[1].settings[0] == {}
    with pytest.raises(PosterityError, match="no method called 'ensmble': did you mean 'ensemble'"):
        recipes(("ensmble",), module, dataset)


def test_bad_contests(tmp_path):
    with pytest.raises(PosterityError, match="seeds and draws must be positive, got 0"):
        Contest(seeds=0)
    with pytest.raises(PosterityError, match="equal-epochs or equal-time, got 'equal'"):
        Contest(budget="equal")
    with pytest.raises(PosterityError, match="out-of-distribution figures need classes"):
        compare(Contest(data="sine", ood=("digits",)), tmp_path)
    with pytest.raises(PosterityError, match="epochs must be positive, or 0 for what suits the data, got -1"):
        Contest(epochs=-1)
    with pytest.raises(PosterityError, match="no method was named"):
        Contest(methods=())
    with pytest.raises(PosterityError, match="digits has image inputs"):  # before anything is trained
        compare(Contest(data="two-moons", ood=("digits",)), tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(PosterityError, match="no data set called 'digts'"):
        compare(Contest(data="digts"), tmp_path)


@pytest.mark.parametrize(("optimizer", "copies", "steps"), [("sgd", 3, 0), ("adam", 4, 2)])
def test_memory_is_weights_gradients_and_moments(optimizer, copies, steps):
    """Of 15 weights and biases in single precision; Adam counts the steps of each of the two tensors, too."""
    state, pair = TrainingState(), (torch.randn(64, 4), torch.arange(64) % 3)
    training = pst.Training(optimizer=optimizer, progress=False, callbacks=(state,))
    pst.fit(nn.Linear(4, 3), pst.MAP(), pair, epochs=1, training=training)
    assert state.bytes == 4 * (15 * copies + steps)


def test_a_decision_surface_has_class_1_by_rows_of_y():
    """Draws with logits ±(x + 2y) and ±x: their probabilities at every point of the grid, and the mean of the two."""
    planes = [torch.tensor([[-1.0, -2.0], [1.0, 2.0]]), torch.tensor([[-1.0, 0.0], [1.0, 0.0]])]
    net = nn.Linear(2, 2, bias=False)
    posterior = pst.posteriors.Empirical(net, pst.likelihoods.Categorical(), [{"weight": w} for w in planes])
    found = surface(posterior, data.load("two-moons"), 2)
    y, x = (torch.tensor(found[axis]) for axis in "yx")
    y, x = torch.meshgrid(y, x, indexing="ij")
    first, second = torch.sigmoid(2 * (x + 2 * y)), torch.sigmoid(2 * x)
    for drawn, expected in zip(found["draws"], (first, second), strict=True):
        torch.testing.assert_close(torch.tensor(drawn), expected, atol=1e-3, rtol=0)
    mean = (first + second) / 2
    entropy = torch.special.entr(torch.stack([mean, 1 - mean])).sum(0)
    torch.testing.assert_close(torch.tensor(found["probability"]), mean, atol=1e-3, rtol=0)
    torch.testing.assert_close(torch.tensor(found["entropy"]), entropy, atol=1e-3, rtol=0)


def test_what_a_posterior_stores_is_counted_with_the_statistics_of_its_draws():
    """Mean and std of each weight; of BatchNorm mean, variance and the count of batches, for each draw of a bank."""
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    mean = {name: p.detach() for name, p in net.named_parameters()}
    std = {name: torch.full_like(p, 0.1) for name, p in mean.items()}
    gaussian = pst.posteriors.DiagonalGaussian(net, pst.likelihoods.Categorical(), mean, std)
    banked = gaussian.refresh([(torch.randn(20, 4), torch.zeros(20).long())], draws=3)
    weights = 4 * 5 + 5 + 2 * 5 + 5 * 3 + 3
    assert stored(gaussian) == 2 * weights and stored(banked) == 2 * weights + 3 * (5 + 5 + 1)
    assert stored(pst.Mixture([banked, gaussian])) == stored(banked) + stored(gaussian)


@pytest.mark.parametrize("name", ["digits", "two-moons"])
def test_foreign_inputs_fit_the_network_and_no_example(name):
    dataset = data.load(name)
    for key, inputs in foreign(dataset, generator_for(0)).items():
        assert inputs.shape[1:] == dataset.shape and inputs.dtype == torch.float32, key
        assert inputs.isfinite().all() and not torch.equal(inputs, dataset.test[0][: len(inputs)])
        again = foreign(dataset, generator_for(0))[key]
        assert torch.equal(inputs, again)


def test_foreign_images():
    dataset = data.load("digits")
    made = foreign(dataset, generator_for(0))
    raw = dataset.standardiser.invert(made["photos"])
    assert raw.min() >= -1e-5 and raw.max() <= 1 + 1e-5 and raw.std() > 0.05
    # the same pixels, elsewhere
    original = dataset.test[0][: len(made["shuffled"])]
    assert torch.equal(made["shuffled"].flatten(1).sort(1).values, original.flatten(1).sort(1).values)


def test_images_of_any_range_are_corrupted_shown_and_confronted_alike(tmp_path):
    """Bytes, the same as floats up to 255, and what a function has standardised itself, are the same pictures."""
    raw = np.random.default_rng(0).integers(0, 256, (60, 12, 10), dtype=np.uint8)
    raw[:, 0, 0], raw[:, 0, 1] = 0, 255
    for name, x in (("bytes", raw), ("floats", raw.astype(np.float32))):
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.arange(60) % 2)
    known, floats = (data.load(str(tmp_path / f"{name}.npz")) for name in ("bytes", "floats"))
    for other in (floats, replace(known, standardiser=None)):
        torch.testing.assert_close(photos(other, 3, generator_for(0)), photos(known, 3, generator_for(0)))
        for name, corruption in corruptions_of(known, True).items():
            changed = corruptions_of(other, True)[name](other.test[0], 2)
            torch.testing.assert_close(changed, corruption(known.test[0], 2), atol=1e-5, rtol=1e-5)
        shown = [shown_examples(one, [{"index": 4}])[0]["picture"]["bytes"] for one in (known, other)]
        assert shown[0] == shown[1]


def test_large_images_are_confronted_with_photographs(tmp_path):
    np.savez(tmp_path / "large.npz", x=np.random.default_rng(0).random((10, 450, 130)), y=np.arange(10) % 2)
    dataset = data.load(str(tmp_path / "large.npz"))
    made = photos(dataset, 3, generator_for(0))
    assert made.shape == (3, 1, 450, 130)
    raw = dataset.pixels.invert(made)
    assert raw.min() >= -1e-5 and raw.max() <= 1 + 1e-5 and raw.std() > 0.05


def test_foreign_tables_and_texts():
    far = foreign(data.load("two-moons"), generator_for(0))["far"]
    assert far.norm(dim=1).numpy() == pytest.approx(4 * math.sqrt(2), rel=1e-5)
    texts = torch.tensor([[5, 6, 0, 0], [7, 8, 9, 0]])
    from posterity.data.foreign import salad

    mixed = salad(texts, generator_for(1))
    assert torch.equal(mixed == 0, texts == 0) and mixed.flatten().sort().values.equal(texts.flatten().sort().values)
    long = torch.arange(1, 101).view(4, 25)
    assert (salad(long, generator_for(1)) == long).sum() < 8  # one word in a hundred stays, so one is to be expected
