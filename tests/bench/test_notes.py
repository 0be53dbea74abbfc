"""The table of the three teams' settings."""

import json

import pytest

from bench import notes


def test_a_loss_is_reached_by_a_whole_line_of_an_epoch_alone(tmp_path):
    log = tmp_path / "log.jsonl"
    assert not notes.reached(log)
    row = json.dumps({"event": "epoch", "loss": notes.TARGET})
    log.write_text(json.dumps({"event": "epoch", "loss": 9.0}) + "\n" + row[:-4])
    assert not notes.reached(log)
    log.write_text(row + "\n")
    assert notes.reached(log)


def test_what_was_missed_by_most_seeds_is_a_lower_bound():
    seconds = {"original": [90.0, 80.0, 100.0], "optimized": [None, None, 99.0]}
    lines = notes.chat_lines({"chat": {**seconds, "brimful": [60.0, 50.0, 40.0]}})
    assert lines[0] == "| chat | original | 8 samples | loss 4 | 90 s | 1.80 × |"
    assert "missed by 2 of 3 | over 100 s | over 2.00 × |" in lines[1]


def test_the_page_has_the_table_that_the_results_make(tmp_path, monkeypatch: pytest.MonkeyPatch):
    page, before = tmp_path / "notes.md", notes.PAGE.read_text(encoding="utf-8")
    page.write_text(before.replace("| molecules |", "| other |"), encoding="utf-8")
    monkeypatch.setattr(notes, "PAGE", page)
    assert notes.main(page_only=True) == 0
    assert page.read_text(encoding="utf-8") == before
