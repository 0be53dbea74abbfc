"""The rows that every view prints."""

from __future__ import annotations

from dataclasses import replace

from brimful.show import facts
from brimful.values import Budget, Outcome, PhasePeak, Source, TrialKind
from tests.show import pieces, records


def test_the_phases_shown_are_of_the_true_memory_trial_nearest_to_the_plan() -> None:
    basis, rows = facts.phase_rows(records.tune_on_cpu())
    assert basis == "at batch size 64, trial 1"  # 48 was run for its speed alone, where host memory is not true
    assert [row.name for row in rows] == ["train", "eval"]
    assert facts.phase_rows(records.tune_on_card())[0] == "at batch size 1,181, trial 4"


def test_an_evaluation_that_was_looked_for_and_not_reached_is_not_seen() -> None:
    record = records.tune_on_card()
    samples = tuple(replace(s, phases={"train": s.phases["train"]}) for s in record.trials)
    rows = facts.phase_rows(replace(record, trials=samples))[1]
    assert [(row.name, row.seen) for row in rows] == [("train", True), ("eval", False)]
    unasked = tuple(replace(s, trial=replace(s.trial, see_eval=False)) for s in samples)
    assert [row.name for row in facts.phase_rows(replace(record, trials=unasked))[1]] == ["train"]


def test_a_cached_phase_has_no_share_of_the_budget() -> None:
    cached = PhasePeak(0, 0, 1449 * pieces.MIB, None, cached=True)
    record = records.tune_on_card()
    samples = (*record.trials[:-1], replace(record.trials[-1], phases={"encoding": cached, "eval": cached}))
    row = facts.phase_rows(replace(record, trials=samples))[1][0]
    assert row.share is None and "cached" in row.note


def test_before_and_after_needs_both_speeds_measured() -> None:
    record = records.tune_on_cpu()
    assert [row.quantity for row in facts.change_rows(record)] == ["batch size", "speed", "time of a step", "peak host memory"]
    assert record.plan is not None
    assert facts.change_rows(replace(record, plan=replace(record.plan, baseline_samples_per_s=None))) == []
    assert facts.change_rows(records.tune_on_card()) == []


def test_before_and_after_compares_the_same_memory_or_none() -> None:
    record = records.tune_on_cpu()
    on_card = tuple(replace(s, peak=pieces.peak_on_card(64)) if s.trial.kind is TrialKind.MEMORY else s for s in record.trials)
    extra = pieces.sample(13, TrialKind.MEMORY, 48)  # host memory, where the user's own was seen on a device
    changed = facts.change_rows(replace(record, trials=(*on_card, extra)))
    assert not any(row.quantity.startswith("peak") for row in changed)


def test_a_peak_of_an_imaginary_card_is_predicted_and_of_this_machine_measured() -> None:
    assert {row.peak.source for row in facts.trial_rows(records.tune_on_card())} == {Source.PREDICTED}
    assert {row.peak.source for row in facts.trial_rows(records.tune_on_cpu())} == {Source.MEASURED}


def test_host_memory_of_a_timed_trial_says_that_freed_memory_is_in_it() -> None:
    rows = facts.trial_rows(records.tune_on_cpu())
    assert [row.peak.note for row in rows if row.kind == "memory"] == [None] * 4
    assert all(row.peak.note for row in rows if row.kind == "speed")


def test_a_trial_shows_the_memory_that_the_budget_is_about() -> None:
    both = replace(pieces.peak_on_card(64), host_bytes=5 * pieces.GIB)
    sample = pieces.sample(1, TrialKind.MEMORY, 64, peak=both)
    for memory in ("device", "host"):
        opened = pieces.opened(budget=Budget(2**34, 2**34, 2**34, memory, "given"))
        record = replace(records.empty_record(), opened=opened, trials=(sample,))
        assert facts.trial_rows(record)[0].memory == memory


def test_a_trial_that_did_not_complete_says_why() -> None:
    timed_out = pieces.sample(1, TrialKind.SPEED, 64, outcome=Outcome.TIMED_OUT, exit_code=-15)
    row = facts.trial_rows(replace(records.empty_record(), trials=(timed_out,)))[0]
    assert (row.completed, row.outcome, row.why) == (False, "timed out", "ended by signal 15")
