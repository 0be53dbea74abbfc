"""What the verbs print: the keys of --json that programs rely on, and where else each answer
goes.
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from brimful.cli import views
from brimful.codec import ANSWER_SCHEMA, answer, to_builtins
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
        lambda record, json: views.show_plan(record, json, False),
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
