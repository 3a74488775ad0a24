import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from posterity import data
from posterity.data import toy
from posterity.data.formats import scikit_learn_file

EMBEDDED = ["digits", "two-moons", "circles", "sine", "heteroscedastic"]


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_description_is_true_and_the_seed_decides(name: str) -> None:
    here = next(d for d in data.describe() if d.name == name)
    first, again, other = (data.load(name, seed=seed) for seed in (0, 0, 1))
    assert here.here
    assert (first.task, first.kind, first.shape) == (here.task, here.kind, here.shape)
    assert (len(first.training()[0]), len(first.test[0])) == (here.train, here.test)
    assert first.training()[0].dtype == torch.float32
    assert torch.equal(first.training()[0], again.training()[0]) and torch.equal(first.test[1], again.test[1])
    assert not torch.equal(first.training()[0], other.training()[0])


def raw(dataset: data.DataSet, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = dataset.training() if part == "train" else dataset.test
    assert dataset.standardiser is not None
    y = dataset.target_standardiser.invert(y) if dataset.target_standardiser is not None else y
    return dataset.standardiser.invert(x), y


def test_digits_are_the_digits() -> None:
    digits = data.load("digits")
    x = torch.cat([raw(digits, "train")[0], raw(digits, "test")[0]])
    labels = torch.cat([digits.training()[1], digits.test[1]])
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as published
    assert x.min().item() == pytest.approx(0, abs=1e-6) and x.max().item() == pytest.approx(1, abs=1e-6)


def test_files_of_scikit_learn_are_what_its_own_readers_give() -> None:
    """They are read without importing it, which takes longer than most commands."""
    from sklearn.datasets import load_digits, load_sample_images

    rows = np.loadtxt(scikit_learn_file("data", "digits.csv.gz"), delimiter=",")
    bunch = load_digits()
    assert np.array_equal(rows, np.column_stack([bunch.data, bunch.target]))
    for name, image in zip(("china", "flower"), load_sample_images().images, strict=True):
        assert np.array_equal(np.array(Image.open(scikit_learn_file("images", f"{name}.jpg"))), image)


def test_sine_leaves_its_gap_and_has_its_noise() -> None:
    sine = data.load("sine")
    x, y = raw(sine, "train")
    left, right = toy.SINE_GAP
    assert not ((x > left + 1e-5) & (x < right - 1e-5)).any()
    assert ((raw(sine, "test")[0] > left) & (raw(sine, "test")[0] < right)).sum() > 100
    residual = torch.cat([y - x.sin(), raw(sine, "test")[1] - raw(sine, "test")[0].sin()])
    # The std of an std from n normals is std / sqrt(2n): four of them.
    assert residual.std().item() == pytest.approx(toy.SINE_NOISE_STD, rel=4 / math.sqrt(2 * len(residual)))


def test_heteroscedastic_noise_has_its_std() -> None:
    assert toy.heteroscedastic_std(torch.tensor([-2.0, 2.0])).tolist() == pytest.approx([0.05, 0.65])  # as it says
    x, y = raw(data.load("heteroscedastic"), "train")
    z = (y - x * (2 * x).sin()) / toy.heteroscedastic_std(x)
    assert z.std().item() == pytest.approx(1, abs=4 / math.sqrt(2 * len(z)))
    for half in (z[x < 0], z[x >= 0]):
        assert half.std().item() == pytest.approx(1, abs=4 / math.sqrt(2 * len(half)))


def test_circles_and_moons_lie_where_they_should() -> None:
    x, y = raw(data.load("circles"), "train")
    radius = x.norm(dim=1)
    # E|r·u + 0.1ε| ≈ r + 0.1² / (2r), std 0.1 / sqrt(500)
    assert radius[y == 0].mean().item() == pytest.approx(1.005, abs=0.018)
    assert radius[y == 1].mean().item() == pytest.approx(0.51, abs=0.018)
    x, y = raw(data.load("two-moons"), "train")
    upper, lower = x[y == 0], x[y == 1] - torch.tensor([1.0, 0.5])
    for moon, side in ((upper, 1.0), (lower, -1.0)):
        assert moon.norm(dim=1).mean().item() == pytest.approx(1 + 0.15**2 / 2, abs=4 * 0.15 / math.sqrt(500))
        assert moon[:, 1].mean().item() == pytest.approx(side * 2 / math.pi, abs=4 * 0.35 / math.sqrt(500))


def test_importing_the_data_folder_does_not_import_scikit_learn() -> None:
    code = "import sys, posterity.data, posterity.models; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
