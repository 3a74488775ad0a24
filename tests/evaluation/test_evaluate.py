import io
import json
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as pst
import posterity.data as data
from posterity.data.pieces import pieces
from posterity.evaluation import Scores, evaluate, regression, scores
from posterity.evaluation.calibration import ece
from posterity.evaluation.metrics import METRICS, metric
from posterity.evaluation.result import Difference
from posterity.posteriors import DiagonalGaussian, Empirical
from posterity.probability.likelihoods import Categorical, Gaussian, Poisson
from posterity.types import PosterityError


@pytest.fixture(scope="module")
def classifier():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    mean = {name: p.detach() for name, p in net.named_parameters()}
    return DiagonalGaussian(net, Categorical(), mean, {name: torch.full_like(p, 0.3) for name, p in mean.items()})


@pytest.fixture(scope="module")
def labelled(classifier):
    """Targets drawn from the posterior's own predictive distribution: it is calibrated by construction."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(600, 1, 4, 4, generator=generator)
    y = torch.multinomial(classifier.predict(x).probs, 1, generator=generator)[:, 0]
    return x, y


@pytest.fixture(scope="module")
def result(classifier, labelled):
    return evaluate(classifier, labelled, ood={"loud": 3 * labelled[0]}, shift=True, resamples=200)


def test_the_figures_are_the_metrics(classifier, labelled, result):
    x, y = labelled
    p = classifier.predict(x, 32)
    assert result["nll"] == pytest.approx(scores.nll(p, y).item(), abs=1e-6)
    assert result["ece"] == pytest.approx(ece(p, y).item(), abs=1e-6)
    assert result["epistemic"] == pytest.approx(p.epistemic.mean().item(), abs=1e-6)
    assert set(result) <= {*METRICS, *(f"loud/{name}" for name in METRICS)}
    assert result["ood_auroc"] == result["loud/auroc_entropy"]
    assert all(math.isfinite(value) for value in result.values())


def test_every_figure_has_an_interval_around_it(result):
    for name in result:
        low, high, error = result.interval(name)
        assert low <= result[name] + 1e-9 and result[name] - 1e-9 <= high and error >= 0, name
    accuracy = result["accuracy"]
    assert result.interval("accuracy").error == pytest.approx(math.sqrt(accuracy * (1 - accuracy) / 600), rel=0.15)


def test_loader_dataset_arrays_and_pair_give_the_same(classifier, labelled):
    options = {"resamples": 0, "draws": 4}
    pair = evaluate(classifier, labelled, **options)
    loader = evaluate(classifier, DataLoader(TensorDataset(*labelled), batch_size=77), **options)
    dataset = evaluate(classifier, TensorDataset(*labelled), **options)
    assert dict(pair) == pytest.approx(dict(loader))
    assert dict(pair) == pytest.approx(dict(dataset))
    assert dict(pair) == dict(evaluate(classifier, tuple(part.numpy() for part in labelled), **options))
    assert pair.about["fingerprint"] == loader.about["fingerprint"]


def test_pieces_are_large_but_bounded(labelled):
    sizes = [len(piece.targets) for piece in pieces(DataLoader(TensorDataset(*labelled), batch_size=50), size=200)]
    assert sizes == [200, 200, 200]


def test_details_for_the_plots(classifier, labelled, result):
    x, y = labelled
    assert sum(result.details["reliability"]["count"]) == 600
    assert result.details["coverage"]["accuracy"][-1] == pytest.approx(result["accuracy"])
    assert sum(result.details["entropy"]["test"]) == pytest.approx(1)
    curve = result.details["draws"]
    assert curve["draws"] == [1, 2, 4, 8, 16, 32]
    assert curve["nll"][-1] == pytest.approx(result["nll"], abs=1e-6)
    assert curve["nll"][0] == pytest.approx(scores.nll(classifier.predict(x, 1), y).item(), abs=1e-6)
    entropies = [e["aleatoric"] + e["epistemic"] for e in result.details["examples"]]
    assert min(entropies[:6]) >= max(entropies[6:])


@pytest.mark.parametrize("states", [32, 9])
def test_fewer_draws_of_a_chain_are_spread_along_it(labelled, states):
    """A chain that walks in from far away: its first states alone are worse than as many of the whole path."""
    x, y = labelled
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double()
    generator = torch.Generator().manual_seed(3)
    end = {name: torch.randn(p.shape, generator=generator, dtype=torch.float64) for name, p in net.named_parameters()}
    far = {name: 4 * torch.randn(p.shape, generator=generator, dtype=torch.float64) for name, p in end.items()}
    points = [{n: end[n] + far[n] * (1 - i / (states - 1)) for n in end} for i in range(states)]
    chain = Empirical(net, Categorical(), points)
    curve = evaluate(chain, (x.double(), y), resamples=0).details["draws"]
    for count, found in zip(curve["draws"], curve["nll"], strict=True):
        assert found == pytest.approx(scores.nll(chain.predict(x.double(), count), y).item(), rel=1e-9), count


def test_shift_of_a_table_does_not_depend_on_its_units():
    """Noise is in units of each column's std, in grams as in tonnes."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(300, 3, generator=generator, dtype=torch.float64)
    weight = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    y = (x @ weight.T).argmax(1)
    units = torch.tensor([1e6, 1.0, 1e-3], dtype=torch.float64)
    net = nn.Linear(3, 2, bias=False).double()
    known, other = (Empirical(net, Categorical(), [{"weight": w}]) for w in (weight, weight / units))
    expected = evaluate(known, (x, y), shift=True, resamples=0)
    found = evaluate(other, (x * units, y), shift=True, resamples=0)
    assert found["shift_nll"] == pytest.approx(expected["shift_nll"], rel=1e-9)
    # The noise itself: z·w with z of variance severity² beside columns of variance one.
    strengths = torch.tensor([0.1, 0.2, 0.4, 0.7, 1.0], dtype=torch.float64)
    wrong = torch.atan(strengths).mean() / math.pi  # how often the sign of a sum of Normals is changed by such noise
    assert 1 - found["shift_accuracy"] == pytest.approx(float(wrong), abs=4 * math.sqrt(0.25 / 1500))


def test_the_parts_of_the_brier_score_and_the_shares_of_entropies(classifier, labelled, result):
    x, y = labelled
    prediction = classifier.predict(x)
    calibrated, refined = scores.brier_split(prediction, y)
    assert result["brier_calibration"] == pytest.approx(calibrated.item(), rel=1e-6)
    assert result["brier_refinement"] == pytest.approx(refined.item(), rel=1e-6)
    counts = torch.histc(prediction.entropy.double(), 40, 0, math.log(3))
    assert result.details["entropy"]["test"] == pytest.approx((counts / 600).tolist())


def test_shift_starts_at_the_clean_figures_and_averages_the_rest(result):
    shift = result.details["shift"]
    assert set(shift) == set(data.CORRUPTIONS)
    assert all(curve["nll"][0] == pytest.approx(result["nll"]) for curve in shift.values())
    mean = sum(sum(curve["nll"][1:]) for curve in shift.values()) / (5 * len(shift))
    assert result["shift_nll"] == pytest.approx(mean)


def test_own_corruptions(classifier, labelled):
    found = evaluate(classifier, labelled, shift={"dim": lambda x, severity: x / (1 + severity)}, resamples=0)
    assert list(found.details["shift"]) == ["dim"]
    x, y = labelled
    assert found.details["shift"]["dim"]["nll"][2] == pytest.approx(
        scores.nll(classifier.predict(x / 3), y).item(), abs=1e-6
    )


def test_the_ood_auroc_is_the_mean_over_the_sets(classifier, labelled):
    x, _ = labelled
    found = evaluate(classifier, labelled, ood={"loud": 3 * x, "quiet": 0.5 * x}, draws=4, resamples=20)
    loud, quiet = "loud/auroc_entropy", "quiet/auroc_entropy"
    assert found["ood_auroc"] == pytest.approx((found[loud] + found[quiet]) / 2)
    means = [(a + b) / 2 for a, b in zip(found.replicates[loud], found.replicates[quiet], strict=True)]
    assert found.replicates["ood_auroc"] == pytest.approx(means, rel=1e-6)


class ByKeyword(nn.Linear):
    """Called as networks of Hugging Face are: by the name of its one input."""

    def forward(self, *, pixels):
        return super().forward(pixels)


def test_corrupted_inputs_reach_the_network_as_the_others_do():
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    y, weights = torch.arange(50) % 3, torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    shift = {"dim": lambda x, severity: x / (1 + severity)}
    point = {"weight": weights, "bias": torch.zeros(3)}
    plain = evaluate(Empirical(nn.Linear(4, 3), Categorical(), [point]), (x, y), shift=shift, resamples=0)
    named = Empirical(ByKeyword(4, 3), Categorical(), [point])
    assert dict(evaluate(named, [({"pixels": x}, y)], shift=shift, resamples=0)) == dict(plain)


def test_out_of_distribution_sets_take_the_units_of_the_test_set(classifier):
    generator = torch.Generator().manual_seed(2)

    def images(name, spread):
        x, y = spread * torch.rand(40, 1, 4, 4, generator=generator), torch.arange(40) % 3
        return data.DataSet.standardised(name, data.Kind.IMAGE, (x, y), (x, y), classes=("a", "b", "c"))

    inside, outside = images("inside", 1.0), images("outside", 0.5)
    found = evaluate(classifier, inside, ood={"other": outside}, resamples=0)
    moved = evaluate(classifier, inside, ood={"other": outside.in_units_of(inside).test[0]}, resamples=0)
    as_it_is = evaluate(classifier, inside, ood={"other": outside.test}, resamples=0)
    assert found["other/auroc_entropy"] == moved["other/auroc_entropy"] != as_it_is["other/auroc_entropy"]


def test_json_round_trip(result, tmp_path):
    result.save(tmp_path / "scores.json")
    back = Scores.load(tmp_path / "scores.json")
    assert dict(back) == dict(result) and back.details == json.loads(json.dumps(result.to_dict()["details"]))
    assert back.interval("nll").error == pytest.approx(result.interval("nll").error, rel=1e-4)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(PosterityError, match="not a readable file of scores"):
        Scores.load(tmp_path / "broken.json")
    with pytest.raises(PosterityError, match="no stored scores"):
        Scores.from_dict({})


def test_paired_comparison_is_sharper_than_two_intervals(classifier, labelled, result):
    x, y = labelled
    wider = DiagonalGaussian(
        classifier.module, Categorical(), classifier.mean(), {n: 2 * v.sqrt() for n, v in classifier.variance().items()}
    )
    other = evaluate(wider, labelled, resamples=200)
    paired = result.compare(other)["nll"]
    assert paired.difference == pytest.approx(result["nll"] - other["nll"])
    each = (
        scores.log_loss_each(classifier.predict(x).probs, y) - scores.log_loss_each(wider.predict(x).probs, y)
    ).std()
    assert paired.error == pytest.approx(each.item() / math.sqrt(600), rel=0.2)
    alone = math.hypot(result.interval("nll").error, other.interval("nll").error)
    assert paired.error < alone
    assert result.compare(result)["accuracy"].verdict == "tied"
    assert result.compare(other)["entropy"].verdict == "no contest"


def test_a_clear_winner_is_named():
    best = Scores({"nll": 0.1}, {"nll": [0.09, 0.1, 0.11]}, about={"fingerprint": "a"})
    worst = Scores({"nll": 0.5}, {"nll": [0.49, 0.5, 0.52]}, about={"fingerprint": "a"})
    assert best.compare(worst)["nll"].verdict == "first" and worst.compare(best)["nll"].verdict == "second"
    # other test sets: the errors of both count
    elsewhere = Scores({"nll": 0.5}, {"nll": [0.49, 0.5, 0.52]}, about={"fingerprint": "b"})
    error = math.hypot(best.interval("nll").error, elsewhere.interval("nll").error)
    assert best.compare(elsewhere)["nll"].error == pytest.approx(error)


def test_two_standard_errors_make_a_winner():
    for difference, better, verdict in ((1.9, 1, "tied"), (2.1, 1, "first"), (2.1, -1, "second"), (-2.1, -1, "first")):
        found = Difference(0.0, 0.0, difference, error=1.0, better=better)
        assert found.verdict == verdict and found.tied == (verdict == "tied")


def test_without_resamples_nothing_is_tied(classifier, labelled):
    plain = evaluate(classifier, labelled, resamples=0)
    worse = Scores({**plain, "nll": plain["nll"] + 5}, about=plain.about)
    for other in (plain, worse):
        found = plain.compare(other)["nll"]
        assert math.isnan(found.error) and not found.tied and found.verdict == "no contest"


def test_one_example_says_nothing_of_chance(classifier, labelled):
    x, y = labelled
    alone = evaluate(classifier, (x[:1], y[:1]), ood={"many": x[:5], "one": x[:1]}, resamples=20)
    among = evaluate(classifier, labelled, ood={"many": x[:5], "one": x[:1]}, resamples=20)
    assert all(math.isnan(end) for end in alone.interval("nll"))
    worse = Scores({**alone, "nll": alone["nll"] + 5}, about=alone.about)
    assert alone.compare(worse)["nll"].verdict == "no contest"
    assert among.interval("nll").error > 0 and among.interval("many/auroc_entropy").error > 0
    assert math.isnan(among.interval("one/auroc_entropy").error) and math.isnan(among.interval("ood_auroc").error)


def test_shown_as_text_html_and_table(result):
    from rich.console import Console

    assert "NLL" in repr(result) and "600 examples" in repr(result)
    assert result._repr_html_().count("<tr>") == len(result) + 1
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(result.table())
    assert "negative log-likelihood" in console.export_text()
    assert "tied" in repr(result.compare(result))


def linear():
    net = nn.Linear(1, 1)
    params = {"weight": torch.tensor([[2.0]]), "bias": torch.tensor([1.0])}
    other = {"weight": torch.tensor([[2.2]]), "bias": torch.tensor([1.0])}
    return Empirical(net, Gaussian(0.5), [params, other])


def test_regression_figures():
    q = linear()
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(3000, 1, generator=generator)
    y = 2.1 * x + 1 + 0.5 * torch.randn(3000, 1, generator=generator)
    found = evaluate(q, (x, y), resamples=100)
    p = q.predict(x)
    assert found["nll"] == pytest.approx(regression.nll(p, y).item(), rel=1e-5)
    assert found["crps"] == pytest.approx(regression.crps(p, y).item(), rel=1e-5)
    assert found["rmse"] == pytest.approx(0.5, rel=0.05)
    for level in (50, 90, 95):
        assert found[f"coverage_{level}"] == pytest.approx(level / 100, abs=0.04)
    assert sum(found.details["pit"]) == pytest.approx(1)
    band = found.details["band"]
    assert band["input"] == sorted(band["input"]) and len(band["mean"]) == 200
    first = x.argmin()
    for name, value in (("mean", p.mean), ("aleatoric", p.aleatoric.sqrt()), ("epistemic", p.epistemic.sqrt())):
        assert band[name][0] == pytest.approx(value[first].item(), rel=1e-5)
    assert found.details["draws"]["draws"] == [1, 2]
    with pytest.raises(PosterityError, match="need class probabilities"):
        evaluate(q, (x, y), ood={"far": x})


def test_regression_figures_are_in_the_targets_own_units():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(400, 1, generator=generator).double()
    raw = 50 + 10 * (2.1 * x + 0.5 * torch.randn(400, 1, generator=generator))
    known = data.DataSet.standardised("own", data.Kind.TABULAR, (x, raw), (x, raw))
    q, std = linear(), known.target_standardiser.std.item()
    inside = evaluate(q, known.test, resamples=0)
    found = evaluate(q, known, resamples=0)
    for name in ("rmse", "crps", "width_90"):
        assert found[name] == pytest.approx(std * inside[name], rel=1e-4)
    assert found["nll"] == pytest.approx(inside["nll"] + math.log(std), rel=1e-5)
    assert found["coverage_90"] == inside["coverage_90"]
    assert found.details["band"]["target"][0] == pytest.approx(raw[x.argmin()].item(), rel=1e-4)


def test_bands_run_along_the_input_and_quantiles_from_0_to_1():
    """A falling line, whose targets lie one std above and below it in turn: F(y) is 0.159 or 0.841."""
    line = {"weight": torch.tensor([[-2.0]]), "bias": torch.zeros(1)}
    x = torch.randn(100, 1, generator=torch.Generator().manual_seed(7))
    y = -2 * x + torch.tensor([1.0, -1.0]).repeat(50)[:, None]
    found = evaluate(Empirical(nn.Linear(1, 1), Gaussian(1.0), [line]), (x, y), resamples=0)
    band = found.details["band"]
    assert band["input"] == sorted(band["input"]) and band["mean"] == sorted(band["mean"], reverse=True)
    assert band["mean"] == pytest.approx([-2 * value for value in band["input"]])
    assert found.details["pit"] == [0.5 if i in (3, 16) else 0.0 for i in range(20)]


def test_fewer_draws_of_counts_are_judged_by_their_means():
    points = [{"weight": torch.tensor([[w]]), "bias": torch.ones(1)} for w in (0.2, 0.6, 0.9)]
    x = torch.linspace(-1, 1, 40)[:, None]
    posterior, y = Empirical(nn.Linear(1, 1), Poisson(), points), torch.arange(40)[:, None] % 6
    curve = evaluate(posterior, (x, y), resamples=0).details["draws"]
    for count, error, nll in zip(curve["draws"], curve["error"], curve["nll"], strict=True):
        p = posterior.predict(x, count)
        assert error == pytest.approx((p.mean - y).square().mean().item(), rel=1e-5)
        assert nll == pytest.approx(regression.nll(p, y).item(), rel=1e-5)


def test_each_target_column_has_units_of_its_own():
    """Densities are of both columns together; errors, scores and widths are means over the two, each in its units."""
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(300, 1, generator=generator).double()
    raw = torch.cat([10 * x, -0.2 * x], 1) + torch.tensor([5.0, 0.1]) * torch.randn(300, 2, generator=generator)
    known = data.DataSet.standardised("two", data.Kind.TABULAR, (x, raw), (x, raw))
    line = {"weight": torch.tensor([[0.9], [-0.8]]), "bias": torch.zeros(2)}
    q, std = Empirical(nn.Linear(1, 2), Gaussian(0.5), [line]), known.target_standardiser.std.double()
    found, (inputs, targets) = evaluate(q, known, resamples=0), known.test
    p = q.predict(inputs)
    squared, (low, high) = (p.mean - targets).double().square(), p.interval(0.9)
    assert found["rmse"] == pytest.approx((squared * std.square()).mean().sqrt().item(), rel=1e-6)
    assert found["crps"] == pytest.approx((regression.crps_each(p, targets) * std).mean().item(), rel=1e-6)
    assert found["width_90"] == pytest.approx(((high - low).double() * std).mean().item(), rel=1e-6)
    assert found["nll"] == pytest.approx(regression.nll(p, targets).item() + std.log().sum().item(), rel=1e-6)


def test_no_error_means_no_error_auroc():
    net = nn.Linear(2, 2)
    q = Empirical(net, Categorical(), [{"weight": 5 * torch.eye(2), "bias": torch.zeros(2)}])
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(10, 1)
    found = evaluate(q, (x, torch.arange(20) % 2), resamples=20)
    assert found["accuracy"] == 1 and "misclassification_auroc" not in found


def test_data_with_weights_are_refused_by_all_that_count_every_example_once(classifier, labelled):
    """They were left out without a word by all but ``evaluate``, where elsewhere an example of weight 2 is two."""
    x, y = labelled
    weighted = [(x, y, torch.ones(600))]
    calls = (
        lambda: evaluate(classifier, weighted),
        lambda: pst.temper(classifier, weighted),
        lambda: pst.conformal(classifier, weighted),
        lambda: pst.landscape(classifier, weighted, steps=2),
        lambda: pst.connect(classifier, classifier, weighted, steps=1),
        lambda: pst.diversity(classifier, weighted),
        lambda: pst.compress(classifier, keep=0.5, validation=weighted),
    )
    for call in calls:
        with pytest.raises(PosterityError, match="every example counts once here, but these batches hold weights"):
            call()


def test_bad_input(classifier, labelled, result):
    x, y = labelled
    with pytest.raises(PosterityError, match="no figure called 'nil': did you mean 'nll'"):
        result["nil"]
    with pytest.raises(KeyError):
        result["nil"]
    assert result.get("nil") is None
    with pytest.raises(PosterityError, match="no figure called 'xyz': there are"):
        metric("xyz")
    with pytest.raises(PosterityError, match="600 inputs and 599 targets"):
        evaluate(classifier, (x, y[:-1]))
    with pytest.raises(PosterityError, match=r"set .small. has inputs of shape \(1, 2, 2\)"):
        evaluate(classifier, labelled, ood={"small": x[:, :, :2, :2]})
    with pytest.raises(PosterityError, match="shift must be True, False or a dictionary of corruptions by name"):
        evaluate(classifier, (x, y), shift="blur")
    with pytest.raises(PosterityError, match=r"shift=True needs images in \[0, 1\]"):
        evaluate(classifier, (x - 5, y), shift=True)
    with pytest.raises(PosterityError, match="no examples"):
        evaluate(classifier, [])
    with pytest.raises(PosterityError, match="got int"):
        evaluate(classifier, 3)
    with pytest.raises(PosterityError, match="got list_iterator"):  # its first batch would be missing
        evaluate(classifier, labelled, ood={"once": iter([labelled])})
    with pytest.raises(PosterityError, match="every example counts once"):
        evaluate(classifier, [(x, y, torch.ones(len(y)))])
    with pytest.raises(PosterityError, match="resamples must be"):
        evaluate(classifier, labelled, resamples=-1)
    with pytest.raises(PosterityError, match="compared with scores, got dict"):
        result.compare({})
    with pytest.raises(PosterityError, match="level lies in"):
        result.interval("nll", 95)


@pytest.fixture(scope="module")
def by_row():
    """A layer for rows of numbers, however many dimensions lie before them."""
    torch.manual_seed(0)
    net = nn.Linear(4, 3).double()
    mean = {name: p.detach() for name, p in net.named_parameters()}
    return DiagonalGaussian(net, Categorical(), mean, {name: torch.full_like(p, 0.3) for name, p in mean.items()})


@pytest.mark.parametrize("positions", [(5,), (2, 3)], ids=str)
def test_every_position_of_an_example_counts(by_row, positions):
    x = torch.randn(40, *positions, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.multinomial(by_row.predict(x.reshape(-1, 4)).probs, 1).view(40, *positions)
    found = evaluate(by_row, (x, y), ood={"loud": 3 * x}, resamples=0)
    flat = evaluate(by_row, (x.reshape(-1, 4), y.flatten()), ood={"loud": 3 * x.reshape(-1, 4)}, resamples=0)
    assert dict(found) == pytest.approx(dict(flat), abs=1e-12)
    assert found.about["examples"] == 40 and found.details["draws"]["nll"] == pytest.approx(
        flat.details["draws"]["nll"]
    )


def test_intervals_are_those_of_other_examples(by_row):
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.multinomial(by_row.predict(x).probs, 1, generator=torch.Generator().manual_seed(2))[:, 0]
    repeated, labels = x.unsqueeze(1).expand(60, 7, 4), y.unsqueeze(1).expand(60, 7)  # seven times the same
    shift = {"louder": lambda x, severity: x * (1 + severity)}
    single = evaluate(by_row, (x, y), ood={"loud": 3 * x}, shift=shift, resamples=50)
    several = evaluate(by_row, (repeated, labels), ood={"loud": 3 * repeated}, shift=shift, resamples=50)
    by_steps = {"aurc", "loud/aupr_confidence", "loud/entropy_kl"}  # these are finer where there are more rows
    for name in set(single) - by_steps:
        assert several[name] == pytest.approx(single[name], abs=1e-9), name
        assert several.interval(name) == pytest.approx(single.interval(name), abs=1e-6), name


@pytest.mark.parametrize("ood", [torch.zeros(3, 1, 4, 4), [torch.zeros(3, 1, 4, 4)]])
def test_foreign_data_without_a_name_are_refused(classifier, labelled, ood):
    with pytest.raises(PosterityError, match="ood must be a dictionary of data by name"):
        evaluate(classifier, labelled, ood=ood)


@pytest.mark.parametrize(
    "use",
    [
        lambda q, x: evaluate(q, x),
        lambda q, x: pst.landscape(q, x),
        lambda q, x: pst.connect(q, q, x, steps=1),
        lambda q, x: pst.diversity(q, x),
        lambda q, x: pst.temper(q, x),
        lambda q, x: pst.conformal(q, x),
        lambda q, x: pst.compress(q, keep=0.5, validation=x),
        lambda q, x: pst.Laplace().post_hoc(q.module, x),
    ],
)
def test_inputs_alone_are_refused_where_targets_count(use):
    """They were taken for examples of class 0."""
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    q = pst.fit(nn.Linear(3, 2), pst.IVON(), (x, y), epochs=1, training=pst.Training(progress=False))
    with pytest.raises(PosterityError, match=r"inputs alone: give \(inputs, targets\)"):
        use(q, x)
    assert "far/auroc_entropy" in evaluate(q, (x, y), ood={"far": 5 * x}, resamples=0)
    assert pst.diagnose(q, x, samples=8) == pst.diagnose(q, (x, y), samples=8)
