import math

import pytest
import torch

from posterity.data import CORRUPTIONS, SEVERITIES, Kind, Standardiser, corrupt, corruptions_for
from posterity.data.corruptions import blur, brightness, contrast, noise, pixelate, rotation, table_noise
from posterity.types import PosterityError


def images(low: float = 0.0, high: float = 1.0, sides: tuple[int, int] = (16, 12)) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    return low + (high - low) * torch.rand(5, 3, *sides, generator=g, dtype=torch.float64)


def photographs() -> torch.Tensor:
    """Smooth images, as natural ones are: on white noise a coarser grid is not always worse."""
    position = torch.arange(32, dtype=torch.float64)
    waves = [(position / length).sin() for length in (3.0, 5.0, 9.0)]
    return torch.stack([0.3 + 0.2 * torch.outer(a, b) for a in waves for b in waves]).unsqueeze(1)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_severity_zero_is_the_identity_and_more_is_worse(name: str) -> None:
    x = photographs()
    assert torch.equal(CORRUPTIONS[name](x, 0), x)
    generator = torch.Generator()
    harm = [(CORRUPTIONS[name](x, s, generator.manual_seed(1)) - x).square().mean().item() for s in SEVERITIES]
    assert harm == sorted(harm) and harm[0] > 0
    assert all(CORRUPTIONS[name](x, s, generator).shape == x.shape for s in SEVERITIES)
    for severity in (6, -1, 1.5):
        with pytest.raises(PosterityError, match="severity must be"):
            CORRUPTIONS[name](x, severity)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_results_stay_in_the_unit_interval(name: str) -> None:
    y = CORRUPTIONS[name](images(), 5, torch.Generator().manual_seed(0))
    assert y.min() >= -1e-12 and y.max() <= 1 + 1e-12


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness_shifts_the_mean_by_exactly_its_strength(severity: int) -> None:
    x = images(0.0, 0.6)
    shift = CORRUPTIONS["brightness"].strengths[severity - 1]
    change = CORRUPTIONS["brightness"](x, severity).mean() - x.mean()
    assert change.item() == pytest.approx(shift, abs=1e-12)
    assert brightness(torch.full((1, 1, 2, 2), 0.9), 0.2).max() == 1.0


def test_contrast_keeps_the_mean_and_scales_the_std() -> None:
    x = images()
    y = contrast(x, 0.3)
    torch.testing.assert_close(y.mean((1, 2, 3)), x.mean((1, 2, 3)))
    torch.testing.assert_close(y.std((1, 2, 3)), 0.3 * x.std((1, 2, 3)))


def test_noise_has_its_std_and_comes_from_the_generator() -> None:
    x = torch.full((40, 1, 50, 50), 0.5, dtype=torch.float64)
    g = torch.Generator()
    y = noise(x, 0.08, g.manual_seed(0))  # 0.5 is six std from either end: nothing is clipped
    assert (y - x).std().item() == pytest.approx(0.08, rel=4 / math.sqrt(2 * x.numel()))
    assert (y - x).mean().item() == pytest.approx(0, abs=4 * 0.08 / math.sqrt(x.numel()))
    assert torch.equal(y, noise(x, 0.08, g.manual_seed(0))) and not torch.equal(y, noise(x, 0.08, g))


def test_what_leaves_a_constant_image_alone() -> None:
    x = torch.full((2, 3, 9, 14), 0.37, dtype=torch.float64)
    for y in (pixelate(x, 0.4), blur(x, 2.0), contrast(x, 0.2)):
        torch.testing.assert_close(y, x)


def test_pixelate_averages_blocks_by_hand() -> None:
    x = torch.tensor([[[[0.0, 1.0, 0.2, 0.2], [1.0, 0.0, 0.2, 0.6]]]])
    torch.testing.assert_close(pixelate(x, 0.5), torch.tensor([[[[0.5, 0.5, 0.3, 0.3], [0.5, 0.5, 0.3, 0.3]]]]))
    assert torch.equal(pixelate(x, 1.0), x)
    once = pixelate(images(), 0.6)
    torch.testing.assert_close(pixelate(once, 0.6), once)  # a projection
    torch.testing.assert_close(pixelate(images(), 0.01), images().mean((2, 3), keepdim=True).expand(-1, -1, 16, 12))


def test_blur_spreads_a_point_like_a_gaussian() -> None:
    x = torch.zeros(1, 1, 65, 65, dtype=torch.float64)
    x[0, 0, 32, 32] = 1.0
    std = 2.0
    y = blur(x, std * 32 / 65)[0, 0]
    torch.testing.assert_close(y.sum(), torch.tensor(1.0, dtype=torch.float64))
    d = torch.arange(65, dtype=torch.float64) - 32
    # Cut off at three std, the variance of the discrete Gaussian is 2.7 % short.
    assert (y.sum(0) @ d**2).item() == pytest.approx(std**2, rel=0.03)
    torch.testing.assert_close(y, y.T)
    assert (y[32, 34] / y[32, 32]).item() == pytest.approx(math.exp(-0.5), rel=1e-9)


def test_rotation_by_right_angles_is_exact() -> None:
    x = images(sides=(8, 8))
    for turns in range(4):
        torch.testing.assert_close(rotation(x, 90.0 * turns), x.rot90(turns, (2, 3)), atol=1e-9, rtol=0)
    wide = images(sides=(5, 9))
    torch.testing.assert_close(rotation(wide, 180.0), wide.rot90(2, (2, 3)), atol=1e-9, rtol=0)


def test_rotation_leaves_a_round_image_alone_and_moves_a_point_counter_clockwise() -> None:
    d = torch.arange(33, dtype=torch.float64) - 16
    blob = torch.exp(-(d[:, None] ** 2 + d[None, :] ** 2) / 50)[None, None]
    assert (
        rotation(blob, 33.0) - blob
    ).abs().max() < 0.01  # bilinear interpolation error: h²/8 · |f''| = 0.005 an axis
    for sides in ((33, 33), (41, 33)):  # the angle is right in pixels, also where the sides differ
        x = torch.zeros(1, 1, *sides, dtype=torch.float64)
        row, column = sides[0] // 2, sides[1] // 2
        x[0, 0, row, column + 10] = 1.0  # to the right of the centre
        mass = rotation(x, 30.0)[0, 0]
        mass = mass / mass.sum()
        rows, columns = (torch.arange(n, dtype=torch.float64) for n in sides)
        up, right = row - (mass.sum(1) @ rows).item(), (mass.sum(0) @ columns).item() - column
        assert math.degrees(math.atan2(up, right)) == pytest.approx(30, abs=1.5)
        assert math.hypot(up, right) == pytest.approx(10, abs=0.3)


def test_corrupt_works_in_the_original_units() -> None:
    x = images(0.1, 0.5)
    standardiser = Standardiser.fit(x)
    z = standardiser.apply(x)
    y = corrupt(z, "brightness", 3, kind=Kind.IMAGE, standardiser=standardiser)
    torch.testing.assert_close(standardiser.invert(y), x + 0.2)
    assert corrupt(z, "blur", 0, kind=Kind.IMAGE, standardiser=standardiser) is z
    torch.testing.assert_close(corrupt(x, "blur", 2, kind=Kind.IMAGE, standardiser=None), CORRUPTIONS["blur"](x, 2))


def test_tables_take_noise_only_and_text_nothing() -> None:
    assert list(corruptions_for(Kind.TABULAR)) == list(corruptions_for(Kind.PLANE)) == ["noise"]
    x = torch.zeros(5000, 4)
    y = corrupt(x, "noise", 5, kind=Kind.TABULAR, standardiser=None, generator=torch.Generator().manual_seed(0))
    assert y.std().item() == pytest.approx(1.0, rel=4 / math.sqrt(2 * x.numel())) and y.min() < -2
    assert torch.equal(y, table_noise(x, 1.0, torch.Generator().manual_seed(0)))
    with pytest.raises(PosterityError, match="'blur' is no corruption of tabular inputs: there are noise"):
        corrupt(x, "blur", 1, kind=Kind.TABULAR, standardiser=None)
    with pytest.raises(PosterityError, match="no corruption of text inputs: there are none"):
        corrupt(x, "noise", 1, kind=Kind.TEXT, standardiser=None)
