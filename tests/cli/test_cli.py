"""The shell as a new user meets it: the whole flow, and one sentence with exit code 2 for everything wrong."""

import json
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import tomli_w
import torch
from PIL import Image

import posterity as pst
from posterity import data, models
from posterity.cli.config import RunConfig, build_method, plain
from posterity.cli.folder import RunFolder, with_earlier
from posterity.cli.main import run as command
from posterity.cli.predict import _picture, _standardised
from posterity.evaluation import evaluate
from posterity.files import read_state, write_state
from posterity.methods import METHODS
from posterity.methods.tempering import LinearKL


@pytest.fixture
def posterity(monkeypatch, capsys, tmp_path):
    """Runs one command in an empty folder: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["posterity", *map(str, words)])
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as stop:
            command()
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return run


FAST = ("--epochs", 2, "--set", "training.batch_size=256")


def test_fit_evaluate_predict(posterity, tmp_path):
    code, out, _ = posterity("fit", "--data", "two-moons", "--out", "run", *FAST)
    assert code == 0 and "saved in run" in out
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        "config.toml",
        "data.safetensors",
        "history.json",
        "posterior.safetensors",
    }
    code, out, _ = posterity("evaluate", "run", "--out", "scores.json")
    assert code == 0 and "accuracy" in out.lower()
    assert 0 < json.loads((tmp_path / "scores.json").read_text())["figures"]["accuracy"] <= 1
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 2), np.float32))
    out = posterity("predict", "run", "x.npz")[1]
    assert "confidence" in out and "are shown" not in out
    np.savez(tmp_path / "many.npz", x=np.zeros((51, 2), np.float32))
    assert "51 inputs, 1 draws; the first 50 are shown" in posterity("predict", "run", "many.npz")[1]
    (tmp_path / "x.csv").write_text("a,b\n0,0\n1,1\n")
    assert posterity("predict", "run", "x.csv", "--out", "y.json")[0] == 0
    assert len(json.loads((tmp_path / "y.json").read_text())) == 2
    assert posterity("predict", "run", "x.csv", "--out", "y.csv")[0] == 0
    assert (tmp_path / "y.csv").read_text().startswith("label,confidence,entropy")


def test_the_resolved_config_runs_again_to_the_same_bits(posterity, tmp_path):
    changes = ("--set", "method.prior.std=0.5", "--set", "method.rate=0.2", "--set", 'method.insert=["fc3"]')
    first = ("fit", "--data", "two-moons", "--method", "dropout", "--seed", 3, "--out", "a", *FAST, *changes)
    assert posterity(*first)[0] == 0
    saved = tomllib.loads((tmp_path / "a" / "config.toml").read_text())
    assert saved["method"]["prior"] == {"kind": "Normal", "std": 0.5, "mean": 0.0}
    assert saved["training"]["optimizer"] == "adam"  # not asked for: another version may have other defaults
    assert posterity("fit", "--config", "a/config.toml", "--out", "b")[0] == 0
    first, second = (read_state(tmp_path / name / "posterior.safetensors", "posterior") for name in "ab")
    torch.testing.assert_close(first["state"]["module"], second["state"]["module"], rtol=0, atol=0)
    assert RunFolder(tmp_path / "a").posterior().seed == 3


def test_the_shell_says_of_members_foreign_inputs_and_shift_what_evaluate_says(posterity, tmp_path):
    fit = ("fit", "--data", "two-moons", "--method", "mean-field", "--members", 2, "--out", "run", *FAST)
    assert posterity(*fit)[0] == 0
    words = ("evaluate", "run", "--ood", "circles", "--shift", "--draws", 6, "--out", "scores.json")
    assert posterity(*words)[0] == 0
    posterior, moons, circles = RunFolder(tmp_path / "run").posterior(), data.load("two-moons"), data.load("circles")
    assert len(posterior.parts) == 2
    expected = evaluate(posterior, moons, ood={"circles": circles}, shift=True, draws=6, resamples=0)
    found = json.loads((tmp_path / "scores.json").read_text())["figures"]
    assert found == pytest.approx(dict(expected), rel=1e-6) and "circles/auroc_entropy" in found


def test_noise_by_input_takes_a_second_output(posterity, tmp_path):
    likelihood = "run.likelihood=HeteroscedasticGaussian"
    assert posterity("fit", "--data", "heteroscedastic", "--set", likelihood, "--out", "run", "--epochs", 30)[0] == 0
    (tmp_path / "x.csv").write_text("-1.5\n1.5\n")
    assert posterity("predict", "run", "x.csv", "--out", "y.json")[0] == 0
    quiet, loud = (row["std"] for row in json.loads((tmp_path / "y.json").read_text()))
    assert loud > 1.5 * quiet  # the true ones are 0.125 and 0.575
    later, _ = with_earlier(RunConfig(data="heteroscedastic", prior="run"))
    assert (later.likelihood, later.model) == ("HeteroscedasticGaussian", "mlp")  # a run that goes on has them, too


@pytest.mark.parametrize("name", METHODS)
def test_what_a_run_writes_down_of_its_method_can_be_read_again(name):
    method = build_method(name, {})
    assert build_method(name, tomllib.loads(tomli_w.dumps(plain(method)))) == method


@pytest.mark.parametrize(
    ("name", "options", "method"),
    [
        ("cyclical", {"of": "sgld"}, pst.Cyclical(of=pst.SGLD())),
        ("cyclical", {"of": {"method": "sgld", "lr": 0.5}}, pst.Cyclical(of=pst.SGLD(lr=0.5))),
        ("snapshot", {"of": {"lr": 0.5}}, pst.Snapshot(of=pst.SGHMC(lr=0.5, temperature=0.0))),
        ("hwa", {"of": "ivon"}, pst.HWA(of=pst.IVON())),
        ("sparse-vd", {"kl_schedule": {"fraction": 0.3}}, pst.SparseVD(kl_schedule=LinearKL(fraction=0.3, delay=0.03))),
        ("group-sparse", {"unit_weight": {"conv*": 9.0}}, pst.GroupSparse(unit_weight={"conv*": 9.0})),
    ],
)
def test_parts_of_a_method_are_named_or_changed_where_they_are_the_defaults(name, options, method):
    assert repr(build_method(name, options)) == repr(method)
    assert repr(build_method(name, tomllib.loads(tomli_w.dumps(plain(method))))) == repr(method)


def test_regression_comes_back_in_original_units(posterity, tmp_path):
    (tmp_path / "d.csv").write_text("x,y\n" + "\n".join(f"{i / 10},{100 + 5 * i / 10}" for i in range(200)))
    fit = ("fit", "--data", "d.csv", "--out", "r", "--epochs", 150, "--set", "training.lr=0.01")
    assert posterity(*fit)[0] == 0
    (tmp_path / "x.csv").write_text("15.0\n")
    posterity("predict", "r", "x.csv", "--out", "y.json")
    row = json.loads((tmp_path / "y.json").read_text())[0]
    assert row["mean"] == pytest.approx(175, abs=6)
    assert [row["low95"], row["high95"]] == pytest.approx([row["mean"] + z * row["std"] for z in (-1.959964, 1.959964)])
    assert row["std"] < 10  # the target's own is 29


def test_files_hold_the_probability_of_every_class(posterity, tmp_path):
    """A table of the shell shows the figures of an input alone; a file is what other programs go on with."""
    rows = [f"{i % 7},{'cat' if i % 7 > 2 else 'dog'}" for i in range(80)]
    (tmp_path / "d.csv").write_text("\n".join(["a,kind", *rows]))
    posterity("fit", "--data", "d.csv", "--out", "r", *FAST)
    (tmp_path / "x.csv").write_text("a\n0\n6\n")
    assert posterity("predict", "r", "x.csv", "--out", "y.json")[0] == 0
    for row in json.loads((tmp_path / "y.json").read_text()):
        probs = {"cat": row["probs_cat"], "dog": row["probs_dog"]}
        assert sum(probs.values()) == pytest.approx(1, abs=1e-5)
        assert probs[row["label"]] == pytest.approx(row["confidence"], abs=1e-5)
    assert posterity("predict", "r", "x.csv", "--out", "y.csv")[0] == 0
    assert (tmp_path / "y.csv").read_text().splitlines()[0].endswith("epistemic,probs_cat,probs_dog")
    assert "probs" not in posterity("predict", "r", "x.csv")[1]


def test_files_are_predicted_in_the_units_they_were_fitted_in(posterity, tmp_path):
    generator = np.random.default_rng(0)
    labels = np.arange(80) % 2
    table = generator.integers(0, 100, (80, 3), dtype=np.uint8)  # bytes that are no pixels
    table[:, 0] += 150 * labels.astype(np.uint8)
    pictures = generator.integers(0, 60, (80, 6, 5, 3), dtype=np.uint8)  # channels last
    pictures[labels == 1, :, :, 0] += 150
    late = np.stack([1.7e9 + 100 * labels, generator.random(80)], 1)  # time stamps, 100 seconds apart
    for name, x in {"table": table, "pictures": pictures, "late": late}.items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=labels)
        fit = ("fit", "--data", f"{name}.npz", "--model", "mlp", "--out", name, "--epochs", 40)
        assert posterity(*fit, "--set", "training.lr=0.01")[0] == 0
        assert posterity("predict", name, f"{name}.npz", "--out", "new/y.json")[0] == 0
        rows = json.loads((tmp_path / "new" / "y.json").read_text())
        assert [int(row["label"]) for row in rows] == list(labels), name


def test_a_file_that_has_grown_is_judged_in_the_units_of_the_run(posterity, tmp_path):
    def rows(kind, centre):
        return [f"{centre + (i % 7) / 10},{i % 5},{kind}" for i in range(40)]

    def accuracy():
        assert posterity("evaluate", "run", "--out", "scores.json")[0] == 0
        return json.loads((tmp_path / "scores.json").read_text())["figures"]["accuracy"]

    first = ["u,v,kind", *rows("b", 0), *rows("c", 6)]
    (tmp_path / "d.csv").write_text("\n".join(first))
    posterity("fit", "--data", "d.csv", "--out", "run", "--epochs", 40, "--set", "training.lr=0.01")
    assert accuracy() == 1
    (tmp_path / "d.csv").write_text("\n".join([*first, *rows("c", 60)]))  # moves the mean beyond either of the old ones
    assert accuracy() == 1
    (tmp_path / "d.csv").write_text("\n".join([*first, *rows("a", 60)]))  # classes are numbered in alphabetical order
    code, _, err = posterity("evaluate", "run")
    assert code == 2 and "has the class 'a', for which the network has no output" in err


def test_a_table_says_which_column_is_the_target_and_what_it_is(posterity, tmp_path):
    rows = [f"{i % 4},{i},{i % 5}" for i in range(80)]
    (tmp_path / "d.csv").write_text("\n".join(["grade,size,age", *rows]))
    fit = ("fit", "--data", "d.csv", "--target", "grade", "--task", "regression", "--method", "vogn", *FAST)
    assert posterity(*fit, "--out", "a")[0] == 0
    (tmp_path / "x.csv").write_text("size,age\n1,2\n")
    assert posterity("predict", "a", "x.csv", "--out", "y.csv")[0] == 0
    assert (tmp_path / "y.csv").read_text().startswith("mean,std")
    assert "RMSE" in posterity("evaluate", "a")[1]
    assert posterity("fit", "--config", "a/config.toml", "--out", "b")[0] == 0
    # What goes on from it predicts the same column as the same kind of number.
    assert posterity("fit", "--data", "d.csv", "--method", "vogn", "--prior", "a", "--out", "c", *FAST)[0] == 0
    saved = tomllib.loads((tmp_path / "c" / "config.toml").read_text())["run"]
    assert (saved["target"], saved["task"]) == ("grade", "regression")


def test_every_target_is_predicted(posterity, tmp_path):
    x = np.linspace(0, 1, 60)[:, None]
    np.savez(tmp_path / "d.npz", x=x, y=np.concatenate([x, 100 + 10 * x], 1))
    posterity("fit", "--data", "d.npz", "--out", "r", "--epochs", 60, "--set", "training.lr=0.01")
    (tmp_path / "x.csv").write_text("0.5\n")
    posterity("predict", "r", "x.csv", "--out", "new/y.csv")
    names, values = (line.split(",") for line in (tmp_path / "new" / "y.csv").read_text().splitlines())
    row = dict(zip(names, map(float, values), strict=True))
    assert row["mean_1"] == pytest.approx(0.5, abs=0.15) and row["mean_2"] == pytest.approx(105, abs=1.5)


def test_tables_to_predict_are_read_as_those_to_fit(posterity, tmp_path):
    posterity("fit", "--data", "two-moons", "--out", "run", *FAST)
    (tmp_path / "marked.csv").write_bytes(b"\xef\xbb\xbfa;b\n0;1\n\n1;1\n")  # as a spreadsheet writes it
    assert posterity("predict", "run", "marked.csv", "--out", "y.json")[0] == 0
    assert len(json.loads((tmp_path / "y.json").read_text())) == 2


def test_columns_are_known_by_their_names(posterity, tmp_path):
    rows = [f"{i % 2},{i % 7},{i},{'yes' if i % 2 else 'no'}" for i in range(120)]
    (tmp_path / "d.csv").write_text("\n".join(["0,1,size,answer", *rows]))  # names that are numbers are names too
    posterity("fit", "--data", "d.csv", "--out", "run", "--epochs", 30, "--set", "training.lr=0.01")

    def labels(text):
        (tmp_path / "x.csv").write_text(text)
        code, _, err = posterity("predict", "run", "x.csv", "--out", "y.json")
        return [row["label"] for row in json.loads((tmp_path / "y.json").read_text())] if code == 0 else err

    assert labels("0,1,size\n0,1,50\n1,1,51\n") == ["no", "yes"]
    assert labels("size,0,1\n50,0,1\n51,1,1\n") == ["no", "yes"]  # in another order
    assert labels("1,answer,size,note,0\n1,no,50,a,0\n1,,51,b,1\n") == ["no", "yes"]  # among others
    assert labels("0,1,size\n0,1,50\n") == ["no"]
    assert labels("0,1,50\n1,1,51\n") == ["no", "yes"]  # without names, as they come
    assert "x.csv has no column 'size': there are 0, 1, weight" in labels("0,1,weight\n0,1,50\n")
    assert "x.csv has 2 columns called 'size'" in labels("0,1,size,size\n0,1,50,51\n")


def test_a_file_whose_columns_have_moved_is_judged_and_learned_from_by_their_names(posterity, tmp_path):
    rows = [(i % 2, i % 7, "yes" if i % 2 else "no") for i in range(120)]
    (tmp_path / "d.csv").write_text("\n".join(["a,b,answer", *(f"{a},{b},{y}" for a, b, y in rows)]))
    fit = ("fit", "--method", "vogn", "--epochs", 30, "--set", "training.lr=0.1", "--data")
    assert posterity(*fit, "d.csv", "--out", "run")[0] == 0
    moved = "\n".join(["b,a,answer", *(f"{b},{a},{y}" for a, b, y in rows)])
    (tmp_path / "d.csv").write_text(moved)
    assert posterity("evaluate", "run", "--out", "s.json")[0] == 0
    assert json.loads((tmp_path / "s.json").read_text())["figures"]["accuracy"] == 1
    (tmp_path / "d.csv").write_text(moved.replace("b,a", "b,c"))
    for words in (("evaluate", "run"), (*fit, "d.csv", "--prior", "run", "--out", "two")):
        code, _, err = posterity(*words)
        assert code == 2 and err == "posterity: d has no column 'a', which the network needs: there are b, c\n"


def test_pngs_are_read(posterity, tmp_path):
    from PIL import Image

    posterity("fit", "--data", "digits", "--out", "run", *FAST)
    Image.fromarray(np.zeros((32, 32), np.uint8)).save(tmp_path / "a.png")
    code, out, _ = posterity("predict", "run", "a.png")
    assert code == 0 and "entropy" in out


@pytest.mark.parametrize("suffix", [".jpg", ".JPEG", ".bmp", ".gif", ".webp"])
def test_photographs_are_read_as_the_guide_to_data_reads_them(posterity, tmp_path, suffix):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.integers(0, 256, (60, 6, 5, 3), dtype=np.uint8), y=np.arange(60) % 2)
    posterity("fit", "--data", "d.npz", "--model", "mlp", "--out", "run", *FAST)
    photo = tmp_path / f"photo{suffix}"
    Image.fromarray(rng.integers(0, 256, (24, 20, 3), dtype=np.uint8)).save(photo)
    with Image.open(photo) as read:
        np.savez(tmp_path / "x.npz", x=np.asarray(read.convert("RGB").resize((5, 6)))[None])
    for file, out in ((photo.name, "photo.json"), ("x.npz", "x.json")):
        assert posterity("predict", "run", file, "--out", out)[0] == 0
    assert (tmp_path / "photo.json").read_text() == (tmp_path / "x.json").read_text()


@pytest.mark.parametrize("name", ["data", "features", "test_x", "X_test", "Images", "x"])
def test_inputs_to_predict_have_the_names_of_inputs_to_fit(posterity, tmp_path, name):
    posterity("fit", "--data", "two-moons", "--out", "run", *FAST)
    np.savez(tmp_path / "d.npz", **{name: np.zeros((3, 2)), "x_train": np.ones((3, 2)), "y_test": np.zeros(3)})
    code, out, err = posterity("predict", "run", "d.npz")
    assert code == 0 and "3 inputs" in out, err


@pytest.mark.parametrize("command", ["methods", "data", "models"])
def test_lists(posterity, command):
    code, out, _ = posterity(command)
    expected = {"methods": "dropout", "data": "two-moons", "models": "lenet5_caffe"}[command]
    assert code == 0 and expected in out


def test_every_network_is_said_to_be_for_something_with_its_weights(posterity, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    lines = posterity("models")[1].splitlines()
    rows = {row[1].strip(): row[2:] for row in (line.split("│") for line in lines if line.startswith("│"))}
    assert list(rows) == models.names() and len({row[0] for row in rows.values()}) == len(rows)
    published = {"lenet_300_100": "266,610", "lenet5_caffe": "431,080", "vgg16": "15,245,130"}
    published |= {"resnet18": "11,173,962", "resnet18_imagenet": "11,689,512", "lenet5": "44,426", "mlp_50": "751"}
    assert {name: rows[name][2].strip() for name in published} == published


def test_which_version_it_is(posterity):
    code, out, _ = posterity("--version")
    assert code == 0 and out == f"posterity {pst.__version__}\n"


def test_every_method_is_said_to_be_something_else(posterity, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    rows = [line.split("│") for line in posterity("methods")[1].splitlines() if line.startswith("│")]
    assert len(rows) == len({row[2] for row in rows}) == len(METHODS)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("fit", "--out", "r", "--method", "mpa"), "unknown method 'mpa': did you mean 'map'?"),
        (("fit", "--out", "r", "--data", "digit"), "digits"),
        (("fit", "--out", "r", "--model", "lenet55"), "lenet5"),
        (("fit", "--out", "r", "--set", "method.prio=1"), "did you mean 'prior'?"),
        (("fit", "--out", "r", "--set", "training.batchsize=1"), "did you mean 'batch_size'?"),
        (("fit", "--out", "r", "--set", "lr=1"), "--set takes section.key=value"),
        (("fit", "--out", "r", "--set", "trainin.lr=1"), "did you mean 'training'?"),
        (("fit", "--out", "r", "--set", "method.prior.std=-1"), "std must be positive"),
        (("fit", "--out", "r", "--config", "absent.toml"), "there is no config file absent.toml"),
        (("fit", "--out", "r", "--method", "dropout"), "no dropout layer"),
        (("fit", "--out", "r", "--epochs", "0"), "epochs must be at least 1, got 0"),
        (("fit", "--out", "r", "--set", "run.epochs=ten"), "epochs of [run] must be int, got 'ten'"),
        (("fit", "--out", "r", "--set", "run.epochs=1.5"), "epochs of [run] must be int, got 1.5"),
        (("fit", "--out", "r", "--set", "run.epochs=true"), "epochs of [run] must be int, got True"),
        (("fit", "--out", "r", "--set", "run.data=3"), "data of [run] must be str, got 3"),
        (("fit", "--out", "r", "--seed", str(2**70)), "a seed must be a whole number of at most 64 bits"),
        (("fit", "--out", "r", "--set", "training.lr=fast"), "lr of [training] must be float | None, got 'fast'"),
        (("fit", "--out", "r", "--set", "method.prior=3"), "prior of map must be Prior, got 3"),
        (("fit", "--out", "r", "--set", "method.prior.std=wide"), "std of Normal must be a number, got 'wide'"),
        (("fit", "--out", "r", "--set", "method.prior.kind=3"), "unknown kind 3"),
        (("fit", "--out", "r", "--method", "cyclical", "--set", "method.of=sgdl"), "did you mean 'sgld'?"),
        (("fit", "--out", "r", "--method", "cyclical", "--set", "method.of.lt=1"), "unknown option of sghmc 'lt'"),
        (("fit", "--out", "r", "--method", "sparse-vd", "--set", "method.prior.std=1"), "'std': there are none"),
        (("fit", "--out", "r", "--method", "mean-field", "--set", "method.family=3"), "must be str | Family, got 3"),
        (("fit", "--out", "r", "--method", "swag", "--set", "method.rank=ten"), "rank of swag must be int"),
        (("fit", "--out", "r", "--set", "training.lr=1", "--set", "training.lr.x=1"), "lr, which is 1 and no table"),
        (("fit", "--out", "r", "--target", "price"), "target='price' means nothing for the data set 'digits'"),
        (("fit", "--out", "r", "--task", "ranking"), "task='ranking' means nothing for the data set 'digits'"),
        (("fit", "--out", "r", "--set", "training.validation=all"), "validation of [training] must be a number"),
        (("fit", "--out", "r", "--set", "training.validation=5"), "fraction must lie in (0, 1), got 5"),
        (("fit", "--out", "r", "--set", "training.zzz=1"), "there are batch_size, lr, schedule"),
        (("fit", "--out", "r", "--data", "photos"), "(for your own give a .npz or .csv file, or module:function)"),
        (("fit", "--out", "r", "--model", "net.py"), "(for your own give module:function)"),
        (("continual", "--out", "r", "--set", "run.epochs=3"), "--set run.epochs=3 has no effect here"),
        (("compare", "--out", "/dev/null"), "/dev/null is no folder"),
        (("compare", "--out", "/dev/null/a"), "/dev/null/a cannot be written to: Not a directory"),
        (("continual", "--out", "/dev/null"), "/dev/null cannot be written to: File exists"),
        (("evaluate", "absent"), "absent is not a run folder"),
        (("predict", "absent", "x.npz"), "absent is not a run folder"),
    ],
)
def test_wrong_arguments_are_one_sentence(posterity, words, sentence):
    code, _, err = posterity(*words)
    assert code == 2
    assert err.startswith("posterity: ") and sentence in err and len(err.strip().splitlines()) == 1


def test_a_section_that_is_no_table_is_one_sentence(posterity, tmp_path):
    (tmp_path / "c.toml").write_text("run = 3")
    code, _, err = posterity("fit", "--config", "c.toml", "--out", "r")
    assert code == 2 and err == "posterity: [run] must be a table, got 3\n"


def test_a_file_in_the_place_of_the_folder_is_one_sentence(posterity, tmp_path):
    (tmp_path / "file").write_text("kept")
    code, _, err = posterity("fit", "--data", "two-moons", "--out", "file", *FAST)
    assert code == 2 and err == "posterity: file/config.toml cannot be written: File exists\n"
    assert (tmp_path / "file").read_text() == "kept"


def test_interrupted_it_says_how_to_go_on_and_does(posterity, tmp_path, monkeypatch):
    def stop(path, state, kind):
        write_state(path, state, kind)
        raise KeyboardInterrupt

    monkeypatch.setattr("posterity.training.checkpoint.write_state", stop)
    command = ("fit", "--data", "two-moons", "--out", "run", *FAST)
    code, out, err = posterity(*command)
    assert code == 130 and "--resume" in out and "Traceback" not in err
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    config = (tmp_path / "run" / "config.toml").read_bytes()
    code, _, err = posterity("fit", "--data", "digits", "--out", "run")  # --resume was forgotten
    assert code == 2 and "holds an interrupted run: go on with --resume" in err
    assert (tmp_path / "run" / "config.toml").read_bytes() == config
    code, _, err = posterity("fit", "--resume", "--epochs", 9, "--out", "run")  # it cannot go on so
    assert code == 2 and "belongs to another run: its steps" in err
    assert (tmp_path / "run" / "config.toml").read_bytes() == config
    assert posterity("fit", "--resume", "--out", "run")[0] == 0
    assert (tmp_path / "run" / "posterior.safetensors").is_file()
    assert (tmp_path / "run" / "config.toml").read_bytes() == config


def test_a_finished_run_is_not_fitted_again(posterity, tmp_path):
    posterity("fit", "--data", "two-moons", "--out", "run", *FAST)
    whole = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    for more in ((), ("--resume", "--epochs", 3)):
        code, _, err = posterity("fit", "--data", "two-moons", "--out", "run", *FAST, *more)
        assert code == 2 and err == "posterity: run already holds a finished run: choose another --out\n"
    for same in ((), ("--data", "two-moons", *FAST)):
        code, out, _ = posterity("fit", "--resume", "--out", "run", *same)
        assert code == 0 and "run holds this run already, finished" in out
    assert {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()} == whole


def test_a_config_that_somebody_wrote_is_not_written_over(posterity, tmp_path):
    mine = "# settings that I thought about\n[run]\ndata = 'two-moons'\n"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.toml").write_text(mine)
    code, _, err = posterity("fit", "--config", "mine/config.toml", *FAST, "--out", "mine")
    assert code == 2 and err.startswith("posterity: mine/config.toml is there already"), err
    assert (tmp_path / "mine" / "config.toml").read_text() == mine
    # What failed leaves nothing behind that would stand in the way of a second attempt.
    assert posterity("fit", "--data", "two-moons", "--out", "run", "--set", "run.likelihood=Poisson")[0] == 2
    assert posterity("fit", "--data", "two-moons", "--out", "run", *FAST)[0] == 0


def test_early_stopping_can_be_asked_for(posterity, tmp_path):
    stop = ("--set", "training.validation=0.2", "--set", "training.patience=1", "--set", "training.lr=0.5")
    assert posterity("fit", "--data", "two-moons", "--out", "run", "--epochs", 50, *stop)[0] == 0
    assert len(json.loads((tmp_path / "run" / "history.json").read_text())) < 50


def test_the_title_of_a_narrow_table_is_one_line(posterity, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = posterity("models")
    assert code == 0 and out.splitlines()[0].strip() == "Networks (--model NAME, or module:function of your own)"


def test_wrong_inputs_are_one_sentence(posterity, tmp_path):
    posterity("fit", "--data", "two-moons", "--out", "run", *FAST)
    np.savez(tmp_path / "z.npz", z=np.zeros(3))
    np.savez(tmp_path / "wide.npz", x=np.zeros((3, 5)))
    np.savez(tmp_path / "nan.npz", x=np.full((3, 2), np.nan))
    (tmp_path / "bad.csv").write_text("a,b\n1,x\n")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "header.csv").write_text("a,b\n")
    (tmp_path / "uneven.csv").write_text("a,b\n1,2\n3\n")
    (tmp_path / "hole.csv").write_text("1,\n3,4\n")  # no header, though not all of it is numbers
    (tmp_path / "target.csv").write_text("a,b,price\n1,2,3\n")
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "notes.npz").write_text("no arrays at all")
    np.savez(tmp_path / "words.npz", x=np.array([["a", "b"]]))
    np.savez(tmp_path / "scalar.npz", x=1.0)
    np.savez(tmp_path / "none.npz", x=np.zeros((0, 2)))
    (tmp_path / "x.txt").write_text("1 2")
    sentences = {
        "absent.npz": "there is no file",
        "z.npz": "array called x",
        "wide.npz": "expected (2,)",
        "nan.npz": "NaN",
        "bad.csv": "bad.csv, column b: 'x' in data row 1 is no number",
        "hole.csv": "hole.csv, column 2: '' in data row 1 is no number",
        "target.csv": "inputs have shape (3,), expected (2,): a table to predict has no target column",
        "bad.png": "is a picture",
        "empty.csv": "must hold inputs that are numbers",
        "header.csv": "must hold inputs that are numbers",
        "uneven.csv": "row 3: 1 fields",
        "damaged.npz": "cannot be read as .npz",
        "empty.npz": "cannot be read as .npz",
        "notes.npz": "cannot be read as .npz: numpy.savez has not written it",
        "words.npz": "must hold inputs that are numbers",
        "scalar.npz": "expected (2,)",
        "none.npz": "must hold inputs that are numbers",
        "x.txt": "must be a .npz",
    }
    for name, sentence in sentences.items():
        code, _, err = posterity("predict", "run", name)
        assert code == 2 and sentence in err and err.count(name) < 2 and "pickle" not in err, (name, err)
    whole = (tmp_path / "run" / "posterior.safetensors").read_bytes()
    assert posterity("fit", "--out", "run")[0] == 2  # a finished run is not overwritten
    assert (tmp_path / "run" / "posterior.safetensors").read_bytes() == whole
    (tmp_path / "run" / "posterior.safetensors").write_bytes(whole[:-7])
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 2)))
    code, _, err = posterity("predict", "run", "x.npz")
    assert code == 2 and "not a whole safetensors file" in err


def test_training_targets_of_one_class_are_refused_by_its_name(posterity, tmp_path):
    """The test part has two more classes, so that the number would say nothing."""
    x = np.random.default_rng(0).normal(size=(8, 3))
    np.savez(tmp_path / "d.npz", x_train=x, y_train=["cat"] * 8, x_test=x, y_test=["ant", "dog"] * 4)
    code, _, err = posterity("fit", "--data", "d.npz", "--out", "run", *FAST)
    assert code == 2 and err == "posterity: all targets are class 'cat': there is nothing to learn from one class\n"


def test_a_config_may_begin_with_a_byte_order_mark(posterity, tmp_path):
    """As editors of Windows write it."""
    (tmp_path / "run.toml").write_text('[run]\ndata = "two-moons"\n', encoding="utf-8-sig")
    code, _, err = posterity("fit", "--config", "run.toml", "--out", "run", *FAST)
    assert code == 0, err
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["run"]["data"] == "two-moons"


def test_the_module_runs_as_a_command():
    done = subprocess.run([sys.executable, "-m", "posterity", "models"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "resnet18" in done.stdout


def test_results_come_in_a_terminal_without_unicode(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = subprocess.run([sys.executable, "-m", "posterity", "data"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "8?8" in done.stdout and not done.stderr


@pytest.mark.parametrize("channels", [(), (3,), (4,)], ids=["grey", "colour", "with transparency"])
def test_pngs_are_read_in_the_units_of_the_run(tmp_path, channels):
    """Bytes, and a picture of them, are the same to runs that were fitted to bytes and to floats up to 255."""
    raw = np.random.default_rng(0).integers(0, 256, (60, 12, 10, *channels), dtype=np.uint8)
    Image.fromarray(raw[0]).save(tmp_path / "one.png")
    for name, x in (("bytes", raw), ("floats", raw.astype(np.float32))):
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.arange(60) % 2)
        dataset = data.load(str(tmp_path / f"{name}.npz"))
        whole = _standardised(raw, dataset)
        assert abs(float(whole.mean())) < 0.05 and float(whole.std()) == pytest.approx(1, abs=0.05)
        torch.testing.assert_close(_standardised(_picture(tmp_path / "one.png", dataset), dataset), whole[:1])


def test_pngs_of_16_bits_are_read(tmp_path):
    """The same picture in 8 and in 16 bits is the same to a run; Pillow would make nearly all of the latter white."""
    raw = np.random.default_rng(0).integers(0, 256, (60, 12, 10), dtype=np.uint8)
    deep = raw.astype(np.uint16) * 257
    Image.fromarray(raw[0]).save(tmp_path / "8.png")
    Image.fromarray(deep[0]).save(tmp_path / "16.png")
    for name, x in (("bytes", raw), ("floats", raw.astype(np.float32)), ("words", deep)):
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.arange(60) % 2)
        dataset = data.load(str(tmp_path / f"{name}.npz"))
        for picture in ("8.png", "16.png"):
            torch.testing.assert_close(
                _standardised(_picture(tmp_path / picture, dataset), dataset), _standardised(x, dataset)[:1]
            )
    colours = np.stack([raw] * 3, axis=-1)
    np.savez(tmp_path / "colours.npz", x=colours, y=np.arange(60) % 2)
    dataset = data.load(str(tmp_path / "colours.npz"))
    torch.testing.assert_close(
        _standardised(_picture(tmp_path / "16.png", dataset), dataset), _standardised(colours, dataset)[:1]
    )
