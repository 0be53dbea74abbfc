"""Screens of `monitor` at 80, 120 and 200 columns, from a run that was looked at while it went on:
golden copies, with the numbers that differ from machine to machine replaced by fixed ones.

After a change that is meant: python -m pytest --force-regen
tests/brimful/show/test_monitor_sections.py, and read the difference in git.
"""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from pytest_regressions.file_regression import FileRegressionFixture

from brimful.measure.machine_watch import _card
from brimful.show.console import make_console
from brimful.show.monitor_sections import draw, line, state_text
from brimful.values import (
    CardStatus,
    Device,
    Diagnostic,
    Estimate,
    HostStatus,
    Source,
    State,
    Status,
)
from tests.brimful.measure.nvml import GIB, driver
from tests.brimful.watched import watched

pytestmark = pytest.mark.heavy

FOLDER = Path(__file__).parent / "monitor_screens"
HOST = HostStatus(16 * GIB, 9 * GIB, 16 * GIB, 8, 3, 1, 246 << 20)
SCREENS = [
    *((name, 80) for name in ("before", "train", "eval", "failed", "killed", "cards")),
    *((name, width) for name in ("train", "cards") for width in (120, 200)),
]


def steady(status: Status) -> Status:
    """With fixed numbers in place of those of this machine at this time."""
    beat = status.beat
    fixed = {"samples_per_s": 38.5, "loading_share": 0.77, "rates_over_s": 4.2}
    known = {name: value for name, value in fixed.items() if getattr(beat, name) is not None}

    def text(found: str) -> str:
        shares = re.sub(r"\d+(\.\d+)? %", "77 %", found)
        numbers = re.sub(r"after .{3,14}? and", "after 17.0 s and", shares)
        return re.sub(r"/\S*/watched-\w+/", "/home/me/", numbers)

    return replace(
        status,
        of="20261127-120000-run-train",
        command="python train.py --batch-size 8 --epochs 3",
        beat=replace(beat, seconds=12.0, **known),
        left_s=status.left_s and replace(status.left_s, value=48.0),
        peak=status.peak and replace(status.peak, host_bytes=250 << 20),
        silent_s=status.silent_s and 0.5,
        host=replace(HOST, processes=status.host.processes),
        message=status.message and text(status.message),
        tail={name: tuple(map(text, lines[-3:])) for name, lines in status.tail.items()},
        findings=tuple(
            Diagnostic(f.code, text(f.problem), f.explanation, "Set num_workers=5.")
            for f in status.findings
        ),
    )


def cards() -> tuple[CardStatus, ...]:
    nvml = driver(8, {2: {2**22 + 1: 18 * GIB, 2**22 + 2: GIB}})
    return tuple(_card(nvml, index, [2**22 + 1]) for index in range(8))


def on_cards() -> Status:
    """The same training, on the third of eight cards."""
    status = steady(watched().statuses["train"])
    peak = Estimate(19.4 * GIB, Source.PREDICTED, 18.2 * GIB, 20.6 * GIB, "by predict")
    rate = Estimate(850.0, Source.PREDICTED, note="by predict")
    return replace(
        status,
        device=Device("accelerator", "cuda:2"),
        beat=replace(status.beat, reserved_bytes=17 * GIB, ranks=2, loss_rank=0),
        cards=cards(),
        silent_s=45.0,
        expected_peak_bytes=peak,
        expected_samples_per_s=rate,
    )


def drawn(status: Status, width: int) -> str:
    stream = io.StringIO()
    make_console(stream, width=width).print(draw(status, width))
    return "\n".join(row.rstrip() for row in stream.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize(("name", "width"), SCREENS)
def test_a_screen_equals_its_golden_copy(
    file_regression: FileRegressionFixture, name: str, width: int
) -> None:
    screen = drawn(on_cards() if name == "cards" else steady(watched().statuses[name]), width)
    assert all(len(row) <= width for row in screen.splitlines())
    file_regression.check(screen, fullpath=FOLDER / f"{name}-{width}.txt", encoding="utf-8")


def test_no_golden_copy_is_left_of_a_screen_that_is_gone() -> None:
    names = {f"{name}-{width}" for name, width in SCREENS}
    assert {path.stem for path in FOLDER.glob("*.txt")} == names


def test_off_a_terminal_a_line_has_it_all_and_the_end_is_a_line_of_its_own() -> None:
    run = watched().statuses
    text = line(steady(run["train"]))
    assert text.startswith(
        "20261127-120000-run-train, attempt 1 goes on, 12 s; device cpu; memory 246 MiB"
    )
    assert "phase train, step 6; loss 0.25; speed 38.5 samples/s" in text and "\n" not in text
    assert line(steady(run["failed"])) == state_text(steady(run["failed"]))


def test_of_several_processes_it_says_that_pages_that_they_share_are_divided() -> None:
    status = steady(watched().statuses["train"])
    several = replace(status, host=replace(status.host, processes=3))
    assert "246 MiB now, resident in 3 processes, shared pages divided among them" in line(several)
    assert "resident in 1 process;" in line(status)


def test_no_line_of_the_script_steers_the_terminal() -> None:
    status = replace(steady(watched().statuses["train"]), tail={"stdout": ("\x1b[2Jred\x9b1m",)})
    stream = io.StringIO()
    make_console(stream, 80).print(draw(status, 80))
    assert "red" in stream.getvalue() and not re.search("[\x1b\x9b]", stream.getvalue())


def test_each_state_has_its_own_sentence() -> None:
    status = replace(steady(watched().statuses["train"]), part=None, beat=None)
    signalled = replace(status, state=State.ENDED, exit_code=5, command_exit_code=-9, message="m.")
    assert state_text(signalled).endswith("has ended with exit code 5 (its command: signal 9): m.")
    done = replace(status, state=State.ENDED, exit_code=0, command_exit_code=0, message="Done.")
    assert state_text(done).endswith("has ended with exit code 0: Done.")
    unknown = replace(status, state=State.UNKNOWN)
    assert "not known" in state_text(unknown) and "--pid" in state_text(unknown)
