"""What a run does after it ran out of memory, decided from values alone."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from brimful.decide.run.next_batch_size import Known
from brimful.values import Attempt, Command, Failure, Outcome, PlannedSetting, Report, RunStarted, Source
from brimful.verbs import restart

COMMAND = Command(("python", "train.py", "{batch_size}"))
ROWS = (PlannedSetting("batch_size", 64, 64, "as the command says", Source.MEASURED),)
STARTED = RunStarted("command", "the command as it stands", None, 10, (), 90.0)
FULL = Failure(
    "out_of_device_memory", "torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.",
    "Traceback (most recent call last):\n  ...\ntorch.OutOfMemoryError", "/home/u/train.py:41 in train", "train", 8211, False,
)  # fmt: skip


def attempt(**changes) -> Attempt:
    fields = {
        "number": 1, "settings": ROWS, "argv": ("python", "train.py"), "environment": {}, "resumed": None, "steps": 146_000,
        "outcome": Outcome.COMPLETED, "started_unix_s": 0.0, "duration_s": 29_200.0, "folder": "attempt-001", "exit_code": 0,
    }  # fmt: skip
    return Attempt(**(fields | changes))


FELL = attempt(outcome=Outcome.OUT_OF_DEVICE_MEMORY, failure=FULL, exit_code=1, settings=ROWS)


def decided(**changes) -> restart.Again | str:
    return restart.decide(replace(FELL, **changes), COMMAND, ROWS, STARTED, Known(), reachable=True)


def test_memory_that_ran_out_leads_to_a_smaller_size():
    assert isinstance(decided(), restart.Again)


def test_an_engine_that_went_down_to_one_sample_by_itself_gets_no_smaller_size():
    said = "A single sample does not fit into memory in training: CUDA out of memory"
    answer = decided(failure=replace(FULL, type="brimful.errors.DoesNotFit", message=said))
    assert isinstance(answer, str)
    assert said in answer and "No smaller batch size would help" in answer


def test_an_exit_code_of_a_scripts_own_has_no_meaning():
    crashed = replace(FELL, outcome=Outcome.CRASHED, failure=None, exit_code=3, notes=("no DataLoader was used",))
    assert "has no set meaning" in restart.reason(crashed)
    assert "DataLoader" not in restart.reason(crashed)
    assert restart.reason(replace(crashed, outcome=Outcome.KILLED, notes=("killed, probably for memory",))) == (
        ": killed, probably for memory"
    )


def test_a_command_that_ended_well_without_a_step_is_said_to_have_trained_nothing():
    seen = (cast(Report, object()),)
    advice = restart.nothing_trained(attempt(steps=0, reports=seen))
    assert advice is not None
    assert "0 optimizer steps" in advice.problem and "checkpoint" in advice.explanation and advice.suggestion


def test_a_command_that_stepped_or_of_which_nothing_was_seen_is_not():
    assert restart.nothing_trained(attempt(steps=1, reports=(cast(Report, object()),))) is None
    assert restart.nothing_trained(attempt(steps=0, reports=())) is None
