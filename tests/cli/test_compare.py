import pytest
from typer.testing import CliRunner

from posterity.cli.main import app
from posterity.report.page import read_results
from posterity.types import PosterityError


def invoke(*args):
    return CliRunner().invoke(app, ["compare", *map(str, args)])


def test_the_whole_command(tmp_path):
    options = ["--data", "sine", "--methods", "map,swag", "--seeds", 1, "--epochs", 8, "--draws", 4, "--no-tune"]
    done = invoke(*options, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "map seed 0: rmse" in done.output and "Pick " in done.output and "ranked by NLL" in done.output
    assert (tmp_path / "report.html").stat().st_size < 3_000_000
    assert {"report.html", "results.json", "figures", "runs"} == {p.name for p in tmp_path.iterdir()}
    results = read_results(tmp_path)
    assert len(results["runs"]) == 2
    config = results["about"]["config"]
    assert config["model"] == "mlp" and config["epochs"] == 8 and config["methods"] == ["map", "swag"]
    assert (config["draws"], config["seeds"], config["shift"], config["tune"]) == (4, 1, True, False)
    again = invoke(*options, "--out", tmp_path)
    assert again.output.count("kept from before") == 2


def test_bad_names(tmp_path):
    done = invoke("--methods", "mpa", "--out", tmp_path)
    assert isinstance(done.exception, PosterityError) and "no method called 'mpa': did you mean 'map'" in str(
        done.exception
    )
    done = invoke("--budget", "cheap", "--out", tmp_path)
    assert "equal-epochs or equal-time" in str(done.exception)


def test_results_of_another_kind_are_not_written_over(tmp_path):
    (tmp_path / "results.json").write_text(theirs := '{"benchmark": "split-digits", "methods": {}}')
    done = invoke("--data", "two-moons", "--methods", "map", "--seeds", 1, "--epochs", 1, "--out", tmp_path)
    assert isinstance(done.exception, PosterityError) and "not a comparison's results.json" in str(done.exception)
    assert {p.name for p in tmp_path.iterdir()} == {"results.json"}
    assert (tmp_path / "results.json").read_text() == theirs


def test_where_everything_fails_the_reasons_can_be_read_and_the_exit_code_tells(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("the network of a user has a bug that takes a whole sentence to describe")

    monkeypatch.setattr("posterity.evaluation.arena.Arena._run", fail)
    done = invoke("--data", "two-moons", "--methods", "map,swag", "--seeds", 1, "--out", tmp_path)
    assert done.exit_code == 2 and "No method finished" in done.output
    assert "SWAG failed: the network of a user has a bug that takes a whole" in done.output
    assert (tmp_path / "report.html").is_file()


def test_an_interrupt_is_one_sentence(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("posterity.cli.compare.run_comparison", interrupt)
    done = invoke("--out", tmp_path)
    assert done.exit_code == 130 and "the same command goes on where it was" in done.output


@pytest.mark.parametrize("terminal", [True, False])
def test_progress(terminal):
    import io

    from rich.console import Console

    from posterity.cli.compare import _progress

    record = {"scores": {"figures": {"accuracy": 0.9, "nll": 0.1}}, "figures": {"train_seconds": 1.0}}
    out = io.StringIO()
    with _progress(Console(file=out, force_terminal=terminal, width=120)) as watch:
        watch("map", 0, "training", {})
        watch("map", 0, "done", record)
        watch("ivon", 0, "failed", {"reason": "no luck"})
    assert "accuracy 0.900" in out.getvalue() and "no luck" in out.getvalue()
