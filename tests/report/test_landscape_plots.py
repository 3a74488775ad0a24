"""Pictures are checked by what is in them: the numbers drawn are those of the result."""

import matplotlib as mpl
import numpy as np
import torch

mpl.use("agg")
from matplotlib.figure import Figure

from posterity.evaluation.connection import Connection
from posterity.evaluation.diagnostics import Diversity
from posterity.evaluation.landscape import Landscape
from posterity.report import landscape as pictures


def axes():
    return Figure().add_subplot()


def test_the_plane_shows_path_points_mean_and_the_asked_surface():
    x = torch.linspace(-1, 1, 5)
    loss = (x[None, :] ** 2 + x[:, None] ** 2).double()
    spots = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    found = Landscape(x, x, loss, loss / 10, spots, spots, torch.tensor([0.3, 0.3]), True)
    drawn = pictures.plane(axes(), found)
    np.testing.assert_array_equal(drawn.lines[0].get_xydata(), spots.numpy())
    levels = drawn.collections[0].levels  # from the minimum to where a twentieth of the plane lies above
    np.testing.assert_allclose([levels[0], levels[-1]], [0.0, np.quantile(loss, 0.95)])
    offsets = [c.get_offsets() for c in drawn.collections if len(c.get_offsets()) in (1, 3) and c.get_label()[0] != "_"]
    np.testing.assert_allclose(offsets[-1], [[0.3, 0.3]], rtol=1e-6)
    labels = [a.get_ylabel() for a in drawn.figure.axes]
    assert "mean negative log-likelihood" in labels
    drawn = pictures.plane(axes(), found, "error")
    assert "share of wrong labels" in [a.get_ylabel() for a in drawn.figure.axes]


def test_both_ways_of_a_connection_are_drawn():
    t = torch.linspace(0, 1, 4)
    found = Connection(t, t * 2, t, t * 3, t, {})
    drawn = pictures.connection(axes(), found)
    assert [line.get_label() for line in drawn.lines] == ["straight line", "trained curve"]
    np.testing.assert_allclose(drawn.lines[1].get_ydata(), (t * 3).numpy())


def test_each_group_of_networks_has_its_own_dots():
    found = Diversity(torch.tensor([0.9, 0.8]), torch.tensor([0.1, 0.2]), torch.tensor([1.0, 1.0]))
    drawn = pictures.diversity(axes(), {"members": found, "draws": found})
    assert [c.get_label() for c in drawn.collections] == ["members", "draws"]
    np.testing.assert_allclose(drawn.collections[0].get_offsets(), [[0.9, 1.0], [0.8, 1.0]], rtol=1e-6)


def test_chains_shows_the_class_that_moves_most():
    traces = torch.zeros(2, 6, 1, 3)
    traces[0, :, 0, 1] = torch.arange(6.0)
    drawn = pictures.chains(axes(), traces)
    np.testing.assert_allclose(drawn.lines[0].get_ydata(), np.arange(6.0))
    assert len(drawn.lines) == 2
