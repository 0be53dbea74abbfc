"""What a script may call, with and without brimful."""

import subprocess
import sys

import pytest

from brimful_inside import script
from brimful_inside.probe import context as context_module
from brimful_inside.probe.context import ProcessContext
from brimful_inside.wire import TrialConfig


@pytest.fixture
def planned(monkeypatch, tmp_path):
    settings = {
        "batch_size": 96,
        "lr": "0.01",
        "amp": "off",
        "name": 5,
        "workers": "4",
        "odd": "x",
        "half": 2.5,
    }
    context = ProcessContext(
        TrialConfig(folder=str(tmp_path), device="cpu", settings=settings), "rank"
    )
    monkeypatch.setattr(context_module, "_current", context)
    return context


def test_without_brimful_the_default_is_given_and_a_phase_is_nothing(monkeypatch):
    monkeypatch.setattr(context_module, "_current", None)
    assert script.setting("batch_size", 64) == 64
    with script.phase("encoding") as phase:
        phase.cached = True
    assert not script.is_imaginary() and not script.keeps_writes_out()


@pytest.mark.parametrize(
    ("device", "keep_out"), [("cpu", True), ("accelerator", False), ("imaginary", True)]
)
def test_a_script_may_know_that_its_card_is_imaginary_and_that_its_writes_are_kept_out(
    monkeypatch, tmp_path, device, keep_out
):
    config = TrialConfig(folder=str(tmp_path), device=device, keep_out=keep_out)
    monkeypatch.setattr(context_module, "_current", ProcessContext(config, "rank"))
    assert (
        script.is_imaginary() is (device == "imaginary") and script.keeps_writes_out() is keep_out
    )


@pytest.mark.parametrize(
    ("name", "default", "value"),
    [
        ("batch_size", 64, 96),
        ("batch_size", None, 96),
        ("lr", 1e-3, 0.01),
        ("amp", True, False),
        ("name", "a", "5"),
        ("workers", 0, 4),
    ],
)
def test_the_planned_value_comes_in_the_type_of_the_default(planned, name, default, value):
    given = script.setting(name, default)
    assert (given, type(given), planned.notes) == (value, type(value), [])


@pytest.mark.parametrize(
    ("name", "default"), [("odd", 3), ("half", 3), ("odd", False), ("batchsize", 8)]
)
def test_a_value_of_another_type_and_an_unknown_name_are_noted(planned, name, default):
    assert script.setting(name, default) is default
    assert len(planned.notes) == 1 and repr(name) in planned.notes[0]
    assert name != "batchsize" or "batch_size" in planned.notes[0]


def test_it_needs_no_torch():
    code = "import sys; import brimful_inside.script; print('torch' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )


def test_the_batch_size_that_the_script_was_asked_for_is_kept_for_the_report(planned):
    script.report_batch_asked(8192)
    assert planned.batch_asked == 8192
