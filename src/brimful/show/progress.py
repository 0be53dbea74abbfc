"""Progress while trials run: a live line on a terminal, one plain line every few seconds elsewhere.

On a terminal the line says what is being tried, its step, the time passed and the time left. Elsewhere (a file, a CI log) whole
lines are written, no carriage returns and no colours.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from brimful.outcomes import OUTCOMES
from brimful.show.console import make_console
from brimful.show.facts import kind_text
from brimful.show.words import bytes_text, memory_of, seconds_text, settings_text, speed_text
from brimful.values import Outcome, Trial, TrialResult
from brimful_inside import wire

#: Off a terminal: a line at most this often (seconds) while one trial runs.
PLAIN_EVERY_S = 5.0
REDRAWS_PER_S = 4


class Progress:
    """Shows how trials go. Use as a context manager; calls outside of one are harmless.

    `stream`: where to write (standard error, so that data can go to standard output). `is_terminal`: whether it can be redrawn.
    `clock` gives seconds that only ever grow.
    """

    def __init__(self, stream: TextIO, is_terminal: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stream = stream
        self._trial: Trial | None = None
        self._number = 0
        self._expected: int | None = None
        self._started = self._last_line = clock()
        self._beat: wire.Progress | None = None
        self._durations: list[float] = []
        self._live = self._make_live() if is_terminal else None

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._trial = None
        if self._live is not None:
            self._live.stop()

    def trial_started(self, trial: Trial, number: int, expected_total: int | None) -> None:
        """Trial `number` (from 1) starts; `expected_total` is a guess of how many there will be, or None."""
        self._trial, self._number, self._expected, self._beat = trial, number, expected_total, None
        self._started = self._clock()
        if self._live is None:
            self._write(self.line())

    def trial_progress(self, seen: wire.Progress | None) -> None:
        """The trial is alive; `seen` is the newest that its process told, or None. May be called as often as one likes."""
        self._beat = seen or self._beat
        if self._live is None and self._trial is not None and self._clock() - self._last_line >= PLAIN_EVERY_S:
            self._write(self.line())

    def trial_ended(self, sample: TrialResult) -> None:
        """The trial is over; a line with what it showed stays."""
        self._durations.append(self._clock() - self._started)
        self._trial = None
        self.message(ended_line(self._number, sample))

    def message(self, text: str) -> None:
        """A sentence that stays."""
        if self._live is None:
            self._write(text)
        else:
            self._live.console.print(Text(text), soft_wrap=True)

    def line(self) -> str:
        """What is being tried now, in one line; "" between trials."""
        if self._trial is None:
            return ""
        total = f" of about {self._expected}" if self._expected and self._expected >= self._number else ""
        parts = [f"trial {self._number}{total}: {_tried(self._trial)}"]
        if self._beat is not None:
            parts.append(f"{self._beat.phase}, step {self._beat.steps}")
        parts.append(seconds_text(float(round(self._clock() - self._started))))
        left = self.seconds_left()
        if left is not None:
            parts.append(f"about {seconds_text(float(max(round(left), 1)))} left")
        return ", ".join(parts)

    def seconds_left(self) -> float | None:
        """By the mean of the trials so far; None before the first has ended, and where nobody knows how many will come."""
        if not self._durations or self._expected is None or self._trial is None:
            return None
        mean = sum(self._durations) / len(self._durations)
        this_one = max(mean - (self._clock() - self._started), 0.0)
        return this_one + mean * max(self._expected - self._number, 0)

    def _make_live(self) -> Live:
        console = make_console(self._stream, is_terminal=True)
        spinner = Spinner("dots")

        def draw() -> Text | Spinner:
            text = self.line()
            if not text:
                return Text("")
            spinner.update(text=Text(text, overflow="ellipsis", no_wrap=True))
            return spinner

        return Live(
            get_renderable=draw,
            console=console,
            refresh_per_second=REDRAWS_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def _write(self, text: str) -> None:
        self._last_line = self._clock()
        self._stream.write(text + "\n")
        self._stream.flush()


def ended_line(number: int, sample: TrialResult) -> str:
    """ "trial 4: memory at batch_size 512 on cpu: completed, peak 11.5 GiB host, 19.6 s"."""
    parts = [OUTCOMES[sample.outcome].text]
    # What a trial on an imaginary card reserves is its own; which context comes to it is known when all of it is told.
    seen = memory_of(sample.peak, "reserved" if sample.trial.device.kind == "imaginary" else None)
    if seen is not None and sample.outcome is Outcome.COMPLETED:
        parts.append(f"peak {bytes_text(seen[1])} {seen[0]}")
    if sample.samples_per_s is not None:
        parts.append(f"{speed_text(sample.samples_per_s)} samples/s")
    parts.append(seconds_text(sample.duration_s))
    return f"trial {number}: {_tried(sample.trial)}: {', '.join(parts)}"


def _tried(trial: Trial) -> str:
    environment = f" with {', '.join(trial.environment)}" if trial.environment else ""
    how = f"at {settings_text(trial.settings)}" if trial.settings else "of the command as it stands"
    return f"{kind_text(trial)} {how} on {trial.device.label}{environment}"
