"""The table of the three teams' settings."""

import pytest

from bench import notes


def test_the_page_has_the_table_that_the_results_make(tmp_path, monkeypatch: pytest.MonkeyPatch):
    page, before = tmp_path / "notes.md", notes.PAGE.read_text(encoding="utf-8")
    page.write_text(before.replace("| molecules |", "| other |"), encoding="utf-8")
    monkeypatch.setattr(notes, "PAGE", page)
    assert notes.main(page_only=True) == 0
    assert page.read_text(encoding="utf-8") == before
