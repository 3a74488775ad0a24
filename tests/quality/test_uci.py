"""UCI regression: columns that share nothing, figures with known answers, and the page."""

import json
import math

import pytest
import torch
from benchmarks.quality import uci, uci_page
from benchmarks.quality.uci_columns import Columns, Rows

import posterity as pst


def rows(count: int, splits: int) -> Rows:
    x = torch.randn(count, splits, 3, generator=torch.Generator().manual_seed(0))
    return Rows(x, x[..., 0].sin())


@pytest.mark.parametrize("count", [1, 2])
def test_a_column_is_its_network_in_units_of_its_noise(count):
    """Means divided by the noise; the raw std of a noise by input is a second half, as it is."""
    noise = torch.tensor([[0.1, 0.5], [0.2, 2.0]])
    columns, x = Columns(3, noise, count), rows(7, 2).x
    outputs = columns(x).unflatten(-1, (count, 4))
    for column, (split, std) in enumerate([(0, 0.1), (0, 0.5), (1, 0.2), (1, 2.0)]):
        own = columns.network(column)(x[:, split]) / torch.tensor([std, 1.0])[:count]
        torch.testing.assert_close(outputs[..., column], own)


def test_a_column_trains_as_it_would_alone():
    """The start of its own network, the same batches, elementwise steps: the same weights to rounding."""
    train, noise = rows(64, 2), torch.tensor([[0.3], [0.6]])
    method, likelihood = pst.MAP(prior=pst.priors.Normal(0.5)), pst.likelihoods.Gaussian(std=1.0)
    training = pst.Training(batch_size=16, lr=0.01, steps=20, progress=False, device="cpu")
    columns = Columns(3, noise)
    together = pst.fit(columns, method, (train.x, train.y / noise.T), likelihood=likelihood, training=training)
    for column in range(2):
        alone = Columns(3, noise[column : column + 1])
        for own, stacked in zip(alone.parameters(), columns.parameters(), strict=True):
            own.data.copy_(stacked[column : column + 1])
        data = train.x[:, column : column + 1], train.y[:, column : column + 1] / noise[column]
        q = pst.fit(alone, method, data, likelihood=likelihood, training=training)
        for name, weights in q.mean().items():
            torch.testing.assert_close(weights[0], together.mean()[name][column], rtol=1e-4, atol=1e-5)


ONE, BY_INPUT = pst.likelihoods.Gaussian(std=1.0), pst.likelihoods.HeteroscedasticGaussian()


def raw(std: float) -> float:
    """What softplus and the least std make this std of."""
    return math.log(math.expm1(std - 1e-4))


@pytest.mark.parametrize(
    ("likelihood", "outputs", "unit"),
    [(ONE, [[0.0], [0.0]], 0.5), (BY_INPUT, [[0.0, raw(2.0)], [0.0, raw(2.0)]], 0.25)],
)
def test_figures_of_a_point_with_gaussian_noise(likelihood, outputs, unit):
    """Residuals of 0 and 2 σ under N(f, σ²): NLL = log σ + ½ log 2π + 1, RMSE √2 σ, half inside the 95% interval."""
    noise, draws = torch.tensor([[unit]]), torch.tensor(outputs).view(1, 2, 1, 1, -1)
    found = uci.judged(draws, torch.tensor([[0.0], [1.0]]), noise, likelihood)
    expected = {"rmse": math.sqrt(0.5), "nll": math.log(0.5) + 0.5 * math.log(2 * math.pi) + 1}
    expected |= {"coverage_90": 0.5, "coverage_95": 0.5}
    for figure, value in expected.items():
        assert found[figure].item() == pytest.approx(value, rel=1e-5)


@pytest.mark.filterwarnings(
    "ignore:the module:posterity.PosterityWarning", "ignore:the chain:posterity.PosterityWarning"
)
@pytest.mark.parametrize("title", uci.METHODS)
def test_every_method_has_settings_that_predict(title):
    """Draws of every split and noise, two outputs where the noise goes by input; members come as draws."""
    noise, setting = torch.tensor([[0.3, 0.6]] * 2), uci.settings(title, "boston")[0]
    draws = uci.predicted(setting, rows(64, 2), rows(9, 2), noise, steps=160)
    assert draws.shape[1:] == (9, 2, 2, setting.outputs) and draws.isfinite().all()
    assert (setting.outputs == 2) == title.endswith(uci.BY_INPUT)
    assert (len(draws) == 1) == title.startswith("MAP")


def test_a_setting_that_diverges_on_the_whole_split_makes_way_for_the_next_best(monkeypatch):
    sine, predicted = uci.data.load("sine"), uci.predicted
    best, other, poor = (uci.Setting(pst.MAP(), lr) for lr in (0.01, 0.02, 1e-6))
    fails = {best.lr}

    def patched(setting, train, test, noise, steps):
        if noise.shape[1] == 1 and setting.lr in fails:  # one noise: what was chosen, trained anew
            raise pst.PosterityError("the loss became inf")
        return predicted(setting, train, test, noise, steps)

    monkeypatch.setattr(uci.data, "load", lambda name, split: sine)
    monkeypatch.setattr(uci, "settings", lambda title, name: [best, other, poor])
    monkeypatch.setattr(uci, "predicted", patched)
    monkeypatch.setitem(uci.NOISE, "sine", 0.3)
    found = uci.one("sine", "MAP", 2, 100, torch.device("cpu"))
    assert found["chosen_setting"] == [1, 1] and all(math.isfinite(v) for v in found["splits"]["nll"])
    fails |= {other.lr, poor.lr}
    with pytest.raises(pst.PosterityError, match="with every setting"):
        uci.one("sine", "MAP", 2, 100, torch.device("cpu"))


def test_the_page_has_ours_and_the_published_figures(tmp_path):
    run = {"steps": 10, "device": "CPU", "torch": "2", "date": "today", "seconds": {"training": 1.0}}
    splits = {"rmse": [1.0, 3.0], "nll": [2.0, 2.0], "coverage_90": [0.9, 0.9], "coverage_95": [1.0, 1.0]}
    (tmp_path / "uci").mkdir()
    (tmp_path / "uci" / "yacht--SWAG.json").write_text(json.dumps(run | {"splits": splits}))
    page = uci_page.section(tmp_path)
    assert "| SWAG | 2.000 ± 1.000 | -2.000 ± 0.000 | 0.900 | 1.000 |" in page
    assert "| *published SWAG* | 0.973 | -0.404 |  | 0.898 |" in page
    assert uci_page.section(tmp_path / "nowhere") == ""
