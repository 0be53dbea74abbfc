"""`brimful monitor` as it is typed, off a terminal and with what a terminal would have."""

import json
import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from brimful.codec import SCHEMA
from brimful.record import RecordWriter
from brimful.values import Closed, Opened


@pytest.fixture
def record(tmp_path) -> Path:
    """Of a call that has ended."""
    opened = Opened(SCHEMA, "20261127-120000-audit", "audit", (), None, None, None, 1.0)
    with closing(RecordWriter.create(tmp_path / "home", opened)) as writer:
        writer.append(Closed(5, 2.0, "the script raised an error."))
        return writer.folder


@pytest.mark.parametrize("words", [("--once",), ("--json",), ()])
def test_without_a_record_a_sentence_says_so_and_the_exit_code_is_2(typed, words):
    code, out, err = typed("monitor", *words)
    assert code == 2 and "holds none" in " ".join((err + out).split())


@pytest.mark.parametrize("pid", ["0", "-1", "me", "4194999"])
def test_a_number_that_is_no_process_is_a_usage_error(typed, pid):
    assert typed("monitor", "--once", "--pid", pid)[0] == 2


def test_once_prints_a_screen_and_json_an_object_with_units_in_its_names(typed, record):
    code, out, _ = typed("monitor", "--once")
    assert code == 0 and "has ended with exit code 5: the script raised an error." in out
    code, out, _ = typed("monitor", str(record), "--json")
    answer = json.loads(out)
    assert (code, answer["state"], answer["exit_code"]) == (0, "ended", 5)
    assert answer["host"]["total_bytes"] > 0 and answer["of"] == record.name


def test_off_a_terminal_it_ends_with_the_run_whose_end_it_says(typed, record):
    code, out, _ = typed("monitor", record.name)
    assert code == 0 and out.splitlines() == [
        f"{record.name} has ended with exit code 5: the script raised an error."
    ]


def test_a_process_has_the_machines_side_and_its_metrics_go_to_a_file(typed, tmp_path):
    path = tmp_path / "brimful.prom"
    code, out, _ = typed("monitor", "--once", "--pid", str(os.getpid()), "--export", str(path))
    assert code == 0 and f"process {os.getpid()} goes on" in out and "Host" in out
    assert "now, resident in" in out and "phase" not in out
    assert f'brimful_going{{of="process {os.getpid()}"}} 1.0' in path.read_text()
    assert typed("monitor", "--once", "--export", str(tmp_path / "no" / "x"))[0] == 2


def test_a_record_and_a_process_are_not_watched_together(typed, record):
    code, out, err = typed("monitor", str(record), "--once", "--pid", str(os.getpid()))
    assert (code, out) == (2, "") and "a record and --pid" in " ".join(err.split())


def test_the_live_view_names_the_extra_that_it_needs(typed, record, monkeypatch):
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.delitem(sys.modules, "brimful.show.monitor_app", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, out, err = typed("monitor")
    assert (code, out) == (2, "") and "pip install 'brimful[monitor]'" in err
    assert typed("monitor", "--once")[0] == 0, "which does without it"
