"""The real sets, where the data folder holds them: sizes, published statistics, class balance."""

import pytest
import torch

from posterity import data

pytestmark = pytest.mark.slow


def loaded(name: str) -> data.DataSet:
    if not next(d for d in data.describe() if d.name == name).here:
        pytest.skip(f"{name} is not in the data folder")
    return data.load(name)


@pytest.mark.parametrize("name", [name for name in data.names() if data.registry.SOURCES[name].folders])
def test_sizes_are_as_described(name: str) -> None:
    dataset, said = loaded(name), next(d for d in data.describe() if d.name == name)
    assert len(dataset.test[0]) == said.test
    if dataset.train is not None:  # the folder may hold the test part only
        assert len(dataset.train[0]) == said.train
    assert dataset.task == said.task and dataset.kind == said.kind
    assert said.shape in ((), dataset.shape)


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("mnist", [0.1307], [0.3081]),
        ("fashion-mnist", [0.2860], [0.3530]),
        ("cifar10", [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    ],
)
def test_published_statistics(name: str, mean: list[float], std: list[float]) -> None:
    standardiser = loaded(name).standardiser
    assert standardiser is not None
    assert standardiser.mean.flatten().tolist() == pytest.approx(mean, abs=1e-4)
    assert standardiser.std.flatten().tolist() == pytest.approx(std, abs=1e-4)


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10", "kmnist"])
def test_test_classes_are_balanced(name: str) -> None:
    assert loaded(name).test[1].bincount().tolist() == [1000] * 10


@pytest.mark.parametrize("name", [name for name in data.names() if name.startswith("uci-")])
def test_uci_splits_cover_all_rows_once(name: str) -> None:
    loaded(name)
    totals = []
    for split in range(20):
        dataset = data.load(name, split=split)
        inputs, targets = dataset.standardiser, dataset.target_standardiser
        assert inputs is not None and targets is not None
        parts = (dataset.training(), dataset.test)
        rows = torch.cat([torch.cat([inputs.invert(x.double()), targets.invert(y.double())], 1) for x, y in parts])
        totals.append(rows.sum(0))
    for total in totals[1:]:  # the same table whichever the split, up to float32
        torch.testing.assert_close(total, totals[0], rtol=1e-5, atol=1e-3)
