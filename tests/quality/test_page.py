"""The page of results is the one that its tables give."""

from benchmarks.quality import curves
from benchmarks.quality.page import ROOT, page


def test_the_page_is_written_from_the_tables(monkeypatch, tmp_path):
    """A table changed without the page, or the page by hand, and a script that no longer reads its own runs."""
    monkeypatch.setattr(curves, "IMAGES", tmp_path)
    assert page() == (ROOT / "docs" / "results.md").read_text()
