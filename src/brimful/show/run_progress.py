"""A run while it goes on: the command's own output as it comes, and one line of brimful's below it.

On a terminal that line stands on the row under the cursor, which is given back before the command's next words, so that its
progress bars and half lines stay as it wrote them. Elsewhere whole lines are written, ever more seldom: a run lasts for hours.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import BinaryIO, TextIO

from brimful.outcomes import OUTCOMES
from brimful.show.words import bytes_text, count_text, seconds_text, settings_text, share_text, speed_text
from brimful.values import Attempt, Heartbeat, PlannedSetting, Trial, TrialResult
from brimful_inside import wire

#: Off a terminal: a line after so many seconds, then after every twentieth of the time that has passed, or ten minutes.
FIRST_S, SHARE, LONGEST_S = 5.0, 0.05, 600.0
# VT100 and ECMA-48: IND (ESC D) goes a row down in the same column and scrolls at the bottom, ESC 7 and 8 keep the cursor.
_COLUMNS = 80  # of a terminal that does not say
_ROOM_BELOW = "\x1bD\x1b[A"
_BELOW, _BACK = "\x1b7\x1b[B\r\x1b[2K", "\x1b8"


class RunProgress:
    """`out`: what the command writes to standard output goes there; `err`: its standard error, and brimful's own words.

    `terminals`: descriptors of those of its streams ("stdout", "stderr") that are terminals. `live`: whether `err` is one.
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
        self._err = err
        self._live = live
        self._clock = clock
        self._gone: set[str] = set()  # streams that nobody reads any more
        self._attempt = 1
        self._line = ""
        self._drawn = False
        self._at_line_start = True
        self._began = self._last_line = clock()
        self.terminals = terminals

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._line = ""
        self._erase()

    # --- what a run tells ---------------------------------------------------------------------------------------------

    def attempt_started(self, number: int, settings: tuple[PlannedSetting, ...]) -> None:
        self._attempt = number
        self._began = self._last_line = self._clock()
        values = {row.name: row.effective for row in settings if row.effective is not None}
        self.message(f"Attempt {number}: {settings_text(values) if values else 'the command as it stands'}")

    def output(self, stream: str, data: bytes) -> None:
        """The command wrote `data`."""
        self._erase()
        self._write(stream, data)
        self._at_line_start = data.endswith((b"\n", b"\r"))
        self._draw()

    def heartbeat(self, seen: Heartbeat) -> None:
        self._line = beat_line(self._attempt, seen)
        now = self._clock()
        if self._live:
            self._erase()
            self._draw()
        elif now - self._last_line >= max(FIRST_S, min(SHARE * (now - self._began), LONGEST_S)):
            self._last_line = now
            self.message(self._line)

    def attempt_ended(self, attempt: Attempt) -> None:
        self._line = ""
        self.message(ended_line(attempt))

    def message(self, text: str) -> None:
        """A sentence of brimful's that stays."""
        self._erase()
        start = "" if self._at_line_start or not self._live else "\n"
        self._write("stderr", f"{start}brimful: {text}\n".encode(errors="backslashreplace"))
        self._at_line_start = True
        self._draw()

    # --- a run has no trials, whose watcher this is too ---------------------------------------------------------------

    def trial_started(self, trial: Trial, number: int, expected_total: int | None) -> None: ...
    def trial_progress(self, seen: wire.Progress | None) -> None: ...
    def trial_ended(self, sample: TrialResult) -> None: ...

    # --- drawing ------------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        if self._live and self._line and not self._drawn:
            width = self._columns()
            text = self._line if len(self._line) < width else self._line[: max(0, width - 2)] + "…"
            self._write("stderr", f"{_ROOM_BELOW}{_BELOW}\x1b[2m{text}\x1b[0m{_BACK}".encode(errors="replace"))
            self._drawn = True

    def _erase(self) -> None:
        if self._drawn:
            self._write("stderr", f"{_BELOW}{_BACK}".encode())
            self._drawn = False

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self.terminals["stderr"]).columns or _COLUMNS
        except (OSError, KeyError):
            return _COLUMNS

    def _write(self, stream: str, data: bytes) -> None:
        """A reader that has gone ends no training: what it would have read is in the record."""
        if stream in self._gone:
            return
        try:
            self._streams[stream].write(data)
            self._streams[stream].flush()
        except (OSError, ValueError) as error:
            self._gone.add(stream)
            if stream == "stdout":
                self.message(f"nobody reads its standard output any more ({error}); the run goes on, and the record keeps it")


def beat_line(attempt: int, seen: Heartbeat) -> str:
    """ "attempt 1, train, step 1,200, loss 0.341, 812 samples/s, 12 % waiting for data, 3.2 GiB reserved, 5 min"."""
    parts = [f"attempt {attempt}"] if attempt > 1 else []
    parts += [f"{seen.phase}, step {seen.steps:,}"] if seen.phase is not None else ["no step seen yet"]
    if seen.ranks > 1:
        parts.append(f"{seen.ranks} ranks")
    if seen.loss is not None:
        parts.append(f"loss {seen.loss:.4g}" + (f" in rank {seen.loss_rank}" if seen.ranks > 1 else ""))
    if seen.samples_per_s is not None:
        parts.append(f"{speed_text(seen.samples_per_s)} samples/s")
    if seen.loading_share is not None and seen.loading_share >= 0.01:
        parts.append(f"{share_text(seen.loading_share)} waiting for data")
    if seen.reserved_bytes is not None:
        parts.append(f"{bytes_text(seen.reserved_bytes)} reserved")
    if seen.alloc_retries:
        parts.append(f"{count_text(seen.alloc_retries)} allocator retries")
    if seen.process_tree_host_bytes:
        parts.append(f"{bytes_text(seen.process_tree_host_bytes)} host")
    return ", ".join([*parts, seconds_text(float(round(seen.seconds)))])


def ended_line(attempt: Attempt) -> str:
    """ "Attempt 1: out of device memory, 812 steps, 14 min"."""
    parts = [OUTCOMES[attempt.outcome].text, f"{attempt.steps:,} steps"]
    if attempt.samples_per_s is not None:
        parts.append(f"{speed_text(attempt.samples_per_s)} samples/s")
    return f"Attempt {attempt.number}: {', '.join([*parts, seconds_text(attempt.duration_s)])}"
