"""Progress on standard error: a live line on a terminal (drawn by rich), whole plain lines in a
file or a CI log.

`Progress` watches trials, `RunProgress` a run, whose command writes its own output at the same
time.
"""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import BinaryIO, TextIO

from rich.console import Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from brimful import masking
from brimful.outcomes import OUTCOMES
from brimful.show.console import make_console
from brimful.show.headline import of_prediction
from brimful.show.run_sections import kind_text
from brimful.show.text import (
    bytes_text,
    count_text,
    seconds_text,
    settings_text,
    share_text,
    speed_text,
    worst_memory,
)
from brimful.units import counted, printable
from brimful.values import (
    Attempt,
    EffectiveSetting,
    Heartbeat,
    Outcome,
    Prediction,
    Trial,
    TrialResult,
)
from brimful.watcher import Watcher
from brimful_inside import wire

#: Off a terminal: a line at most this often (seconds) while one trial runs.
PLAIN_EVERY_S = 5.0
# : A trial without a step for so long (assumed: most scripts have imported and begun by then) is
# said to have none.
NO_STEP_S = 30.0
# : Off a terminal, of a run: a line after so many seconds, then after every twentieth of the time
# passed, or ten minutes.
FIRST_S, SHARE, LONGEST_S = 5.0, 0.05, 600.0
REDRAWS_PER_S = 4


def _live_line(
    stream: TextIO, line: Callable[[], str], above: Callable[[], str] = lambda: ""
) -> Live:
    """One line that rich redraws below everything else on a terminal, and what stands above it."""
    spinner = Spinner("dots")

    def draw() -> Group:
        text, standing = line(), above()
        spinner.update(text=Text(text, overflow="ellipsis", no_wrap=True))
        rows = ([Text(standing, "bold")] if standing else []) + ([spinner] if text else [])
        return Group(*(rows or [Text("")]))

    return Live(
        get_renderable=draw,
        console=make_console(stream, is_terminal=True),
        refresh_per_second=REDRAWS_PER_S,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


class Progress(Watcher):
    """Shows on `stream` how trials go. Use as a context manager; calls outside of one are
    harmless.
    """

    def __init__(
        self, stream: TextIO, is_terminal: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._stream = stream
        self._trial: Trial | None = None
        self._number = 0
        self._expected: int | None = None
        self._started = self._last_line = clock()
        self._newest: wire.Progress | None = None
        self._said_no_step = False
        self._so_far = ""
        self._live = _live_line(stream, self.line, lambda: self._so_far) if is_terminal else None

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._trial, self._so_far, self._number = None, "", 0
        if self._live is not None:
            self._live.stop()

    def trial_started(self, trial: Trial, number: int, expected_total: int | None) -> None:
        """Trial `number` (from 1) starts; `expected_total` is a guess of how many there will be, or
        None.
        """
        self._trial, self._number, self._expected = trial, number, expected_total
        self._started, self._newest = self._clock(), None

    def trial_progress(self, progress: wire.Progress | None) -> None:
        """The trial is alive; `progress` is the newest report of its process, or None."""
        self._newest = progress or self._newest
        late = self._trial is not None and self._clock() - self._started >= NO_STEP_S
        if late and not self._said_no_step and (self._newest is None or not self._newest.steps):
            self._said_no_step = True
            self.message(no_step_text(self._number, self._clock() - self._started, self._newest))
        due = self._clock() - self._last_line >= PLAIN_EVERY_S
        if self._live is None and self._trial is not None and due:
            self._write(self.line())

    def trial_ended(self, result: TrialResult) -> None:
        """The trial is over; off a terminal a line says its result."""
        self._trial = None
        if self._live is None:
            self.message(trial_line(self._number, result))

    def predicted_so_far(self, prediction: Prediction) -> None:
        """What one trial says, on a terminal until the whole answer stands there."""
        so_far = f"By one trial: {of_prediction(prediction).verdict}"
        if self._live is None:
            self.message(so_far)
        else:
            self._so_far = masking.text(so_far)

    def message(self, text: str) -> None:
        """A sentence that stays."""
        text = masking.text(text)
        if self._live is None:
            self._write(text)
        else:
            self._live.console.print(Text(text), soft_wrap=True)

    def line(self) -> str:
        """The present trial, or what is done between two of them, in one line; "" before any."""
        if self._trial is None:
            return "working out what the trials show" if self._number else ""
        expected = self._expected or 0
        total = f" of about {expected}" if expected >= self._number else ""
        parts = [f"trial {self._number}{total}: {_tried(self._trial)}"]
        if self._newest is not None:
            parts.append(f"{self._newest.phase}, step {self._newest.steps}")
        parts.append(whole_seconds(self._clock() - self._started))
        return masking.text(", ".join(parts))

    def _write(self, text: str) -> None:
        self._last_line = self._clock()
        self._stream.write(printable(text) + "\n")
        self._stream.flush()


class RunProgress(Watcher):
    """A run: passes on the command's own bytes, with one line of brimful's below them on a
    terminal.

    `out` gets the command's standard output; `err` its standard error, and brimful's own messages.
    `terminals`: descriptors of those of its streams ("stdout", "stderr") that are terminals.
    `live`: whether `err` is one.
    """

    def __init__(
        self,
        out: BinaryIO,
        err: TextIO,
        terminals: Mapping[str, int],
        live: bool,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._streams: dict[str, BinaryIO] = {"stdout": out, "stderr": getattr(err, "buffer", out)}
        self._clock = clock
        self._gone: set[str] = set()  # streams whose reader has gone
        self._attempt = 1
        self._line = ""
        self._at_line_start = True
        self._began = self._last_line = clock()
        self._live = _live_line(err, lambda: self._line) if live else None
        self.terminals = terminals

    def __enter__(self) -> "RunProgress":
        return self

    def __exit__(self, *_: object) -> None:
        self._line = ""
        self._clear()

    def attempt_started(self, number: int, settings: tuple[EffectiveSetting, ...]) -> None:
        self._attempt = number
        self._began = self._last_line = self._clock()
        values = {row.name: row.effective for row in settings if row.effective is not None}
        self.message(
            f"Attempt {number}: {settings_text(values) if values else 'the command as given'}"
        )

    def output(self, stream: str, data: bytes) -> None:
        """Writes what the command wrote. brimful's line returns with the next heartbeat at the
        start of a line.
        """
        self._clear()
        self._write(stream, data)
        self._at_line_start = data.endswith(b"\n")

    def heartbeat(self, beat: Heartbeat) -> None:
        self._line = heartbeat_line(self._attempt, beat)
        now = self._clock()
        if self._live is not None:
            if (
                self._at_line_start
            ):  # a progress bar of the command's own keeps the line that it is on
                self._live.start(refresh=True)
        elif now - self._last_line >= max(FIRST_S, min(SHARE * (now - self._began), LONGEST_S)):
            self._last_line = now
            self.message(self._line)

    def attempt_ended(self, attempt: Attempt) -> None:
        self._line = ""
        said = f"{OUTCOMES[attempt.outcome].text}, {counted(attempt.steps, 'step')}"
        self.message(f"Attempt {attempt.number}: {said}{_rate_and_time(attempt)}")

    def message(self, text: str) -> None:
        """A sentence of brimful's that stays."""
        self._clear()
        text = printable(masking.text(text))
        start = "" if self._at_line_start or self._live is None else "\n"
        self._write("stderr", f"{start}brimful: {text}\n".encode(errors="backslashreplace"))
        self._at_line_start = True

    def _clear(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _write(self, stream: str, data: bytes) -> None:
        """A reader that has gone ends no training: the record keeps what it would have read."""
        if stream in self._gone:
            return
        try:
            self._streams[stream].write(data)
            self._streams[stream].flush()
        except (OSError, ValueError) as error:
            self._gone.add(stream)
            if stream == "stdout":
                self.message(
                    f"the reader of its standard output has gone ({error}); the run goes on, and "
                    "the record keeps it"
                )


def no_step_text(number: int, seconds: float, progress: wire.Progress | None) -> str:
    """Of a trial that has had no step for a while: what was seen in place of one, and what that can
    mean.
    """
    batches = progress.batches if progress is not None else 0
    backward = progress.backward_passes if progress is not None else 0
    passes = counted(backward, "backward pass", "backward passes")
    if backward:
        means = (
            "its first step is slow, it accumulates gradients over more than these, or never "
            "calls step() of an optimizer"
        )
    elif batches > 1:
        means = "it works through its data first, or only evaluates"
    elif batches:
        means = "its first step is slow, or it only evaluates"
    else:
        means = (
            "it still imports or prepares its data, or trains by means that brimful does not see"
        )
    return (
        f"trial {number}: no step in {whole_seconds(seconds)}; seen: "
        f"{counted(batches, 'batch', 'batches') if batches else 'no batch'} of a DataLoader and "
        f"{passes if backward else 'no backward pass'}: {means}. "
        "The trial goes on; Ctrl-C ends it, and --time-limit limits it"
    )


def trial_line(number: int, result: TrialResult) -> str:
    """ "trial 4: memory at batch_size 512 on cpu: completed, peak 11.5 GiB host, 19.6 s"."""
    text = f"trial {number}: {_tried(result.trial)}: {OUTCOMES[result.outcome].text}"
    # A trial on an imaginary card knows its reserved memory; the context is added once all trials
    # are known.
    worst = worst_memory(result, "reserved" if result.trial.device.kind == "imaginary" else None)
    if worst is not None and result.outcome is Outcome.COMPLETED:
        text += f", peak {bytes_text(worst[1])} {worst[0]}"
    return text + _rate_and_time(result)


def _tried(trial: Trial) -> str:
    how = f"at {settings_text(trial.settings)}" if trial.settings else "of the command as given"
    return f"{kind_text(trial)} {how} on {trial.device.label}"


def heartbeat_line(attempt: int, beat: Heartbeat) -> str:
    """ "attempt 1, train, step 1,200, loss 0.341, 812 samples/s, 12 % waiting for data, 3.2 GiB
    reserved, 5 min".
    """
    rank = f" in rank {beat.loss_rank}" if beat.ranks > 1 and beat.loss_rank is not None else ""
    parts = {
        f"attempt {attempt}": attempt > 1,
        "no step yet": beat.phase is None,
        f"{beat.phase}, step {beat.steps:,}": beat.phase is not None,
        f"{beat.ranks} ranks": beat.ranks > 1,
        f"loss {beat.loss or 0.0:.4g}{rank}": beat.loss is not None,
        f"{speed_text(beat.samples_per_s)} samples/s": beat.samples_per_s is not None,
        f"{share_text(beat.loading_share)} waiting for data": (beat.loading_share or 0) >= 0.01,
        f"{bytes_text(beat.reserved_bytes)} reserved": beat.reserved_bytes is not None,
        f"{count_text(beat.alloc_retries)} allocator retries": bool(beat.alloc_retries),
        f"{bytes_text(beat.process_tree_host_bytes)} host": bool(beat.process_tree_host_bytes),
        whole_seconds(beat.seconds): True,
    }
    return ", ".join(text for text, is_known in parts.items() if is_known)


def whole_seconds(seconds: float) -> str:
    """Of a clock that runs: "5 s", "2 min 05 s"."""
    return f"{round(seconds)} s" if seconds < 59.5 else seconds_text(float(round(seconds)))


def _rate_and_time(ended: TrialResult | Attempt) -> str:
    rate = ended.samples_per_s
    return ("" if rate is None else f", {speed_text(rate)} samples/s") + (
        f", {seconds_text(ended.duration_s)}"
    )
