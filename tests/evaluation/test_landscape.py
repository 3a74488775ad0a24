import copy

import pytest
import torch
from torch import nn

import posterity as pst
from posterity.evaluation.connection import Connection, _examples, connect
from posterity.evaluation.landscape import Plane, judge, landmarks, landscape
from posterity.posteriors import Empirical, LowRankGaussian, Mixture
from posterity.types import PosterityError

LIKELIHOOD = pst.likelihoods.Gaussian(std=1.0)
X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X @ torch.tensor([[1.0], [-0.5], [0.25]], dtype=torch.float64)


def linear():
    return nn.Linear(3, 1, bias=False, dtype=torch.float64)


def point(*values):
    return {"weight": torch.tensor([values], dtype=torch.float64)}


def test_the_plane_holds_its_three_points():
    points = [point(1.0, 2.0, 0.0), point(3.0, 2.0, 1.0), point(0.0, 5.0, -1.0)]
    plane = Plane.through(points)
    torch.testing.assert_close(plane.axes @ plane.axes.T, torch.eye(2, dtype=torch.float64))
    for coordinates, expected in zip(plane.project(points), points, strict=True):
        torch.testing.assert_close(plane.at(coordinates)["weight"], expected["weight"])
    spots = plane.project(points)
    assert spots[0].tolist() == [0.0, 0.0]
    assert float(spots[1, 1]) == pytest.approx(0.0)
    assert float(spots[1, 0]) == pytest.approx(5**0.5)  # distances in weight space


def test_more_points_give_the_plane_of_their_main_directions():
    generator = torch.Generator().manual_seed(1)
    scales = torch.tensor([5.0, 0.01, 2.0], dtype=torch.float64)
    points = [point(*(scales * torch.randn(3, generator=generator)).tolist()) for _ in range(200)]
    plane = Plane.through(points)
    torch.testing.assert_close(plane.axes.abs(), torch.eye(3, dtype=torch.float64)[[0, 2]], atol=0.05, rtol=0)


def test_the_loss_on_the_plane_is_the_quadratic_it_must_be():
    """Linear regression: −log-likelihood at w is ½ mean (Xw − y)² + ½ log 2π, the error its squared part."""
    points = [point(1.0, 0.0, 0.0), point(0.0, 1.0, 0.0), point(0.0, 0.0, 1.0)]
    posterior = Mixture([Empirical(linear(), LIKELIHOOD, [p]) for p in points])
    picture = landscape(posterior, (X, Y), steps=5, margin=0.2)
    assert repr(picture).startswith("Landscape(5 × 5 points, loss ")
    plane = Plane.through(points)
    for i, b in enumerate(picture.y):
        for j, a in enumerate(picture.x):
            w = plane.at(torch.stack([a, b]))["weight"]
            squared = float((X @ w.T - Y).square().mean())
            assert float(picture.error[i, j]) == pytest.approx(squared)
            assert float(picture.loss[i, j]) == pytest.approx(0.5 * squared + 0.9189385)
    torch.testing.assert_close(picture.centre, plane.project([posterior.mean()])[0])
    assert picture.x[0] < picture.points[:, 0].min() < picture.points[:, 0].max() < picture.x[-1]


def test_swag_is_seen_along_its_deviations():
    module, generator = linear(), torch.Generator().manual_seed(2)
    rows = torch.randn(6, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 0.001, 3.0])
    mean = point(1.0, 1.0, 1.0)
    posterior = LowRankGaussian(module, LIKELIHOOD, mean, point(0.1, 0.1, 0.1), rows, 0.5)
    spanned = torch.cat([p["weight"] for p in landmarks(posterior)])
    torch.testing.assert_close(spanned[::2], mean["weight"] + rows)
    torch.testing.assert_close(spanned[1::2], mean["weight"] - rows)
    picture = landscape(posterior, (X, Y), steps=3)
    assert picture.path.shape == (0, 2)
    torch.testing.assert_close(picture.centre, torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)
    directions = torch.linalg.svd(rows).Vh[:2]
    torch.testing.assert_close(Plane.through(landmarks(posterior)).axes.abs(), directions.abs())


def test_a_chain_brings_its_path_and_any_other_can_be_given():
    generator = torch.Generator().manual_seed(3)
    points = [point(*torch.randn(3, generator=generator).tolist()) for _ in range(6)]
    chain = Empirical(linear(), LIKELIHOOD, points)
    plane = Plane.through(points)
    torch.testing.assert_close(landscape(chain, (X, Y), steps=2).path, plane.project(points))
    torch.testing.assert_close(landscape(chain, (X, Y), path=points[:2], steps=2).path, plane.project(points[:2]))


def test_errors_of_classes_are_shares_of_wrong_labels():
    module = nn.Linear(3, 2, bias=False, dtype=torch.float64)
    labels = (X[:, 0] > 0).long()
    right = {"weight": torch.tensor([[-1.0, 0, 0], [1.0, 0, 0]], dtype=torch.float64)}
    wrong = {"weight": -right["weight"]}
    judged = judge(module, pst.likelihoods.Categorical(), [right, wrong], (X, labels))
    assert judged[:, 1].tolist() == [0.0, 1.0]
    expected = nn.functional.cross_entropy(X @ right["weight"].T, labels)
    torch.testing.assert_close(judged[0, 0], expected)


def test_every_point_gets_batchnorm_statistics_of_its_own():
    """Scaling the layer before BatchNorm changes nothing, if its statistics are refreshed."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double().eval()
    params = {name: p.detach() for name, p in module.named_parameters()}
    scaled = {name: w * 3 if name.startswith("0.") else w for name, w in params.items()}
    before = copy.deepcopy(module.state_dict())
    one, other = judge(module, LIKELIHOOD, [params, scaled], (X, Y))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])


class Ring(nn.Module):
    """Loss depends on the distance from the origin alone: minima form a circle, with a hill inside."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x):
        return x * 0 + 2 * (self.w.square().sum() - 1)


def test_a_barrier_is_what_stands_above_the_line_between_the_ends():
    t, error = torch.tensor([0.0, 0.25, 1.0]), torch.zeros(3)
    ways = Connection(t, torch.tensor([1.0, 2.0, 5.0]), error, torch.tensor([4.0, 4.5, 0.0]), error, {})
    assert ways.barrier == pytest.approx((0.0, 1.5))


def test_a_curve_goes_round_the_hill_that_the_straight_line_crosses():
    ring, x, y = Ring(), torch.zeros(8, 1, dtype=torch.float64), torch.zeros(8, 1, dtype=torch.float64)
    ends = [
        Empirical(ring, LIKELIHOOD, [{"w": torch.tensor(w, dtype=torch.float64)}]) for w in ([1.0, 0.05], [-1.0, 0.05])
    ]
    found = connect(*ends, (x, y), steps=300, lr=0.05, points=11)
    straight, curved = found.barrier
    assert straight == pytest.approx(2.0, abs=0.02)  # ½ · 2² at the hill's top
    assert curved < 0.25 * straight
    assert float(found.curve_loss[0]) == pytest.approx(float(found.straight_loss[0]))
    assert float(found.curve_loss[-1]) == pytest.approx(float(found.straight_loss[-1]))
    assert found.bend["w"].norm() > 1.5  # a quadratic Bézier's middle lies outside the circle


def test_both_ways_are_the_curves_that_they_are_called():
    """w₁ + t (w₂ − w₁), and the quadratic Bézier curve through the bend; the loss of linear regression is known."""
    first, second = point(2.0, 0.0, -1.0), point(-1.0, 3.0, 0.5)
    found = connect(*(Empirical(linear(), LIKELIHOOD, [p]) for p in (first, second)), (X, Y), steps=20, points=5)
    w1, w2, bend = first["weight"], second["weight"], found.bend["weight"]
    for i, t in enumerate((0.0, 0.25, 0.5, 0.75, 1.0)):
        line, curve = (1 - t) * w1 + t * w2, (1 - t) ** 2 * w1 + 2 * t * (1 - t) * bend + t**2 * w2
        for errors, w in ((found.straight_error, line), (found.curve_error, curve)):
            assert float(errors[i]) == pytest.approx(float((X @ w.T - Y).square().mean()))


def test_the_bend_sees_every_example_alike():
    """Of a loader whose last piece is small, each example of that piece was seen a thousand times as often."""
    pieces = [(torch.zeros(n, 1), torch.full((n,), i)) for i, n in enumerate((10_000, 10))]
    seen = [int(batch.targets[0]) for _, batch in _examples(pieces, torch.device("cpu"), 1000, 4, seed=0)]
    assert len(seen) == 1000 and sum(seen) < 6  # Poisson of mean 1: 6 and more have a chance of 6e-4


def test_the_bend_does_not_hang_on_statistics_that_the_network_happens_to_have():
    """Steps see the BatchNorm statistics of their batch, as in training."""
    bends = []
    for seen in (0.0, 100.0):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
        module[1].running_mean.fill_(seen)
        points = [{n: p.detach() + 0.1 * i for n, p in module.named_parameters()} for i in range(2)]
        ends = [Empirical(module, LIKELIHOOD, [p]) for p in points]
        bends.append(connect(*ends, (X, Y), steps=5, points=3).bend)
    torch.testing.assert_close(bends[0], bends[1])


def test_the_posteriors_are_not_changed_by_the_search():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    ends = [
        Empirical(module, LIKELIHOOD, [{n: p.detach() + 0.1 * i for n, p in module.named_parameters()}])
        for i in range(2)
    ]
    before = copy.deepcopy(ends[0].module.state_dict())
    connect(*ends, (X, Y), steps=5, points=3)
    for name, tensor in ends[0].module.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert not ends[0].module.training


def test_bad_input_is_refused():
    with pytest.raises(PosterityError, match="at least three"):
        Plane.through([point(1.0, 0.0, 0.0), point(0.0, 1.0, 0.0)])
    with pytest.raises(PosterityError, match="on one line"):
        Plane.through([point(0.0, 0.0, 0.0), point(1.0, 0.0, 0.0), point(2.0, 0.0, 0.0)])


def test_errors_of_yes_and_no_and_of_several_numbers_are_means():
    """Three of four right, in either shape of targets; columns off by 1 and 3 have a mean square of 5."""
    sure = {"weight": torch.zeros(1, 3, dtype=torch.float64), "bias": torch.ones(1, dtype=torch.float64)}
    for targets in (torch.tensor([1, 1, 1, 0]), torch.tensor([[1], [1], [1], [0]])):
        module = nn.Linear(3, 1, dtype=torch.float64)
        found = judge(module, pst.likelihoods.Bernoulli(), [sure], (X[:4], targets))
        assert float(found[0, 1]) == 0.25
    two = {"weight": torch.zeros(2, 3, dtype=torch.float64), "bias": torch.tensor([1.0, 3.0], dtype=torch.float64)}
    found = judge(nn.Linear(3, 2, dtype=torch.float64), LIKELIHOOD, [two], (X, torch.zeros(60, 2, dtype=torch.float64)))
    assert float(found[0, 1]) == pytest.approx((1 + 9) / 2)
