"""Small real comparisons, one of each kind, made once."""

import pytest

from posterity.evaluation.compare import Contest, compare


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    contest = Contest(methods=("map", "swag", "dropout"), seeds=2, epochs=4, draws=4, tune=False)
    return compare(contest, tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="session")
def moons(tmp_path_factory):
    contest = Contest(data="two-moons", methods=("map", "swag"), seeds=1, epochs=5, draws=4, tune=False, shift=False)
    return compare(contest, tmp_path_factory.mktemp("moons"))


@pytest.fixture(scope="session")
def sine(tmp_path_factory):
    contest = Contest(data="sine", methods=("map", "swag"), seeds=1, epochs=8, draws=4, tune=False)
    return compare(contest, tmp_path_factory.mktemp("sine"))
