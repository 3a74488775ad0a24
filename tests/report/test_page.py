import copy
import json
import re

import pytest

from posterity.report.page import page, read_results, write_report
from posterity.report.sections import sections
from posterity.report.standing import standings
from posterity.report.verdict import label, verdict
from posterity.types import PosterityError
from tests.report.chromium import Browser, executable

needs_browser = pytest.mark.skipif(executable() is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def folder(digits, tmp_path_factory):
    made = tmp_path_factory.mktemp("report")
    broken = copy.deepcopy(digits)
    broken["methods"].append("ivon")
    broken["runs"].append(
        {"method": "ivon", "seed": 0, "status": "failed", "reason": "x < 0 & <script>alert(1)</script>"}
    )
    (made / "results.json").write_text(json.dumps(broken))
    write_report(read_results(made), made)
    return made


@pytest.mark.parametrize(("seeds", "said"), [(1, "; 1 seed<"), (2, "; 2 seeds<")])
def test_seeds_are_counted(digits, seeds, said):
    about = digits["about"] | {"config": digits["about"]["config"] | {"seeds": seeds}}
    assert said in page(digits | {"about": about})


def test_the_best_method_has_the_first_panel(digits):
    """Whatever the order in which they were run."""
    ranked = [f"reliability-{line.name}" for line in standings(digits)]
    for methods in (digits["methods"], digits["methods"][::-1]):
        first = sections({**digits, "methods": methods})[0]
        assert [panel.name for panel in first.panels] == ranked


@pytest.mark.parametrize("tune", [True, False])
def test_settings_are_called_chosen_only_where_they_were(digits, tune):
    about = digits["about"] | {"config": digits["about"]["config"] | {"tune": tune}}
    assert ("chosen by the NLL" in page(digits | {"about": about})) == tune


def test_the_file_stands_alone(folder, digits):
    text = (folder / "report.html").read_text()
    assert len(text.encode()) < 3_000_000
    assert verdict(digits).split(" ± ")[0] in text
    outside = re.findall(r'(?:src|href)="(?!#|data:)([^"]*)"', text)
    assert outside == []
    assert "default-src 'none'" in text and "<script>alert(1)" not in text
    for name in (
        "reliability",
        "foreign",
        "coverage",
        "shift",
        "draws",
        "classes",
        "cost",
        "training",
        "examples",
        "made",
    ):
        assert f'id="{name}"' in text, name


def test_figures_are_written_twice(folder):
    names = {path.name for path in (folder / "figures").iterdir()}
    stems = {name.rpartition(".")[0] for name in names}
    assert {"reliability", "entropies", "coverage", "shift", "draws", "cost", "classes", "training"} <= stems
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("svg", "png")}


@pytest.mark.parametrize("kind", ["moons", "sine"])
def test_other_kinds_have_pages_too(kind, request):
    text = page(request.getfixturevalue(kind))
    assert 'id="surfaces"' in text if kind == "moons" else 'id="band"' in text


def test_sentences(moons):
    changed = copy.deepcopy(moons)
    for run in changed["runs"]:
        for example in run["scores"]["details"]["examples"]:
            example["text"] = "a film that <b>means</b> well"
            example.pop("values")
    assert "a film that &lt;b&gt;means&lt;/b&gt; well" in page(changed)


def test_without_map_there_are_no_times_and_still_a_page(digits):
    failed = {"method": "map", "status": "failed", "reason": "the loss became nan"}
    runs = [run if run["method"] != "map" else {**failed, "seed": run["seed"]} for run in digits["runs"]]
    text = page({**digits, "runs": runs})
    assert "the loss became nan" in text and 'id="reliability"' in text and 'id="cost"' not in text


def test_nothing_finished_is_still_a_page(digits):
    failed = {"method": "map", "seed": 0, "status": "failed", "reason": "out of memory"}
    text = page({**digits, "methods": ["map"], "runs": [failed]})
    assert "No method finished" in text and "out of memory" in text


def test_bad_results(tmp_path):
    with pytest.raises(PosterityError, match="no readable results"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text("[]")
    with pytest.raises(PosterityError, match=r"not a comparison's results\.json"):
        read_results(tmp_path)


@needs_browser
def test_in_a_real_browser(folder):
    """Sorts by a click, switches the theme, complains of nothing, and asks for nothing outside the file."""
    with Browser() as browser:
        for width in (1280, 390):
            browser.open(folder / "report.html", width)
            check_sorting(browser, folder)
            check_theme(browser)
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert browser.run("[...document.querySelectorAll('svg')].every(s => s.getBoundingClientRect().width > 80)")
        assert browser.complaints == []
        assert {url.split(":", 1)[0] for url in browser.requests} <= {"file", "data"}
        assert {url for url in browser.requests if url.startswith("file")} == {(folder / "report.html").as_uri()}


@needs_browser
def test_a_long_word_in_why_a_method_failed_leaves_the_table_its_width(digits, tmp_path):
    """As the name of a parameter deep inside a network."""
    widths = {}
    with Browser() as browser:
        for name, reason in (("short", "the loss became nan"), ("long", f"NaN in {'encoder.layers.' * 20}weight")):
            failed = {"method": "ivon", "seed": 0, "status": "failed", "reason": reason}
            made = {**digits, "methods": [*digits["methods"], "ivon"], "runs": [*digits["runs"], failed]}
            (tmp_path / f"{name}.html").write_text(page(made))
            browser.open(tmp_path / f"{name}.html", 1280)
            widths[name] = browser.run("document.querySelector('#ranking').scrollWidth")
    assert widths["long"] == widths["short"]


def check_sorting(browser, folder):
    rows = "[...document.querySelectorAll('#ranking tbody tr')].map(r => r.cells[0].innerText.trim())"
    lines = standings(read_results(folder))
    ranked = [label(line.name) for line in lines]
    assert browser.run(rows) == ranked
    by_accuracy = sorted((line for line in lines if line.cells), key=lambda line: -line.cells["accuracy"].value)
    accuracies = (
        "[...document.querySelectorAll('#ranking tbody tr')].slice(0, -1).map(r => Number(r.cells[1].dataset.value))"
    )
    browser.click("#ranking th:nth-child(2) button")
    found = browser.run(accuracies)
    assert found == pytest.approx([line.cells["accuracy"].value for line in by_accuracy])
    assert browser.run("document.querySelector('#ranking th:nth-child(2)').ariaSort") == "descending"
    browser.click("#ranking th:nth-child(2) button")
    assert browser.run(accuracies) == found[::-1]
    assert browser.run(rows)[-1] == "IVON"  # what failed stays last
    browser.click("#ranking th:nth-child(1) button")
    assert browser.run(rows) == sorted(ranked, key=str.lower)


def check_theme(browser):
    paper = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('figure svg text')).fill"
    before = browser.run("document.documentElement.dataset.theme"), browser.run(paper), browser.run(ink)
    browser.click("#theme")
    after = browser.run("document.documentElement.dataset.theme"), browser.run(paper), browser.run(ink)
    assert {before[0], after[0]} == {"light", "dark"}
    assert before[1] != after[1] and before[2] != after[2]
