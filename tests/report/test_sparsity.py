"""Pictures of sparse networks: what is drawn is what was given."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import posterity as pst
from posterity.compression.film import WeightFilm
from posterity.report import sparsity
from posterity.types import PosterityError


def axes():
    return Figure().subplots()


def test_matrix_and_filters_as_images():
    matrix = torch.tensor([[1.0, 0.0], [0.0, -2.0]])
    np.testing.assert_array_equal(sparsity.weight_image(matrix), [[1, np.nan], [np.nan, -2]])
    filters = torch.arange(1.0, 2 * 3 * 4 + 1).reshape(2, 3, 2, 2)
    image = sparsity.weight_image(filters)
    assert image.shape == (5, 8)  # two filters of height 2 and a line between; three of width 2 and two lines
    np.testing.assert_array_equal(image[3:, 3:5], filters[1, 1])
    assert np.isnan(image[2]).all() and np.isnan(image[:, [2, 5]]).all()
    grid = sparsity.weight_image(torch.ones(5, 1, 2, 2))  # 2 × 3, one place empty
    assert grid.shape == (5, 8) and np.isnan(grid[3:, 6:]).all() and int(np.nansum(grid)) == 20


def test_weights_show_their_sparsity_and_share_a_scale():
    drawn = sparsity.weights(axes(), torch.tensor([[1.0, 0, 0, 0]]), "epoch 3", limit=5.0)
    assert drawn.get_title() == "epoch 3  75.0% zeros"
    assert drawn.images[0].get_clim() == (-5, 5)
    strip = sparsity.film_strip({epoch: torch.full((2, 2), float(epoch)) for epoch in range(1, 12)}, count=3)
    assert [ax.get_title() for ax in strip.axes] == [f"epoch {e}  0.0% zeros" for e in (1, 6, 11)]
    assert {ax.images[0].get_clim() for ax in strip.axes} == {(-11, 11)}


def test_animation_has_every_frame(tmp_path):
    frames = {epoch: (torch.arange(16.0).reshape(4, 4) >= epoch) * 1.0 for epoch in range(1, 6)}
    sparsity.animation(frames, tmp_path / "film.gif", seconds=0.1)
    with Image.open(tmp_path / "film.gif") as film:
        assert film.n_frames == 5
        film.seek(4)
        assert film.info["duration"] == 1000
    with pytest.raises(PosterityError, match="no frame"):
        sparsity.animation({}, tmp_path / "other.gif")
    assert [p.name for p in tmp_path.iterdir()] == ["film.gif"]


def test_curves_hold_the_numbers():
    drawn = sparsity.sparsity_by_layer(axes(), [1, 2], {"fc1.weight": [0.0, 0.5], "fc2.weight": [0.1, 0.2]})
    assert [line.get_label() for line in drawn.lines] == ["fc1", "fc2"]
    assert drawn.lines[0].get_ydata().tolist() == [0, 50]
    points = {"magnitude": [(10, 0.02), (10, 0.04), (2, 0.01)], "random": [(2, 0.05)]}
    drawn = sparsity.compression_curve(axes(), points, dense=0.01)
    assert drawn.lines[0].get_xdata().tolist() == [2, 10]
    assert drawn.lines[0].get_ydata().tolist() == pytest.approx([1, 3])
    assert len(drawn.collections) == 1  # only magnitude has a spread
    assert drawn.get_xscale() == "log" and drawn.lines[2].get_label() == "dense"
    drawn.figure.draw_without_rendering()
    assert {"2×", "5×", "10×"} <= {label.get_text() for label in drawn.get_xticklabels()}
    with pytest.raises(PosterityError):
        sparsity.compression_curve(axes(), {})


def test_film_of_a_run():
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    film = WeightFilm("0.weight", every=3)
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    method = pst.Pruning(keep=0.5, ramp="one-shot", start=0.5)
    training = pst.Training(batch_size=20, progress=False, callbacks=(film,))
    posterior = pst.fit(module, method, (x, (x[:, 0] > 0).long()), epochs=8, training=training)
    assert list(film.frames) == [1, 3, 6, 8]
    assert film.epochs == list(range(1, 9)) and set(film.sparsity) == {"0.weight", "2.weight"}
    assert film.sparsity["0.weight"][2] == 0 and film.sparsity["0.weight"][-1] > 0
    torch.testing.assert_close(film.frames[8], posterior.mean()["0.weight"])
    with pytest.raises(PosterityError, match="no weight 'other'"):
        pst.fit(module, method, (x, (x[:, 0] > 0).long()), epochs=1,
                training=pst.Training(progress=False, callbacks=(WeightFilm("other"),)))  # fmt: skip
