"""Progress on a terminal and off it, with a clock of its own: nothing here waits."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from brimful.show.progress import PLAIN_EVERY_S, Progress, ended_line
from brimful.values import TrialKind
from brimful_inside import wire
from tests.show import pieces, records


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def off_terminal() -> tuple[Progress, io.StringIO, Clock]:
    stream, clock = io.StringIO(), Clock()
    return Progress(stream, is_terminal=False, clock=clock), stream, clock


def beat(step: int) -> wire.Progress:
    return wire.Progress("train", step, 0.0)


def test_off_a_terminal_each_trial_has_a_line_at_its_start_and_one_at_its_end() -> None:
    progress, stream, _ = off_terminal()
    sample = pieces.sample(1, TrialKind.MEMORY, 512)
    with progress:
        progress.trial_started(sample.trial, 1, 8)
        progress.trial_ended(sample)
    lines = stream.getvalue().splitlines()
    assert lines == [
        "trial 1 of about 8: memory at batch_size 512 on cpu, 0 s",
        "trial 1: memory at batch_size 512 on cpu: completed, peak 11.5 GiB host, 19.6 s",
    ]


def test_a_trial_on_an_imaginary_card_is_told_with_what_it_reserved() -> None:
    sample = pieces.sample(1, TrialKind.TRACE, 64)
    assert sample.peak is not None
    peak = replace(sample.peak, reserved_bytes=3 << 30, device_bytes=5 << 30)
    imaginary = replace(sample, peak=peak, trial=replace(sample.trial, device=replace(sample.trial.device, kind="imaginary")))
    assert "peak 3.00 GiB reserved" in ended_line(1, imaginary)
    assert "peak 5.00 GiB device" in ended_line(1, replace(sample, peak=peak)), "a real one shows what nvidia-smi shows"


def test_off_a_terminal_heartbeats_write_a_line_only_every_few_seconds() -> None:
    progress, stream, clock = off_terminal()
    with progress:
        progress.trial_started(pieces.sample(1, TrialKind.SPEED, 64).trial, 1, None)
        for step in range(40):  # four heartbeats a second for ten seconds
            clock.now += 0.25
            progress.trial_progress(beat(step))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1 + int(10 / PLAIN_EVERY_S)
    assert lines[1] == "trial 1: speed at batch_size 64 on cpu, train, step 19, 5.00 s"


def test_off_a_terminal_there_are_no_carriage_returns_and_no_escape_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    progress, stream, clock = off_terminal()
    with progress:
        for number, sample in enumerate(records.tune_with_failures().trials, 1):
            progress.trial_started(sample.trial, number, 5)
            clock.now += 30
            progress.trial_progress(None)
            progress.trial_ended(sample)
        progress.message("done [bold]with[/bold] that")
    written = stream.getvalue()
    assert "\r" not in written and "\x1b" not in written
    assert "done [bold]with[/bold] that\n" in written
    assert "out of device memory" in written


def test_on_a_terminal_the_line_is_redrawn_and_what_ended_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream, clock = io.StringIO(), Clock()
    sample = pieces.sample(1, TrialKind.MEMORY, 512)
    with Progress(stream, is_terminal=True, clock=clock) as progress:
        progress.trial_started(sample.trial, 1, 2)
        progress.trial_progress(beat(3))
        assert progress._live is not None
        progress._live.refresh()
        progress.trial_ended(sample)
    written = stream.getvalue()
    assert "\x1b[" in written
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written)
    assert "train, step 3" in plain
    assert "trial 1: memory at batch_size 512 on cpu: completed" in plain


def test_time_left_is_the_mean_of_the_trials_so_far() -> None:
    progress, _, clock = off_terminal()
    trial = pieces.sample(1, TrialKind.MEMORY, 64)
    progress.trial_started(trial.trial, 1, 4)
    assert progress.seconds_left() is None
    clock.now += 10
    progress.trial_ended(trial)
    progress.trial_started(trial.trial, 2, 4)
    clock.now += 4
    assert progress.seconds_left() == pytest.approx(6 + 2 * 10)
    assert "about 26.0 s left" in progress.line()


def test_a_trial_that_takes_longer_than_the_others_never_shows_time_below_nought() -> None:
    progress, _, clock = off_terminal()
    trial = pieces.sample(1, TrialKind.MEMORY, 64)
    progress.trial_started(trial.trial, 1, 2)
    clock.now += 1
    progress.trial_ended(trial)
    progress.trial_started(trial.trial, 2, 2)
    clock.now += 500
    assert progress.seconds_left() == 0.0
    assert "8 min 20 s" in progress.line()


def test_more_trials_than_expected_are_no_contradiction_on_the_screen() -> None:
    progress, _, _ = off_terminal()
    progress.trial_started(pieces.sample(1, TrialKind.MEMORY, 64).trial, 6, 5)
    assert progress.line().startswith("trial 6: ")


def test_the_environment_of_a_trial_is_named() -> None:
    sample = pieces.sample(1, TrialKind.SPEED, 64)
    sample = replace(sample, trial=replace(sample.trial, environment={"MALLOC_MMAP_MAX_": "0"}))
    assert "with MALLOC_MMAP_MAX_:" in ended_line(3, sample)


def test_an_exception_passes_through_and_leaves_the_terminal_as_it_was() -> None:
    stream = io.StringIO()
    with pytest.raises(KeyboardInterrupt), Progress(stream, is_terminal=True) as progress:
        progress.trial_started(pieces.sample(1, TrialKind.MEMORY, 64).trial, 1, 2)
        raise KeyboardInterrupt
    assert stream.getvalue().rfind("\x1b[?25h") > stream.getvalue().rfind("\x1b[?25l")  # the cursor is back
