"""Golden copies of the terminal's screens, 80 columns wide, without colour. The product makes what
they show.

After a change that is meant: python -m pytest tests/brimful/show/test_console.py --force-regen,
and read the difference in git.
"""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pytest_regressions.file_regression import FileRegressionFixture
from rich.console import Console

from brimful.cli.app import app
from brimful.errors import CommandFailed, NoSuchDevice, ProbeNotLoaded
from brimful.measure.gpus import find_gpu
from brimful.show import console as screens
from brimful.show.html import render_page
from brimful.show.machine_sections import doctor_sections, gpu_sections
from brimful.show.markdown import render_markdown
from brimful.show.queues import request_facts
from brimful.show.sections import sections
from brimful.values import Diagnostic, Estimate, Source
from tests.brimful.show import product
from tests.brimful.show.test_queues import ASKED

FOLDER = Path(__file__).parent / "screens"
WIDTH = 80
SHORT = [name for name in product.ALL if not name.startswith("hostile")]
DETAILS = ("predict-out-of-memory", "tune-cpu")

SCREENS: dict[str, Callable[[Console], None]] = {
    **{
        name: lambda c, name=name: screens.show_record(c, product.ALL[name](), full=False)
        for name in SHORT
    },
    **{
        f"{name}-details": lambda c, name=name: screens.show_sections(
            c, [section for section in sections(product.ALL[name]()) if section.detail]
        )
        for name in DETAILS
    },
    "gpus": lambda c: screens.show_sections(
        c,
        gpu_sections(
            map(find_gpu, ("rtx3080-20gb", "a100-40gb")),
            {"a100-40gb": Estimate(1.99, Source.ASSUMED)},
        ),
    ),
    "request": lambda c: screens.show_sections(c, [request_facts(ASKED)]),
    "help": lambda c: app.help_print([], console=c),
    "doctor": lambda c: screens.show_sections(c, doctor_sections(product.MACHINE, ())),
    "no-such-device": lambda c: screens.show_error(
        c, NoSuchDevice("a100", ("a100-40gb", "a100-80gb", "h100"))
    ),
    "probe-not-loaded": lambda c: screens.show_error(c, ProbeNotLoaded()),
    "command-failed": lambda c: screens.show_error(
        c,
        CommandFailed(
            "The script raised an error.",
            traceback="Traceback …\nKeyError: [red]",
        ),
    ),
}


def draw(screen: Callable[[Console], None]) -> str:
    stream = io.StringIO()
    screen(screens.make_console(stream, width=WIDTH))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def test_the_verbs_are_on_one_screen() -> None:
    assert len(draw(SCREENS["help"]).splitlines()) <= 24


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_equals_its_golden_copy(file_regression: FileRegressionFixture, name: str) -> None:
    golden = FOLDER / f"{name}.txt"
    file_regression.check(draw(SCREENS[name]), fullpath=golden, encoding="utf-8")


def test_no_golden_copy_is_left_of_a_screen_that_is_gone() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(SCREENS)


@pytest.mark.parametrize("name", ["predict-fits", "predict-out-of-memory", "predict-as-given"])
def test_a_prediction_is_its_answer_in_few_lines_and_its_table_however_much_there_is_to_say(
    name: str,
) -> None:
    record = product.ALL[name]()
    others = (Diagnostic(f"warning-{n}", f"{n} many words", "", "") for n in range(9))
    warnings = (Diagnostic("hidden-cap", "a cap", "why", "lift it"), *others)
    crowded = replace(
        record,
        prediction=replace(record.prediction, warnings=(*record.prediction.warnings, *warnings)),
    )
    shown = draw(lambda c: screens.show_record(c, crowded, full=False))
    facts = shown.split("\n\n")[1].splitlines()
    names = [line for line in facts if line[0] != " "]
    assert [name.split("  ")[0] for name in names] == [*("warning", "next", "how sure", "more")]
    assert record.prediction.next_command.line in shown and "lift it" in shown
    assert f"{9 + (name == 'predict-as-given') * 2} notes with --details" in shown
    details = draw(lambda c: screens.show_record(c, crowded))
    assert all(f"\n{n} many words" in details for n in range(9)) and "Next (" in details


def test_what_comes_from_outside_is_printed_as_it_is_and_never_as_markup() -> None:
    for name in ("hostile", "hostile-run"):
        assert product.HOSTILE in draw(
            lambda c, name=name: screens.show_record(c, product.ALL[name]())
        )
    shown = draw(lambda c: screens.show_error(c, CommandFailed("[red]no colour[/red] [bold]")))
    assert "[red]no colour[/red] [bold]" in shown


STEERING = "\x1b]0;title\x07\x1b[2Jred\x1b[31m\x9b2J\x08\r!"


def test_no_text_of_others_steers_a_terminal_in_any_view() -> None:
    for make in (product.hostile, product.hostile_run):
        record = product.mapped(make(), lambda name, text: text.replace(product.HOSTILE, STEERING))
        for render in (screens.render_text, render_markdown, render_page):
            shown = render(record)
            assert "red" in shown and not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)
    coloured = io.StringIO()
    console = screens.make_console(coloured, 80, is_terminal=True)
    screens.show_error(console, CommandFailed(STEERING, traceback=STEERING))
    rest = re.sub(r"\x1b\[[\d;]*m", "", coloured.getvalue())  # its own colours, ours alone
    assert "\x1b[" in coloured.getvalue() and "\x1b" not in rest and "\r" not in rest
    assert not re.search("\x1b\\[(2J|31m)", coloured.getvalue())


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({"FORCE_COLOR": "1"}, True),  # as if it were a terminal
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({}, False),
    ],
)
def test_a_terminal_gets_colours_unless_no_color_forbids_them(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], coloured: bool
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **variables}.items():
        monkeypatch.setenv(name, value)
    drawn = draw(SCREENS["tune-cpu"])
    assert ("32m" in drawn) == coloured
    assert variables or "\x1b" not in drawn
