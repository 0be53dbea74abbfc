"""The table of the three teams' settings."""

import json

import pytest

from bench import notes


def test_a_loss_is_reached_by_a_whole_line_of_an_epoch_alone(tmp_path):
    log = tmp_path / "log.jsonl"
    assert not notes.reached(log, notes.TARGET)
    row = json.dumps({"event": "epoch", "loss": notes.TARGET})
    log.write_text(json.dumps({"event": "epoch", "loss": 9.0}) + "\n" + row[:-4])
    assert not notes.reached(log, notes.TARGET)
    log.write_text(row + "\n")
    assert notes.reached(log, notes.TARGET)


def test_the_page_has_the_table_that_the_results_make(tmp_path, monkeypatch: pytest.MonkeyPatch):
    page, before = tmp_path / "notes.md", notes.PAGE.read_text(encoding="utf-8")
    page.write_text(before.replace("| molecules |", "| other |"), encoding="utf-8")
    monkeypatch.setattr(notes, "PAGE", page)
    assert notes.main(page_only=True) == 0
    assert page.read_text(encoding="utf-8") == before
