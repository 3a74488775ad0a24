from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posterity.data import DataSet, Kind, Standardiser, Task
from posterity.types import PosterityError


def table(n: int = 40, seed: int = 0, real: bool = True) -> DataSet:
    g = torch.Generator().manual_seed(seed)
    x = 5 + 3 * torch.randn(n, 3, generator=g, dtype=torch.float64)
    y = 100 * torch.randn(n, 1, generator=g, dtype=torch.float64) if real else torch.arange(n) % 2
    half = n // 2
    classes = None if real else ("even", "odd")
    return DataSet.standardised("table", Kind.TABULAR, (x[:half], y[:half]), (x[half:], y[half:]), classes=classes)


def test_a_data_set_is_shown_in_one_line() -> None:
    numbers = "DataSet(table: regression, tabular inputs 3, 1 target column(s); 20 training + 20 test examples)"
    assert repr(table()) == numbers
    held = table(real=False).with_validation(5)
    parts = "2 classes; 15 training + 5 validation + 20 test examples"
    assert repr(held) == f"DataSet(table: classification, tabular inputs 3, {parts})"


def test_statistics_of_a_table_by_hand() -> None:
    s = Standardiser.fit(torch.tensor([[1.0, 10.0], [3.0, 10.0]]))
    assert s.mean.tolist() == [2.0, 10.0]
    assert s.std.tolist() == [1.0, 1.0]  # population std of 1, 3; a constant column keeps 1
    assert s.apply(torch.tensor([[4.0, 10.0]])).tolist() == [[2.0, 0.0]]


@pytest.mark.parametrize("unit", [1e-15, 1.0, 1e15])
def test_small_units_are_no_constant(unit: float) -> None:
    x = unit * torch.tensor([[1.0, 0.1], [3.0, 0.1], [5.0, 0.1]], dtype=torch.float64)
    z = Standardiser.fit(x).apply(x)
    torch.testing.assert_close(z[:, 0], torch.tensor([-1.0, 0.0, 1.0]).double() * 1.5**0.5)
    torch.testing.assert_close(z[:, 1] / unit, torch.zeros(3).double(), atol=1e-14, rtol=0)


def test_pictures_of_hardly_any_contrast_are_no_constant() -> None:
    """In single precision a grey of 0.5 is known to 3e-8, and these vary by a thousandth; one grey keeps a std of 1."""
    varied = 0.5 + 0.001 * torch.randn(50, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    s = Standardiser.fit(torch.cat([varied, torch.full_like(varied, 0.1)], 1))
    assert s.std.flatten().tolist() == [pytest.approx(0.001, rel=4 / (2 * 3200) ** 0.5), 1.0]


def test_statistics_of_images_are_per_channel() -> None:
    x = torch.stack([torch.full((2, 4, 5), 0.2), torch.full((2, 4, 5), 0.6)], 1)  # [N=2, C=2, 4, 5]
    x[0, 0] = 0.0
    s = Standardiser.fit(x)
    torch.testing.assert_close(s.mean, torch.tensor([0.1, 0.6]).view(2, 1, 1))
    torch.testing.assert_close(s.std, torch.tensor([0.1, 1.0]).view(2, 1, 1))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_invert_undoes_apply_and_then_composes(seed: int, scale: float, shift: float) -> None:
    x = shift + scale * torch.randn(20, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    first = Standardiser.fit(x[:10])
    second = Standardiser.fit(first.apply(x[10:]))
    torch.testing.assert_close(first.invert(first.apply(x)), x)
    torch.testing.assert_close(first.then(second).apply(x), second.apply(first.apply(x)))
    torch.testing.assert_close(first.then(second).mean, x[10:].mean(0))


def test_only_training_examples_make_the_statistics() -> None:
    x, y = torch.randn(30, 2, dtype=torch.float64), torch.randn(30, 1, dtype=torch.float64)
    one = DataSet.standardised("a", Kind.TABULAR, (x[:20], y[:20]), (x[20:], y[20:]))
    two = DataSet.standardised("a", Kind.TABULAR, (x[:20], y[:20]), (1e6 * x[20:], 1e6 * y[20:]))
    assert one.standardiser is not None and two.standardiser is not None
    assert torch.equal(one.standardiser.mean, two.standardiser.mean)
    for pair in (one.training(), two.training()):
        for part in pair:
            torch.testing.assert_close(part.mean(0), torch.zeros(part.shape[1]), atol=1e-6, rtol=0)
            torch.testing.assert_close(part.std(0, correction=0), torch.ones(part.shape[1]))
    assert one.target_standardiser is not None
    torch.testing.assert_close(one.target_standardiser.invert(one.test[1].double()), y[20:], rtol=1e-5, atol=1e-5)


def test_validation_is_the_last_part_or_a_random_one_and_is_not_in_the_statistics() -> None:
    data = table()
    assert data.standardiser is not None
    raw = data.standardiser.invert(data.training()[0])
    for generator in (None, torch.Generator().manual_seed(3)):
        carved = data.with_validation(5, generator)
        assert carved.validation is not None and carved.standardiser is not None
        assert [len(carved.training()[0]), len(carved.validation[0])] == [15, 5]
        torch.testing.assert_close(carved.training()[0].mean(0), torch.zeros(3), atol=1e-5, rtol=0)
        torch.testing.assert_close(carved.training()[1].std(0, correction=0), torch.ones(1))
        parts = [carved.standardiser.invert(x) for x in (carved.training()[0], carved.validation[0])]
        together = torch.cat(parts)  # every example once, in its original units
        torch.testing.assert_close(together.sort(0).values, raw.sort(0).values, atol=1e-4, rtol=1e-5)
        if generator is None:
            torch.testing.assert_close(parts[1], raw[-5:], atol=1e-4, rtol=1e-5)
    same = data.with_validation(0.25, torch.Generator().manual_seed(3))
    torch.testing.assert_close(same.training()[0], carved.training()[0])


def test_subset_keeps_only_those() -> None:
    data = table(real=False)
    some = data.subset(torch.tensor([1, 3, 5]))
    assert some.training()[1].tolist() == [1, 1, 1]
    assert len(some.test[0]) == 20


def test_out_of_distribution_data_takes_the_statistics_of_the_other() -> None:
    data, foreign = table(), table(seed=1)
    assert data.standardiser is not None and foreign.standardiser is not None
    moved = foreign.in_units_of(data)
    torch.testing.assert_close(
        data.standardiser.invert(moved.test[0]), foreign.standardiser.invert(foreign.test[0]), atol=1e-4, rtol=1e-5
    )
    unscaled = replace(foreign, standardiser=None, train=None)
    torch.testing.assert_close(unscaled.in_units_of(data).test[0], data.standardiser.apply(foreign.test[0]))
    with pytest.raises(PosterityError, match="shape"):
        replace(foreign, train=None, test=(torch.zeros(2, 4), torch.zeros(2, 1))).in_units_of(data)


def test_more_data_are_in_the_units_and_classes_of_what_was_learned_from() -> None:
    first, more = table(), table(seed=1)
    known, own = first.target_standardiser, more.target_standardiser
    assert known is not None and own is not None
    moved = more.continuing(first)
    for (_, y), (_, before) in ((moved.training(), more.training()), (moved.test, more.test)):
        torch.testing.assert_close(known.invert(y), own.invert(before), atol=1e-3, rtol=1e-5)
    as_they_came = replace(more, standardiser=None, target_standardiser=None)
    torch.testing.assert_close(as_they_came.continuing(first).test[1], known.apply(more.test[1]))
    even = replace(table(real=False), classes=("odd", "even"))  # the names the other way round
    assert torch.equal(even.continuing(table(real=False)).test[1], 1 - even.test[1])
    with pytest.raises(PosterityError, match="has the class 'prime', for which the network has no output"):
        replace(even, classes=("odd", "prime")).continuing(table(real=False))


X, Y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("train", "says"),
    [
        ((X, Y[:3]), "got 4 and 3"),
        ((X[:0], Y[:0]), "got 0 and 0"),
        ((X.clone().fill_(torch.nan), Y), "NaN"),
        ((X.clone().fill_(-torch.inf), Y), "NaN or infinite"),
        ((X, Y + 1), "labels run from 1 to 2, expected 0 to 1"),
        ((X, Y - 1), "labels run from -1 to 0"),
        ((X, Y.float()), "int64"),
        ((X, Y[:, None]), "int64"),
    ],
)
def test_parts_that_do_not_fit_are_refused(train: tuple[torch.Tensor, torch.Tensor], says: str) -> None:
    with pytest.raises(PosterityError, match=says):
        DataSet("bad", Task.CLASSIFICATION, Kind.PLANE, train, (X, Y), classes=("a", "b"))


def test_other_refusals() -> None:
    with pytest.raises(PosterityError, match=r"shape \(3,\), expected \(2,\)"):
        DataSet("bad", Task.CLASSIFICATION, Kind.PLANE, (X, Y), (torch.zeros(4, 3), Y), classes=("a", "b"))
    with pytest.raises(PosterityError, match=r"\[N, D\]"):
        DataSet("bad", Task.REGRESSION, Kind.PLANE, (X, Y.float()), (X, Y.float()))
    with pytest.raises(PosterityError, match="targets hold NaN"):
        DataSet("bad", Task.REGRESSION, Kind.PLANE, (X, X), (X, X / 0))
    with pytest.raises(PosterityError, match="classes belong"):
        DataSet("bad", Task.CLASSIFICATION, Kind.PLANE, (X, Y), (X, Y))
    with pytest.raises(PosterityError, match="test examples only"):
        DataSet("ood", Task.CLASSIFICATION, Kind.PLANE, None, (X, Y), classes=("a", "b")).with_validation(1)
    assert len(table().with_validation(np.int64(5)).training()[0]) == 15
    for size in (0, 20, 0.0, 1.0, -3, float("nan")):
        with pytest.raises(PosterityError, match="does not fit 20 training examples"):
            table().with_validation(size)
