"""Golden copies of the terminal's screens, 80 columns wide, without colour.

After a change that is meant: UPDATE_SCREENS=1 python -m pytest tests/show/test_console.py, and read the difference in git.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from brimful.errors import CommandFailed, NoSuchDevice, ProbeNotLoaded
from brimful.show import console as screens
from tests.show import memory_pieces, pieces, records, run_records

FOLDER = Path(__file__).parent / "screens"
WIDTH = 80

SCREENS: dict[str, Callable[[Console], None]] = {
    "predict-fits": lambda c: screens.show_prediction(c, pieces.prediction()),
    "predict-out-of-memory": lambda c: screens.show_prediction(c, pieces.prediction(1600, pieces.gpu())),
    "predict-speed": lambda c: screens.show_prediction(
        c, replace(pieces.prediction(), speed=pieces.predicted_speed(), warnings=())
    ),
    "predict-where": lambda c: screens.show_prediction(c, replace(memory_pieces.explained(), warnings=())),
    "audit": lambda c: screens.show_audit(c, records.audit()),
    "audit-clean": lambda c: screens.show_record(c, records.clean_audit_record()),
    "tune-cpu": lambda c: screens.show_record(c, records.tune_on_cpu()),
    "tune-card": lambda c: screens.show_plan(c, records.tune_on_card()),
    "tune-interrupted": lambda c: screens.show_record(c, records.tune_with_failures()),
    "script-failed": lambda c: screens.show_record(c, records.failed_record()),
    "cut-off": lambda c: screens.show_record(c, records.torn_record()),
    "empty": lambda c: screens.show_record(c, records.empty_record()),
    "run-restarted": lambda c: screens.show_record(c, run_records.restarted()),
    "run-terminated": lambda c: screens.show_run(c, run_records.terminated()),
    "run-failed": lambda c: screens.show_run(c, run_records.failed()),
    "gpus": lambda c: screens.show_gpus(c, (pieces.gpu(), pieces.a100())),
    "doctor": lambda c: screens.show_doctor(c, pieces.machine(), pieces.plan().warnings),
    "calibration": lambda c: screens.show_calibration(c, pieces.calibration(), "~/.config/brimful/cards/h200.json"),
    "no-such-device": lambda c: screens.show_error(c, NoSuchDevice("a100", ("a100-40gb", "a100-80gb", "h100"))),
    "probe-not-loaded": lambda c: screens.show_error(c, ProbeNotLoaded()),
    "command-failed": lambda c: screens.show_error(
        c,
        CommandFailed(
            "The command failed by itself.", suggestion="Make it run by itself first.", traceback="Traceback …\nKeyError: [red]"
        ),
    ),
}


def draw(screen: Callable[[Console], None]) -> str:
    stream = io.StringIO()
    screen(screens.make_console(stream, width=WIDTH, color=False))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def held_against(golden: Path, drawn: str) -> None:
    if os.environ.get("UPDATE_SCREENS"):
        golden.write_text(drawn, encoding="utf-8")
    assert golden.exists(), f"{golden.name} is not there: UPDATE_SCREENS=1 writes it"
    assert drawn == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_looks_as_its_golden_copy(name: str) -> None:
    held_against(FOLDER / f"{name}.txt", draw(SCREENS[name]))


def test_a_screen_that_changed_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UPDATE_SCREENS", raising=False)
    golden = tmp_path / "audit.txt"
    golden.write_text(draw(SCREENS["audit"]).replace("64", "65", 1), encoding="utf-8")
    with pytest.raises(AssertionError):
        held_against(golden, draw(SCREENS["audit"]))


def test_no_golden_copy_is_left_of_a_screen_that_is_gone() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(SCREENS)


def test_a_plan_ends_with_the_command_to_paste_on_one_line_however_narrow_the_terminal() -> None:
    assert draw(SCREENS["tune-cpu"]).strip().splitlines()[-1] == pieces.plan().command_line


def test_the_table_of_attempts_breaks_no_word_at_80_columns_even_of_a_long_run() -> None:
    record = run_records.restarted()
    assert record.run is not None
    attempts = tuple(replace(one, steps=11_146_000) for one in record.run.attempts)
    text = draw(lambda c: screens.show_run(c, replace(record, run=replace(record.run, attempts=attempts))))
    for whole in ("batch_size 512", "accumulation 2", "completed", "11,146,000", "16.0 GiB", "27 min 22 s"):
        assert whole in text


def test_what_comes_from_outside_is_printed_as_it_is_and_never_as_markup() -> None:
    text = draw(lambda c: screens.show_record(c, records.hostile_record()))
    assert "<script>alert('x')</script>" in text
    shown = draw(lambda c: screens.show_error(c, CommandFailed("[red]no colour[/red] [bold]")))
    assert "[red]no colour[/red] [bold]" in shown


def terminal(monkeypatch: pytest.MonkeyPatch, no_color: str | None) -> str:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as if the stream were a terminal
    if no_color is None:
        monkeypatch.delenv("NO_COLOR", raising=False)
    else:
        monkeypatch.setenv("NO_COLOR", no_color)
    stream = io.StringIO()
    screens.show_plan(screens.make_console(stream, width=WIDTH), records.tune_on_cpu())
    return stream.getvalue()


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[1;32m" in terminal(monkeypatch, None)
    assert "32m" not in terminal(monkeypatch, "1")


def test_a_stream_that_is_no_terminal_gets_no_escape_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    stream = io.StringIO()
    screens.show_plan(screens.make_console(stream, width=WIDTH), records.tune_on_cpu())
    assert "\x1b" not in stream.getvalue()


def test_showing_imports_no_torch() -> None:
    code = "import sys, brimful.show.console, brimful.show.progress, brimful.show.markdown; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run([sys.executable, "-c", f"import torch; {code}"], check=True, timeout=120)
