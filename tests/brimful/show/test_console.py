"""Golden copies of the terminal's screens, 80 columns wide, without colour. The product makes what
they show.

After a change that is meant: UPDATE_SCREENS=1 python -m pytest tests/brimful/show/test_console.py,
and read the difference in git.
"""

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
from brimful.measure.gpus import find_gpu
from brimful.show import console as screens
from brimful.show.machine_sections import doctor_sections, gpu_sections
from brimful.values import Diagnostic, Estimate, Source
from tests.brimful.show import product

FOLDER = Path(__file__).parent / "screens"
WIDTH = 80
SHORT = [name for name in product.ALL if not name.startswith("hostile")]
FULL = ("predict-fits", "predict-out-of-memory", "tune-cpu", "script-raised", "run-failed")

SCREENS: dict[str, Callable[[Console], None]] = {
    **{
        name: lambda c, name=name: screens.show_record(c, product.ALL[name](), full=False)
        for name in SHORT
    },
    **{
        f"{name}-full": lambda c, name=name: screens.show_record(c, product.ALL[name]())
        for name in FULL
    },
    "gpus": lambda c: screens.show_sections(
        c,
        gpu_sections(
            map(find_gpu, ("rtx3080-20gb", "a100-40gb")),
            {"a100-40gb": Estimate(1.99, Source.ASSUMED)},
        ),
    ),
    "doctor": lambda c: screens.show_sections(c, doctor_sections(product.MACHINE, ())),
    "no-such-device": lambda c: screens.show_error(
        c, NoSuchDevice("a100", ("a100-40gb", "a100-80gb", "h100"))
    ),
    "probe-not-loaded": lambda c: screens.show_error(c, ProbeNotLoaded()),
    "command-failed": lambda c: screens.show_error(
        c,
        CommandFailed(
            "The script raised an error.",
            suggestion="Mend it first.",
            traceback="Traceback …\nKeyError: [red]",
        ),
    ),
}


def draw(screen: Callable[[Console], None]) -> str:
    stream = io.StringIO()
    screen(screens.make_console(stream, width=WIDTH))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def compare(golden: Path, drawn: str) -> None:
    if os.environ.get("UPDATE_SCREENS"):
        golden.write_text(drawn, encoding="utf-8")
    assert golden.exists(), f"{golden.name} is not there: UPDATE_SCREENS=1 writes it"
    assert drawn == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_equals_its_golden_copy(name: str) -> None:
    compare(FOLDER / f"{name}.txt", draw(SCREENS[name]))


def test_a_screen_that_changed_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UPDATE_SCREENS", raising=False)
    golden = tmp_path / "audit.txt"
    golden.write_text(draw(SCREENS["audit"]).replace("64", "65", 1), encoding="utf-8")
    with pytest.raises(AssertionError):
        compare(golden, draw(SCREENS["audit"]))


def test_no_golden_copy_is_left_of_a_screen_that_is_gone() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(SCREENS)


def test_the_short_form_begins_like_the_full_one_and_leaves_out_the_details() -> None:
    short, full = draw(SCREENS["predict-fits"]), draw(SCREENS["predict-fits-full"])
    assert short.split("\n\n")[0] == full.split("\n\n")[0]
    assert len(short.splitlines()) < 20 < len(full.splitlines())
    assert "Where the memory goes" in full and "Where the memory goes" not in short
    assert "the command has no {batch_size}" in draw(SCREENS["predict-as-given"]), (
        "warnings are never details"
    )


@pytest.mark.parametrize("name", ["predict-fits", "predict-out-of-memory", "predict-as-given"])
def test_a_prediction_has_at_most_15_lines_with_that_of_the_record_however_much_there_is_to_say(
    name: str,
) -> None:
    record = product.ALL[name]()
    assert record.prediction is not None
    long = " ".join(["many words"] * 30)
    others = (Diagnostic(f"warning-{n}", f"{n} {long}", "", "") for n in range(9))
    warnings = (Diagnostic("hidden-cap", long, long, long), *others)
    crowded = replace(
        record,
        prediction=replace(record.prediction, warnings=(*record.prediction.warnings, *warnings)),
    )
    shown = draw(lambda c: screens.show_record(c, crowded, full=False))
    assert len(shown.splitlines()) <= 14
    assert draw(SCREENS[name]).splitlines()[-1] == shown.splitlines()[-1], (
        "the command to use next stays"
    )
    more = " ".join(shown.split("more")[-1].split("--details")[0].split())
    assert "warning" in more and " notes" in more, "what is left out is counted"
    assert "warning-8" not in shown, "codes are for programs"
    assert "\nmemory " in shown, "numbers before warnings"
    details = draw(lambda c: screens.show_record(c, crowded))
    assert all(f"\n{n} {long[:20]}" in details for n in range(9)) and "Next (" in details


def test_a_plan_ends_with_the_command_to_paste_on_one_line_however_narrow_the_terminal() -> None:
    record = product.tune_on_cpu()
    assert record.plan is not None
    assert draw(SCREENS["tune-cpu"]).strip().splitlines()[-1] == record.plan.command_line


def test_what_comes_from_outside_is_printed_as_it_is_and_never_as_markup() -> None:
    for name in ("hostile", "hostile-run"):
        assert product.HOSTILE in draw(
            lambda c, name=name: screens.show_record(c, product.ALL[name]())
        )
    shown = draw(lambda c: screens.show_error(c, CommandFailed("[red]no colour[/red] [bold]")))
    assert "[red]no colour[/red] [bold]" in shown


def terminal(monkeypatch: pytest.MonkeyPatch, no_color: str | None, force: bool = True) -> str:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in (
        ("FORCE_COLOR", "1" if force else None),
        ("NO_COLOR", no_color),
    ):  # forced: as if it were a terminal
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(
            name, value
        )
    stream = io.StringIO()
    screens.show_record(screens.make_console(stream, width=WIDTH), product.tune_on_cpu())
    return stream.getvalue()


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[1;32m" in terminal(monkeypatch, None)
    assert "32m" not in terminal(monkeypatch, "1")


def test_a_stream_that_is_no_terminal_gets_no_escape_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in terminal(monkeypatch, None, force=False)


def test_showing_imports_no_torch() -> None:
    modules = ("console", "progress", "markdown", "html")
    code = (
        f"import sys, {', '.join(f'brimful.show.{name}' for name in modules)}; sys.exit('torch' "
        "in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run([sys.executable, "-c", f"import torch; {code}"], check=True, timeout=120)
