"""What the verbs print: the keys of --json that programs rely on, and where else each answer
goes.
"""

import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brimful.cli import views
from brimful.codec import ANSWER_SCHEMA, answer, to_builtins
from brimful.errors import PartMissing, UsageError
from brimful.show.headline import headline
from brimful.show.queues import queue_text
from brimful.values import Record
from tests.brimful.show import product
from tests.brimful.show.test_queues import ASKED

PRINTED: dict[str, tuple[Callable[..., int], Callable[[], Record], str]] = {
    "predict": (
        views.show_prediction,
        product.predict_fits,
        "verdict batch_size peak phases not_seen largest_batch_size limited_by gpu budget method "
        "exact approximations worst_batch warnings cards alone_of speed breakdown "
        "phase_breakdowns what_if seconds next_command loading epoch record found_flags",
    ),
    "predict, too large": (views.show_prediction, product.predict_oom, "verdict what_if"),
    "audit": (
        views.show_audit,
        product.audit_record,
        "requested effective findings loading_share step_s peak peak_source "
        "phases cards not_seen notes host record found_flags",
    ),
    "tune": (
        views.show_plan,
        product.tune_on_cpu,
        "objective settings "
        "command_line verified trials out_of_memory_trials peak_bytes samples_per_s "
        "baseline_samples_per_s gain partial "
        "warnings batch_size device budget memory speed notes trial_results page record "
        "found_flags",
    ),
    "run": (
        views.show_run,
        product.run_restarted,
        "started attempts ended notes record found_flags",
    ),
}


def printed(capsys: pytest.CaptureFixture[str], name: str) -> tuple[int, dict[str, Any]]:
    show, make, _ = PRINTED[name]
    return show(make(), True), json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", PRINTED)
def test_an_answer_has_its_schema_and_the_keys_that_programs_read(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    _, value = printed(capsys, name)
    assert value["schema"] == ANSWER_SCHEMA == 2
    assert set(PRINTED[name][2].split()) <= set(value)


def test_an_answer_is_what_the_codec_makes_of_the_value(capsys: pytest.CaptureFixture[str]) -> None:
    code, value = printed(capsys, "predict")
    prediction = product.predict_fits().prediction
    assert value.items() >= json.loads(json.dumps(to_builtins(prediction))).items()
    assert code == 0 and printed(capsys, "predict, too large")[0] == 3
    peak, low = value["peak"], value["peak"]["device_interval_bytes"][0]
    assert low < peak["device_bytes"] == sum(value["breakdown"]["parts"].values())


def test_an_enumeration_is_its_value_and_what_is_absent_or_no_number_is_null() -> None:
    trial = product.script_raised().trials[0]
    value = json.loads(answer(replace(trial, loading_share=math.nan, failed_rank=None), file=None))
    assert (value["outcome"], value["loading_share"], value["failed_rank"], value["file"]) == (
        "crashed",
        None,
        None,
        None,
    )


def test_a_plan_has_its_batch_size_and_every_trial_in_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, value = printed(capsys, "tune")
    assert value["batch_size"] == 256 and value["command_line"] == "my-train --batch-size 256"
    assert value["trials"] == len(value["trial_results"]) == 11
    assert value["trial_results"][0]["trial"]["settings"] == {"batch_size": 64}
    assert value["trial_results"][0]["reports"] == [], "the record has them"


@pytest.mark.parametrize(("full", "more"), [(False, True), (True, False)])
def test_the_short_screen_names_the_way_to_the_rest(
    capsys: pytest.CaptureFixture[str], full: bool, more: bool
) -> None:
    views.show_prediction(product.predict_fits(), False, full)
    out, err = capsys.readouterr()
    assert ("--details" in err) is more
    assert ("Where the memory goes" in out) is full


@pytest.mark.parametrize("name", ["doctor", "gpus"])
def test_the_machine_and_the_cards_are_data_too(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert {"doctor": views.show_doctor, "gpus": lambda json: views.show_gpus(json, None)}[name](
        True
    ) == 0
    assert (
        set(json.loads(capsys.readouterr().out))
        == {
            "doctor": {"schema", "machine", "findings"},
            "gpus": {"schema", "gpus", "prices_per_h"},
        }[name]
    )


def test_the_end_of_a_run_says_nothing_again_that_was_said_while_it_ran(
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = product.run_restarted()
    views.show_run(record, False)
    shown = " ".join(capsys.readouterr().err.split())
    assert record.notes and not any(note.problem in shown for note in record.notes)
    assert "Attempts" in shown


@pytest.fixture
def without_altair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    for name in ("brimful.show.charts", "brimful.show.html"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def kept(tmp_path: Path) -> Record:
    """A record with a folder."""
    return replace(product.tune_on_cpu(), folder=str(tmp_path))


@pytest.mark.parametrize("show", [views.show_plan, views.show_comparison])
@pytest.mark.parametrize("json_too", [False, True])
def test_an_answer_is_shown_where_no_page_can_be_made(
    without_altair: None,
    capsys: pytest.CaptureFixture[str],
    kept: Record,
    show: Any,
    json_too: bool,
) -> None:
    record = kept if show is views.show_plan else replace(product.compared(), folder=kept.folder)
    assert show(record, json_too, True) == 0
    out, err = capsys.readouterr()
    assert "The page is left out: a page needs altair" in err
    assert json.loads(out)["page"] is None if json_too else headline(record).sentence[:30] in out


def test_a_report_without_what_draws_pages_is_its_text(
    without_altair: None, capsys: pytest.CaptureFixture[str], kept: Record, monkeypatch: Any
) -> None:
    monkeypatch.setattr(views, "read_record", lambda name, home: kept)
    assert views.show_report(None, None, "html", None, False) == 0
    out, err = capsys.readouterr()
    assert headline(kept).sentence[:30] in out and "The page is left out" in err
    with pytest.raises(PartMissing, match="altair"):
        views.show_report(None, Path("named.html"), "html", None, False)


def test_a_report_follows_no_link_in_a_record_and_leaves_that_of_another_user(
    kept: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, folder = tmp_path / "target", Path(kept.folder)
    target.write_text("of the user")
    (folder / "report.md").symlink_to(target)
    written = views.write(kept, "md", None)
    assert target.read_text() == "of the user" and written.read_text().startswith("**brimful")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(UsageError, match="another user"):
        views.write(kept, "text", None)
    assert not (folder / "report.text").exists()
    views.write(kept, "text", target)
    assert target.read_text() != "of the user", "the user named it"


def test_words_that_are_no_utf_8_are_shown_and_written(kept: Record) -> None:
    record = replace(kept, opened=replace(kept.opened, brimful_argv=("run", "\udcff\udcfe")))
    for format in ("md", "html", "text"):
        assert views.write(record, format, None).stat().st_size > 500


def test_what_is_asked_of_a_queue_stands_alone_on_standard_output(capsys):
    record, text = product.predict_fits(), queue_text(ASKED, "slurm")
    assert views.show_request(record, ASKED, "slurm", json=False, full=True) == 0
    out, err = capsys.readouterr()
    assert out == text + "\n" and headline(record).sentence[:40] in err and record.folder in err
    views.show_request(record, ASKED, "slurm", json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["text"] == text and printed["gpu"]["key"] == "a100-80gb"
    assert printed["host_bytes"]["source"] == "estimate"
    views.show_request(record, ASKED, None, json=False)
    assert "A100" in (out := capsys.readouterr().out) and "#" not in out
