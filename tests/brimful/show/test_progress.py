"""Progress on a terminal and off it, with a clock of its own: nothing here waits."""

import io
import itertools
import re
from dataclasses import replace

import pytest

from brimful.show.progress import (
    FIRST_S,
    LONGEST_S,
    PLAIN_EVERY_S,
    Progress,
    RunProgress,
    heartbeat_line,
    trial_line,
)
from brimful.values import EffectiveSetting, Heartbeat, PhasePeak, Source, TrialKind, TrialResult
from brimful_inside import wire
from tests.brimful.show import product


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def off_terminal() -> tuple[Progress, io.StringIO, Clock]:
    stream, clock = io.StringIO(), Clock()
    return Progress(stream, is_terminal=False, clock=clock), stream, clock


def result(batch_size: int, kind: TrialKind) -> TrialResult:
    """A trial on this CPU, of that batch size."""
    peak = PhasePeak(None, None, None, 11 << 30)
    return replace(
        product.trial_result(batch_size, kind), peak=peak, samples_per_s=None, duration_s=19.6
    )


def test_off_a_terminal_each_trial_has_a_line_at_its_end() -> None:
    progress, stream, _ = off_terminal()
    sample = result(512, TrialKind.MEMORY)
    with progress:
        progress.trial_started(sample.trial, 1, 8)
        progress.trial_ended(sample)
    assert stream.getvalue().splitlines() == [
        "trial 1: memory at batch_size 512 on cpu: completed, peak 11.0 GiB host, 19.6 s",
    ]


def test_a_trial_on_an_imaginary_card_is_reported_with_what_it_reserved() -> None:
    sample = result(64, TrialKind.TRACE)
    peak = replace(sample.peak, reserved_bytes=3 << 30, device_bytes=5 << 30)
    imaginary = replace(
        sample,
        peak=peak,
        trial=replace(sample.trial, device=replace(sample.trial.device, kind="imaginary")),
    )
    assert "peak 3.00 GiB reserved" in trial_line(1, imaginary)
    assert "peak 5.00 GiB device" in trial_line(1, replace(sample, peak=peak)), (
        "a real one shows what nvidia-smi shows"
    )


def test_off_a_terminal_heartbeats_write_a_line_only_every_few_seconds() -> None:
    progress, stream, clock = off_terminal()
    with progress:
        progress.trial_started(result(64, TrialKind.SPEED).trial, 1, None)
        for step in range(40):  # four heartbeats a second for ten seconds
            clock.now += 0.25
            progress.trial_progress(wire.Progress("train", step, 0.0))
    lines = stream.getvalue().splitlines()
    assert len(lines) == int(10 / PLAIN_EVERY_S)
    assert lines[0] == "trial 1: speed at batch_size 64 on cpu, train, step 19, 5 s"


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (None, ["no batch of a DataLoader and no backward pass: it still imports"]),
        (
            wire.Progress("setup", 0, 0.0, batches=12),
            ["12 batches of a DataLoader and no backward pass: it works through"],
        ),
        (
            wire.Progress("train", 0, 0.0, batches=1, backward_passes=1200),
            ["1 batch of a DataLoader and 1,200 backward passes"],
        ),
        (wire.Progress("train", 1, 0.0), []),
    ],
    ids=["nothing", "batches", "backward passes", "a step"],
)
def test_a_trial_without_a_step_says_early_and_once_what_is_seen_instead(
    seen: wire.Progress | None, said: list[str]
) -> None:
    progress, stream, clock = off_terminal()
    with progress:
        for number in (1, 2):
            progress.trial_started(result(64, TrialKind.SPEED).trial, number, None)
            for second in range(100):
                clock.now += 1
                progress.trial_progress(seen if second >= 10 else None)
    lines = [line for line in stream.getvalue().splitlines() if "no step in" in line]
    assert all(line.startswith("trial 1: no step in 30 s; seen: ") for line in lines)
    assert all(words in line for words, line in zip(said, lines, strict=True))


def test_on_a_terminal_one_line_is_redrawn_and_none_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream, sample = io.StringIO(), result(512, TrialKind.MEMORY)
    with Progress(stream, is_terminal=True, clock=Clock()) as progress:
        progress.trial_started(sample.trial, 1, 2)
        progress.trial_progress(wire.Progress("train", 3, 0.0))
        progress._live.refresh()
        progress.trial_ended(sample)
    written = plain(stream.getvalue())
    assert written != stream.getvalue() and "train, step 3" in written
    assert "completed" not in written


def test_what_one_trial_says_stands_on_a_terminal_until_the_answer_and_is_a_line_elsewhere() -> (
    None
):
    prediction, sample = product.predict_fits().prediction, result(512, TrialKind.MEMORY)
    assert prediction is not None
    progress, stream, _ = off_terminal()
    with progress:
        progress.predicted_so_far(prediction)
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("By one trial: Batch size") and " fits " in line
    terminal = io.StringIO()
    with Progress(terminal, is_terminal=True, clock=Clock()) as progress:
        progress.trial_started(sample.trial, 3, 3)
        progress.predicted_so_far(prediction)
        assert progress._live is not None
        progress._live.refresh()
        text = terminal.getvalue()
        assert "By one trial: Batch size" in plain(text) and "trial 3 of" in plain(text)
    erased = terminal.getvalue()[len(text) :]
    assert "\x1b[2K" in erased, "what stood there is gone before the answer comes"


def test_between_two_trials_the_line_says_what_is_done() -> None:
    progress, _, _ = off_terminal()
    sample = result(512, TrialKind.MEMORY)
    assert progress.line() == ""
    with progress:
        progress.trial_started(sample.trial, 1, 8)
        progress.trial_ended(sample)
        assert progress.line() == "working out what the trials show"
    assert progress.line() == ""


def test_an_exception_passes_through_and_leaves_the_terminal_as_it_was() -> None:
    stream = io.StringIO()
    with pytest.raises(KeyboardInterrupt), Progress(stream, is_terminal=True) as progress:
        progress.trial_started(result(64, TrialKind.MEMORY).trial, 1, 2)
        raise KeyboardInterrupt
    assert stream.getvalue().rfind("\x1b[?25h") > stream.getvalue().rfind(
        "\x1b[?25l"
    )  # the cursor is back


# --- a run ---


class Err(io.TextIOWrapper):
    def __init__(self):
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    @property
    def text(self) -> str:
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined]


def run_progress(live: bool, clock=lambda: 0.0):
    err = Err()
    out = err.buffer if live else io.BytesIO()
    return RunProgress(out, err, {}, live, clock), out, err  # type: ignore[arg-type]


HEARTBEAT = Heartbeat(
    "train",
    1200,
    65.0,
    ranks=2,
    samples_per_s=812.0,
    loading_share=0.12,
    loss=0.34111,
    loss_rank=0,
    reserved_bytes=3 << 30,
)
LINE = (
    "train, step 1,200, 2 ranks, loss 0.3411 in rank 0, 812 samples/s, 12 % waiting for data, "
    "3.00 GiB reserved, 1 min 05 s"
)


@pytest.mark.parametrize(
    ("attempt", "heartbeat", "line"),
    [
        (1, HEARTBEAT, LINE),
        (3, Heartbeat(None, 0, 2.0), "attempt 3, no step yet, 2 s"),
        (1, replace(HEARTBEAT, loss_rank=None), LINE.replace(" in rank 0", "")),
    ],
    ids=["all that is known", "before the first step", "a loss of all ranks"],
)
def test_a_heartbeat_is_one_line(attempt, heartbeat, line):
    assert heartbeat_line(attempt, heartbeat) == line


def test_on_a_terminal_the_line_is_redrawn_below_the_commands_output(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    shown, _, err = run_progress(live=True)
    with shown:
        shown.output("stdout", b"epoch 1\n")
        shown.heartbeat(HEARTBEAT)
        assert "step 1,200" in plain(err.text), "at the start of a line"
        before = len(err.text)
        shown.output("stderr", b"bar 1")
        shown.heartbeat(HEARTBEAT)
        assert "step 1,200" not in plain(err.text[before:]).split("bar 1")[1], (
            "a progress bar keeps its line"
        )
        shown.message("memory is nearly full")
    assert "bar 1\nbrimful: memory is nearly full\n" in plain(err.text)
    assert err.text.rfind("\x1b[?25h") >= err.text.rfind("\x1b[?25l"), "the cursor is back"


def test_elsewhere_lines_come_ever_more_seldom_without_carriage_returns_or_colours():
    now = [0.0]
    shown, out, err = run_progress(live=False, clock=lambda: now[0])
    shown.attempt_started(1, (EffectiveSetting("batch_size", 8, 64, "why", Source.MEASURED),))
    times = []
    for second in range(1, 2 * 3600):
        now[0] = float(second)
        before = len(err.text)
        shown.heartbeat(HEARTBEAT)
        times += [second] if len(err.text) > before else []
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times[0] == FIRST_S
    assert gaps == sorted(gaps) and gaps[-1] <= LONGEST_S + 1
    assert len(times) < 150
    assert "batch_size 64" in err.text
    assert "\r" not in err.text and "\x1b" not in err.text
    assert out.getvalue() == b""


def test_bytes_pass_as_they_are_to_the_stream_they_came_on():
    shown, out, err = run_progress(live=False)
    shown.output("stdout", b"\xff\x00half")
    shown.output("stderr", b"\xfe")
    assert (out.getvalue(), err.buffer.getvalue()) == (b"\xff\x00half", b"\xfe")


@pytest.mark.parametrize("error", [BrokenPipeError("gone"), ValueError("closed")])
def test_a_reader_that_has_gone_is_reported_once_and_ends_nothing(error):
    class Gone(io.BytesIO):
        def write(self, data):
            raise error

    err = Err()
    shown = RunProgress(Gone(), err, {}, live=False)
    for _ in range(3):
        shown.output("stdout", b"words")
    assert err.text.count("has gone") == 1
