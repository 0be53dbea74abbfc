"""A run as it is told: on the terminal, as data, on the page and in tables."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import cast

from brimful.show import as_json
from brimful.show.html import render_page
from brimful.show.markdown import render_markdown
from brimful.show.runs import attempt_rows, command_of, notes_of, reason_of
from brimful.show.verdict import of_record
from brimful.values import Diagnostic, Outcome, PlannedSetting, Report, RunEnded, Source
from tests.show import run_records


def test_a_run_is_data_with_every_attempt_in_order():
    told = as_json.run_json(run_records.restarted())
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert (told["schema"], told["outcome"], told["exit_code"]) == (1, "completed", 0)
    first, second = told["attempts"]
    assert (first["outcome"], first["failed_rank"], second["resumed"]) == ("out_of_device_memory", 1, True)
    assert first["settings"][0] == {
        "name": "batch_size", "requested": 64, "effective": 512, "why": run_records.WHY, "source": "measured",
    }  # fmt: skip
    assert second["phases"]["eval"]["visits"] == 30


def test_the_verdict_says_how_it_ended_and_in_which_attempt():
    said = of_record(run_records.restarted())
    assert (said.tone, said.sentence.endswith("in attempt 2.")) == ("good", True)
    assert of_record(run_records.terminated()).tone == "unfinished"
    assert of_record(run_records.failed()).tone == "bad"
    assert "has no end" in of_record(run_records.cut_off()).sentence


def test_the_rank_that_fell_is_named_with_its_own_words():
    record = run_records.restarted()
    assert record.run is not None
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. in rank 1 (/home/u/train.py:41 in train)"
    assert reason_of(record.run.attempts[0]) == said


def test_page_and_tables_hold_both_attempts_the_command_in_force_and_the_peaks():
    record = run_records.restarted()
    assert record.run is not None
    page, text = render_page(record), render_markdown(record)
    assert command_of(record.run) == "python train.py --batch-size 256 --accumulation 4"
    for shown in (page, text):
        assert "out of device memory" in shown
        assert "told to go on" in shown
        assert "16.0 GiB" in shown
        assert "146,000" in shown


def test_a_script_that_failed_is_text_on_the_page_and_never_markup():
    page = render_page(run_records.failed())
    assert "<b>lr</b>" not in page
    assert "&lt;b&gt;lr&lt;/b&gt;" in page
    assert "could not be kept" in page


def test_a_run_that_trained_nothing_is_no_good_end():
    nothing = run_records.attempt(steps=0, reports=(cast(Report, object()),))
    record = run_records.run_record(nothing, ended=RunEnded(Outcome.COMPLETED, 0, "the command ended well"))
    assert of_record(record).tone == "unfinished"


def test_what_was_said_at_every_restart_is_shown_once_at_the_end():
    over = Diagnostic("starts-over", "it STARTS OVER", "nothing is saved", "write {resume}")
    record = replace(run_records.restarted(), notes=(over, over, Diagnostic("restart", "another", "", "")))
    assert len(notes_of(record)) == 2
    for shown in (render_page(record), render_markdown(record)):
        assert shown.count("STARTS OVER") == 1


def test_the_table_of_attempts_shows_the_settings_that_changed():
    record = run_records.restarted()
    assert record.run is not None
    same = PlannedSetting("lr", 0.1, 0.1, "as asked", Source.MEASURED)
    attempts = tuple(replace(one, settings=(*one.settings, same)) for one in record.run.attempts)
    rows = attempt_rows(replace(record.run, attempts=attempts))
    assert [row.changed for row in rows] == [("batch_size 512", "accumulation 2"), ("batch_size 256", "accumulation 4")]
    assert attempt_rows(replace(record.run, attempts=attempts[:1]))[0].changed[-1] == "lr 0.1"
