"""The example scripts run, with tiny settings."""

from __future__ import annotations

import runpy
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::posterity.types.PosterityWarning")  # such short runs alarm the doctor
EXAMPLES = Path(__file__).parents[1] / "examples"
TINY = {
    "first_steps.py": ["--epochs", "2"],
    "gan.py": ["--tiny"],
    "own_loop.py": ["--epochs", "2"],
    "regression.py": ["--tiny"],
    "uci.py": ["--sets", "heteroscedastic", "--epochs", "3"],
    "adapters.py": ["--tiny"],
    "active_learning.py": ["--tiny", "--method", "swag"],
    "in_lightning.py": ["--epochs", "2"],
    "long_tail.py": ["--data", "digits", "--imbalance", "10", "--epochs", "2", "--figure", "tail.png"],
    "production.py": ["--tiny"],
    "super_resolution.py": ["--tiny"],
    "text.py": ["--tiny"],
    "vae.py": ["--tiny"],
}


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(TINY)


@pytest.mark.parametrize("name", TINY)
def test_the_example_runs(name, monkeypatch, tmp_path, capsys):
    if name == "in_lightning.py":
        pytest.importorskip("lightning.pytorch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *TINY[name]])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    assert any(word in printed for word in ("accuracy", "PSNR", "ELBO", "NLL"))


@pytest.mark.parametrize("name", ["gan.py", "vae.py", "super_resolution.py", "production.py", "text.py"])
def test_an_example_without_its_data_ends_in_a_sentence(name, monkeypatch, tmp_path):
    def unreachable(url, timeout):
        raise urllib.error.URLError("no network")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name])
    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    monkeypatch.setenv("POSTERITY_DATA", str(tmp_path / "nothing"))
    with pytest.raises(SystemExit, match=r"is not in .*, and .* could not be downloaded: .*no network"):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
