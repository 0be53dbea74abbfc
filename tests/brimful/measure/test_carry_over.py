"""What a script prepares before it trains is handed on; what it writes later is not."""

import dataclasses
import os
from pathlib import Path

import pytest

from brimful.measure.carry_over import KEPT_OUT, carry_over_files, scan_files
from brimful.values import Outcome, TrialKind
from tests.brimful.measure.helper import REPORT
from tests.brimful.show.product import trial_result

FIRST_STEP = 1_000_000.0


@pytest.fixture
def record(tmp_path):
    return tmp_path / "record"


def kept(record: Path, trial: str, absolute: Path, text: str, written_at: float) -> Path:
    path = record / trial / KEPT_OUT / absolute.relative_to("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (written_at, written_at))
    return path


def result(trial: str, first_step: float | None):
    return dataclasses.replace(
        trial_result(8, TrialKind.MEMORY),
        folder=trial,
        reports=(dataclasses.replace(REPORT, first_step_unix_s=first_step),),
    )


@pytest.mark.parametrize(
    ("written_at", "users_own", "first_step", "carried"),
    [
        (FIRST_STEP - 5, False, FIRST_STEP, True),  # prepared before training
        (FIRST_STEP + 1, False, FIRST_STEP, False),  # a checkpoint
        (FIRST_STEP - 5, True, FIRST_STEP, False),  # a changed copy of the user's file
        (FIRST_STEP - 5, False, None, False),  # of a trial that never trained
    ],
)
def test_files_made_before_the_first_step_are_there_for_the_next_trial(
    record, tmp_path, written_at, users_own, first_step, carried
):
    path = tmp_path / "data" / "AB12.png"
    if users_own:
        path.parent.mkdir()
        path.write_text("the user's")
    kept(record, "trial-001", path, "made", written_at)
    carry_over_files([result("trial-001", first_step)], record, record / "trial-002")
    assert (record / "trial-002" / KEPT_OUT / path.relative_to("/")).exists() == carried
    assert path.exists() == users_own


def test_marks_of_removed_files_are_not_handed_on(record, tmp_path):
    mark = record / "trial-001" / KEPT_OUT / ".gone" / "x.gone"
    mark.parent.mkdir(parents=True)
    mark.write_text("")
    os.utime(mark, (1, 1))
    carry_over_files([result("trial-001", FIRST_STEP)], record, record / "trial-002")
    assert not (record / "trial-002").exists()


def test_the_files_of_earlier_trials_are_named_the_newest_last_however_they_ended(tmp_path):
    results = [
        dataclasses.replace(
            trial_result(8, TrialKind.TRACE), folder=f"trial-00{n}", outcome=outcome
        )
        for n, outcome in enumerate([Outcome.KILLED, Outcome.COMPLETED, Outcome.COMPLETED], 1)
    ]
    names = ["trial-001/scans-9.jsonl", "trial-003/scans-7.jsonl", "trial-003/scans-8.jsonl"]
    for name in [*names, "trial-003/wire-7.jsonl", "trial-004/scans-1.jsonl"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert scan_files(results, tmp_path) == tuple(tmp_path / name for name in names), (
        "a trial without a folder has none"
    )
    assert scan_files([], tmp_path) == ()
