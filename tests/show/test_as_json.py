"""The JSON of the verbs: keys that others rely on, and values that JSON can carry."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from brimful.show import as_json
from tests.show import pieces, records

ANSWERS: dict[str, Callable[[], dict[str, Any]]] = {
    "prediction": lambda: as_json.prediction_json(pieces.prediction()),
    "audit": lambda: as_json.audit_json(records.audit()),
    "gpus": lambda: as_json.gpus_json((pieces.gpu(), pieces.a100())),
    "doctor": lambda: as_json.doctor_json(pieces.machine(), pieces.plan().warnings),
    "error": lambda: as_json.error_json("usage", 2, "problem"),
    **{f"plan {name}": (lambda make=make: as_json.plan_json(make())) for name, make in records.ALL.items()},
}


def keys(value: Any, path: str = "") -> set[str]:
    """Every path of keys in a JSON value, list items as []."""
    if isinstance(value, dict):
        return {path} | {inner for name, item in value.items() for inner in keys(item, f"{path}.{name}")}
    if isinstance(value, list):
        return {path} | {inner for item in value for inner in keys(item, f"{path}[]")}
    return {path}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_plain_json_with_its_schema(name: str) -> None:
    answer = ANSWERS[name]()
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer  # no tuples, no enumerations, no NaN
    assert answer["schema"] == 1


def test_a_prediction_has_the_keys_that_scripts_read() -> None:
    peaks = {f"{p}.{name}" for p in ("peak", "phases.train") for name in ("allocated_bytes", "reserved_bytes", "device_bytes")}
    promised = peaks | {
        "schema", "verdict", "batch_size", "peak.interval_bytes", "phases", "not_seen", "largest_batch_size", "gpu.total_bytes",
        "gpu.context_bytes", "gpu.name", "seconds", "worst_batch.what", "budget.bytes", "gpu.context_source", "peak.source",
    }  # fmt: skip
    assert promised <= {path.removeprefix(".") for path in keys(ANSWERS["prediction"]())}


def test_the_interval_of_a_prediction_is_the_device_peaks() -> None:
    answer = as_json.prediction_json(pieces.prediction())
    low, high = answer["peak"]["interval_bytes"]
    assert low < answer["peak"]["device_bytes"] < high
    assert answer["gpu"]["context_bytes"] == answer["peak"]["device_bytes"] - answer["peak"]["reserved_bytes"]


def test_an_answer_without_a_batch_size_that_fits_has_null_and_not_nought() -> None:
    answer = as_json.prediction_json(
        replace(pieces.prediction(), batch_size=None, peak=None, largest_batch_size=None, phases={})
    )
    assert answer["peak"] is None and answer["batch_size"] is None and answer["largest_batch_size"] is None


def test_an_audit_has_the_keys_that_scripts_read() -> None:
    answer = as_json.audit_json(records.audit())
    assert answer["requested"] == {"batch_size": 64}
    assert answer["effective"] == {
        "loader_batch_size": 2,
        "batches_per_step": 8.0,
        "ranks": 1,
        "samples_per_step": 16.0,
    }
    assert answer["samples_per_step_source"] == "measured"
    assert [set(finding) for finding in answer["findings"]] == [{"code", "problem", "explanation", "suggestion"}] * 3
    assert answer["time"] == {"loading_share": 0.41, "step_s": 0.183}


def test_a_plan_tells_its_command_its_trials_and_what_they_showed() -> None:
    answer = as_json.plan_json(records.tune_on_cpu())
    assert answer["batch_size"] == 48 and answer["verified"] is True
    assert answer["trials"] == len(answer["trials_in_order"]) == 12 and answer["out_of_memory_trials"] == 0
    assert answer["command_line"].endswith("--batch-size 48 --workers 2")
    assert answer["environment"] == pieces.MALLOC
    assert answer["memory"]["probes"][0]["batch_size"] == 8
    assert answer["record"]["folder"] == ".brimful/20260725-172000-captcha"
    assert answer["record"]["exit_code"] == 0


def test_a_tune_without_a_plan_has_the_same_keys() -> None:
    whole, cut = as_json.plan_json(records.tune_on_cpu()), as_json.plan_json(records.torn_record())
    assert set(whole) == set(cut)
    assert cut["batch_size"] is None and cut["trials"] is None and cut["record"]["torn"] is True


def test_a_trial_that_failed_says_why() -> None:
    trials = as_json.plan_json(records.tune_with_failures())["trials_in_order"]
    assert trials[1]["outcome"] == "out_of_device_memory"
    assert trials[1]["reason"].startswith("torch.OutOfMemoryError: CUDA out of memory.")
    assert trials[0]["reason"] is None


def test_a_plan_names_the_largest_size_that_fits_beside_the_one_that_it_takes() -> None:
    answer = as_json.plan_json(records.ALL["tune-cpu"]())
    assert answer["largest_batch_size"] == answer["memory"]["largest_batch_size"] > answer["batch_size"]
