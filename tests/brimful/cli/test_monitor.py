"""`brimful monitor` as it is typed, off a terminal and with what a terminal would have."""

import io
import json
import os
import sys
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

from brimful.cli import views
from brimful.codec import SCHEMA
from brimful.errors import UsageError
from brimful.record import RecordWriter
from brimful.values import Closed, Opened
from tests.brimful.watched import watched


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


def test_a_process_has_the_machines_side(typed):
    code, out, _ = typed("monitor", "--once", "--pid", str(os.getpid()))
    assert code == 0 and f"process {os.getpid()} goes on" in out and "Host" in out
    assert "now, resident in" in out and "phase" not in out


def test_a_record_and_a_process_are_not_watched_together(typed, record):
    code, out, err = typed("monitor", str(record), "--once", "--pid", str(os.getpid()))
    assert (code, out) == (2, "") and "a record and --pid" in " ".join(err.split())


def test_the_live_view_draws_until_the_run_ends_and_its_last_screen_stays(monkeypatch):
    monkeypatch.setattr(views, "_LOOK_EVERY_S", 0.0)
    run = watched().statuses
    waiting, stream = [run["train"], run["failed"]], io.StringIO()
    views.watch(lambda: waiting.pop(0), Console(file=stream, force_terminal=True, width=120))
    shown, _, last = stream.getvalue().rpartition("\x1b[?1049l")  # the terminal as it was before
    assert "goes on" in shown and not waiting
    assert "has ended with exit code 5" in last and "goes on" not in last


@pytest.mark.parametrize("error", [KeyboardInterrupt, UsageError("no run")])
def test_ctrl_c_ends_the_live_view_and_an_error_leaves_it(typed, record, monkeypatch, error):
    monkeypatch.setattr(views, "watch", Mock(side_effect=error))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert typed("monitor")[0] == (0 if error is KeyboardInterrupt else 2)
