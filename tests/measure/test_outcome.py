"""Causes of death told apart."""

import dataclasses

from brimful.measure.outcome import Ending, outcome_of
from brimful.values import Failure, Outcome
from brimful_inside.wire import Report

CLEAN = Ending(
    exit_code=0, timed_out=False, over_host_limit=False, interrupted=False, oom_kills=0, rank_hellos=1, hellos=1, stderr_tail=""
)
REPORT = Report(
    rank=0, local_rank=0, world_size=1, device="cpu", device_name=None, device_total_bytes=None, torch_version="2.13.0",
    ended="script_ended", steps=3, warmup_steps=1, step_s=[], loading_s=[], micro_batches_per_step=[1, 1, 1],
    samples_per_step=[4, 4, 4], optimizers=[], loaders=[], phases={}, losses=[], worst_batch=None, peak_unphased=None,
    context_bytes=None, trace_file=None, approximations={}, notes=[], wrote=[],
)  # fmt: skip


def ending(**changes) -> Ending:
    return dataclasses.replace(CLEAN, **changes)


def failure(kind: str, caught: bool = False) -> Failure:
    return Failure(kind, "RuntimeError", "it broke", "Traceback ...", "train.py:3 in main", "train", 2, caught)


def report(**changes) -> Report:
    return dataclasses.replace(REPORT, **changes)


def outcome(end: Ending, reports=(REPORT,), failures=()) -> Outcome:
    return outcome_of(end, reports, failures)[0]


def test_an_ordinary_end_is_completed():
    assert outcome(CLEAN) is Outcome.COMPLETED


def test_no_step_is_not_a_completed_trial():
    assert outcome(CLEAN, [report(steps=0)]) is Outcome.NO_STEP


def test_out_of_memory_on_one_rank_explains_the_broken_connection_of_the_other():
    failures = [failure("crashed"), failure("out_of_device_memory")]
    assert outcome(ending(exit_code=1), failures=failures) is Outcome.OUT_OF_DEVICE_MEMORY


def test_an_out_of_memory_that_the_script_caught_is_no_failure():
    assert outcome(CLEAN, failures=[failure("out_of_device_memory", caught=True)]) is Outcome.COMPLETED


def test_a_crash_by_itself_is_not_memory():
    assert outcome(ending(exit_code=1), failures=[failure("crashed")]) is Outcome.CRASHED


def test_a_crash_after_the_measured_steps_takes_nothing_from_them():
    how, _, sentence = outcome_of(ending(exit_code=1), [report(ended="steps_done")], [failure("crashed")])
    assert how is Outcome.COMPLETED
    raised = failure("crashed")
    assert f"{raised.type}: {raised.message} ({raised.where})" in sentence


def test_out_of_memory_after_the_measured_steps_is_still_out_of_memory():
    failures = [failure("out_of_device_memory")]
    assert outcome(ending(exit_code=1), [report(ended="steps_done")], failures) is Outcome.OUT_OF_DEVICE_MEMORY


def test_signal_9_with_a_moved_counter_is_out_of_host_memory():
    assert outcome(ending(exit_code=-9, oom_kills=1), [report(ended="running")]) is Outcome.OUT_OF_HOST_MEMORY


def test_signal_9_without_a_moved_counter_is_killed_probably_for_memory():
    how, _, sentence = outcome_of(ending(exit_code=-9), [report(ended="running")], [])
    assert how is Outcome.KILLED
    assert "probably for memory" in sentence


def test_another_signal_is_not_said_to_be_memory():
    how, _, sentence = outcome_of(ending(exit_code=-11), [report(ended="running")], [])
    assert how is Outcome.KILLED
    assert "memory" not in sentence


def test_a_moved_counter_with_a_good_end_was_somebody_elses():
    assert outcome(ending(oom_kills=1)) is Outcome.COMPLETED


def test_a_face_of_out_of_memory_on_standard_error_is_recognised():
    words = "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes."
    assert outcome(ending(exit_code=1, stderr_tail=words), [report(ended="running")]) is Outcome.OUT_OF_HOST_MEMORY


def test_words_about_memory_in_a_good_run_are_not_a_failure():
    assert outcome(ending(stderr_tail="CUDA out of memory. Tried to allocate 2.00 GiB.")) is Outcome.COMPLETED


def test_no_hello_at_all_means_that_the_probe_not_loaded():
    assert outcome(ending(rank_hellos=0, hellos=0), []) is Outcome.PROBE_NOT_LOADED


def test_a_command_that_ends_well_without_a_rank_did_not_open_the_door():
    assert outcome(ending(rank_hellos=0, hellos=1), []) is Outcome.PROBE_NOT_LOADED


def test_running_into_the_time_limit_is_told():
    assert outcome(ending(exit_code=None, timed_out=True), [report(ended="running")]) is Outcome.TIMED_OUT


def test_a_time_limit_met_after_the_measured_steps_takes_nothing_from_them():
    assert outcome(ending(exit_code=None, timed_out=True), [report(ended="steps_done")]) is Outcome.COMPLETED


def test_an_interrupt_goes_before_everything():
    assert outcome(ending(interrupted=True), failures=[failure("out_of_device_memory")]) is Outcome.INTERRUPTED


def test_a_rank_without_the_probe_is_a_closed_door_and_not_a_crash():
    how, _, sentence = outcome_of(ending(exit_code=None, door_trouble="ImportError: x"), [], [])
    assert how is Outcome.PROBE_NOT_LOADED
    assert "ImportError: x" in sentence


def test_a_script_that_catches_out_of_memory_in_training_does_not_make_that_size_fit():
    failures = [failure("out_of_device_memory", caught=True)]
    assert outcome(CLEAN, [report(device="imaginary", ended="steps_done")], failures) is Outcome.OUT_OF_DEVICE_MEMORY


def test_what_a_real_cards_libraries_swallow_is_no_failure():
    failures = [failure("out_of_device_memory", caught=True)]
    assert outcome(CLEAN, [report(device="cuda:0", ended="steps_done")], failures) is Outcome.COMPLETED
