"""A run while it goes on: the command's bytes stay as they are, brimful's own words beside them."""

from __future__ import annotations

import io
import itertools

import pytest

from brimful.show.run_progress import FIRST_S, LONGEST_S, RunProgress, beat_line
from brimful.values import Heartbeat, PlannedSetting, Source


class Screen:
    """As much of a terminal as is needed: rows, a cursor, and the few sequences that are used."""

    def __init__(self):
        self.rows, self.row, self.column, self.kept = [""], 0, 0, (0, 0)

    def feed(self, data: str) -> list[str]:
        data = data.replace("\x1b[2m", "").replace("\x1b[0m", "")
        while data:
            for sequence, does in (
                ("\x1bD", self._down), ("\x1b[A", self._up), ("\x1b7", self._keep), ("\x1b8", self._back),
                ("\x1b[B", self._below), ("\x1b[2K", self._clear), ("\r", self._left), ("\n", self._newline),
            ):  # fmt: skip
                if data.startswith(sequence):
                    does()
                    data = data[len(sequence) :]
                    break
            else:
                self._put(data[0])
                data = data[1:]
        return [row.rstrip() for row in self.rows]

    def _down(self):
        self.row += 1
        self.rows += [""] * (self.row + 1 - len(self.rows))

    def _up(self):
        self.row -= 1

    def _below(self):
        self.row = min(self.row + 1, len(self.rows) - 1)

    def _keep(self):
        self.kept = (self.row, self.column)

    def _back(self):
        self.row, self.column = self.kept

    def _clear(self):
        self.rows[self.row] = ""

    def _left(self):
        self.column = 0

    def _newline(self):
        self._down()
        self.column = 0

    def _put(self, letter):
        row = self.rows[self.row].ljust(self.column)
        self.rows[self.row] = row[: self.column] + letter + row[self.column + 1 :]
        self.column += 1


class Err(io.TextIOWrapper):
    def __init__(self):
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    @property
    def text(self) -> str:
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined]


def progress(live: bool, clock=lambda: 0.0):
    err = Err()
    out = err.buffer if live else io.BytesIO()
    return RunProgress(out, err, {}, live, clock), out, err  # type: ignore[arg-type]


BEAT = Heartbeat(
    "train", 1200, 65.0, ranks=2, samples_per_s=812.0, loading_share=0.12, loss=0.34111, loss_rank=0, reserved_bytes=3 << 30
)


def test_a_beat_is_one_line():
    said = (
        "train, step 1,200, 2 ranks, loss 0.3411 in rank 0, 812 samples/s, 12 % waiting for data, 3.00 GiB reserved, 1 min 05 s"
    )
    assert beat_line(1, BEAT) == said
    assert beat_line(3, Heartbeat(None, 0, 2.0)) == "attempt 3, no step seen yet, 2.00 s"


def test_on_a_terminal_half_lines_of_the_command_stay_and_ours_is_below_them():
    shown, _, err = progress(live=True)
    shown.output("stdout", b"epoch 1\n")
    shown.output("stderr", b"bar 1")
    shown.heartbeat(BEAT)
    assert Screen().feed(err.text)[:2] == ["epoch 1", "bar 1"]
    assert "step 1,200" in Screen().feed(err.text)[2]
    shown.output("stderr", b"\rbar 2 and more\nepoch 2\n")
    rows = Screen().feed(err.text)
    assert rows[:3] == ["epoch 1", "bar 2 and more", "epoch 2"]
    assert "step 1,200" in rows[-1]
    with shown:
        pass
    assert Screen().feed(err.text)[:4] == ["epoch 1", "bar 2 and more", "epoch 2", ""]


def test_a_message_in_the_middle_of_a_bar_begins_a_line_of_its_own():
    shown, _, err = progress(live=True)
    shown.output("stderr", b"bar 1")
    shown.message("memory is nearly full")
    assert Screen().feed(err.text)[:2] == ["bar 1", "brimful: memory is nearly full"]


def test_elsewhere_lines_come_ever_more_seldom_without_carriage_returns_or_colours():
    now = [0.0]
    shown, out, err = progress(live=False, clock=lambda: now[0])
    shown.attempt_started(1, (PlannedSetting("batch_size", 8, 64, "why", Source.MEASURED),))
    told = []
    for second in range(1, 8 * 3600):
        now[0] = float(second)
        before = len(err.text)
        shown.heartbeat(BEAT)
        told += [second] if len(err.text) > before else []
    gaps = [later - earlier for earlier, later in itertools.pairwise(told)]
    assert told[0] == FIRST_S
    assert gaps == sorted(gaps)
    assert gaps[-1] <= LONGEST_S + 1
    assert len(told) < 150
    assert "batch_size 64" in err.text
    assert "\r" not in err.text and "\x1b" not in err.text
    assert out.getvalue() == b""


def test_bytes_pass_as_they_are_to_the_stream_they_came_on():
    shown, out, err = progress(live=False)
    shown.output("stdout", b"\xff\x00half")
    shown.output("stderr", b"\xfe")
    assert (out.getvalue(), err.buffer.getvalue()) == (b"\xff\x00half", b"\xfe")


@pytest.mark.parametrize("error", [BrokenPipeError("gone"), ValueError("closed")])
def test_a_reader_that_has_gone_is_told_once_and_ends_nothing(error):
    class Gone(io.BytesIO):
        def write(self, data):
            raise error

    err = Err()
    shown = RunProgress(Gone(), err, {}, live=False)
    for _ in range(3):
        shown.output("stdout", b"words")
    assert err.text.count("nobody reads") == 1
