"""What came out, in one sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brimful.show.verdict import of_plan, of_prediction, of_record, reason
from brimful.values import Closed, Objective, Outcome, TrialKind
from tests.show import pieces, records

SENTENCES = {
    "tune-cpu": (
        "good",
        "Batch size 48 trains fastest within memory on this CPU: 308 samples/s, 1.41 × the 218 of your own settings, ",
    ),
    "tune-card": (
        "good",
        "Batch size 1,181 is the largest that fits on NVIDIA GeForce RTX 3080: a predicted peak of 17.8 GiB of ",
    ),
    "tune-failures": (
        "unfinished",
        "Interrupted after 5 trials; no result was reached. The largest batch size that ran is 64.",
    ),
    "predict-fits": (
        "good",
        "Batch size 1,024 fits NVIDIA A100-PCIE-40GB: a predicted peak of 14.7 GiB (14.5 to 15.2 GiB) of ",
    ),
    "predict-oom": ("bad", "Batch size 1,600 does not fit NVIDIA GeForce RTX 3080: "),
    "audit": ("note", "3 findings: asked for 64, the command trains on 16 samples in each step."),
    "audit-clean": ("good", "No findings: the command does what it was asked, 64 samples in each step."),
    "failed": ("bad", "No result: in trial 1, the script failed: RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
    "torn": ("unfinished", "Cut off after 2 trials; no result was reached. The largest batch size that ran is 64."),
    "empty": ("unfinished", "Nothing was measured: this record holds no trial."),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_the_verdict_of(name: str) -> None:
    tone, start = SENTENCES[name]
    verdict = of_record(records.ALL[name]())
    assert verdict.tone == tone
    assert verdict.sentence.startswith(start), verdict.sentence
    assert verdict.sentence.endswith(".")


def test_the_fastest_size_is_told_with_the_largest_that_fits() -> None:
    record = records.ALL["tune-cpu"]()
    assert record.memory is not None
    assert of_record(record).sentence.endswith(f"; the largest that fits is {record.memory.largest_batch_size:,}.")
    unknown = replace(record, memory=replace(record.memory, largest_batch_size=None))
    assert "largest that fits" not in of_record(unknown).sentence
    assert "largest that fits is" not in of_record(records.ALL["tune-card"]()).sentence  # it says so of itself


def test_a_plan_that_no_trial_confirmed_says_so() -> None:
    verdict = of_plan(replace(pieces.plan(), verified=False))
    assert verdict.tone == "note" and verdict.sentence.endswith("No trial has confirmed it.")


def test_fastest_is_not_claimed_where_no_speed_was_measured() -> None:
    plan = replace(pieces.plan(), objective=Objective.FASTEST, samples_per_s=None, baseline_samples_per_s=None)
    assert "fastest" not in of_plan(plan).sentence


def test_a_plan_without_any_size_that_fits_is_bad_news() -> None:
    settings = tuple(replace(s, effective=None) if s.name == "batch_size" else s for s in pieces.plan().settings)
    assert of_plan(replace(pieces.plan(), settings=settings)).tone == "bad"


def test_a_prediction_of_the_largest_says_that_it_is_the_largest() -> None:
    open_question = replace(pieces.prediction(), batch_size=2470)
    assert of_prediction(open_question).sentence.endswith("; it is the largest that fits.")
    nothing = replace(open_question, batch_size=None, largest_batch_size=None, peak=None, verdict="out_of_memory")
    assert (
        of_prediction(nothing).sentence
        == "No batch size fits NVIDIA A100-PCIE-40GB: not even the smallest stays within 35.4 GiB."
    )


def test_a_record_that_only_ended_with_a_message_shows_it() -> None:
    record = replace(records.empty_record(), closed=Closed(2, 0.0, "the placeholder {lr} is set by nobody."))
    assert of_record(record).sentence == "The placeholder {lr} is set by nobody."


def test_a_trial_ended_by_a_signal_names_it() -> None:
    killed = pieces.sample(1, TrialKind.MEMORY, 64, outcome=Outcome.KILLED, exit_code=-9)
    assert reason(killed) == "ended by signal 9"
    assert reason(pieces.sample(1, TrialKind.MEMORY, 64)) == ""


def test_a_speed_within_the_noise_of_the_users_own_is_not_called_faster() -> None:
    plan = pieces.plan()
    assert plan.baseline_samples_per_s is not None and plan.samples_per_s is not None
    apart = replace(plan, baseline_samples_per_s=replace(plan.baseline_samples_per_s, low=200.0, high=220.0))
    near = replace(plan, baseline_samples_per_s=replace(plan.baseline_samples_per_s, low=100.0, high=plan.samples_per_s.value))
    assert "1.41 × the 218" in of_plan(apart).sentence
    assert "not clearly different from the 218" in of_plan(near).sentence
    assert "×" not in of_plan(near).sentence
    same = replace(plan, baseline_samples_per_s=plan.samples_per_s)
    assert "as with your own settings" in of_plan(same).sentence


def test_a_command_that_puts_nothing_on_the_card_does_not_fit_it_and_says_so() -> None:
    said = pieces.prediction()
    assert said.peak is not None
    verdict = of_prediction(replace(said, peak=replace(said.peak, reserved_bytes=0)))
    assert (verdict.tone, "trains on the host" in verdict.sentence) == ("note", True)
