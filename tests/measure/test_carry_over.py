"""What a script prepares before it trains is handed on; what it writes later is not."""

import dataclasses
import os
from pathlib import Path

import pytest

from brimful.measure.carry_over import KEPT_OUT, carry_over_files, scan_files
from brimful.values import Outcome, TrialKind
from tests.measure.helper import REPORT
from tests.show.product import trial_result

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
        trial_result(8, TrialKind.MEMORY), folder=trial, reports=(dataclasses.replace(REPORT, first_step_unix_s=first_step),)
    )


def handed_on(record: Path, absolute: Path) -> Path:
    return record / "trial-002" / KEPT_OUT / absolute.relative_to("/")


def test_a_file_made_before_the_first_step_is_there_for_the_next_trial(record, tmp_path):
    image = tmp_path / "images" / "AB12.png"
    kept(record, "trial-001", image, "png", FIRST_STEP - 5)
    carry_over_files([result("trial-001", FIRST_STEP)], record, record / "trial-002")
    assert handed_on(record, image).read_text() == "png"
    assert not image.exists()


def test_a_checkpoint_written_after_the_first_step_is_not_handed_on(record, tmp_path):
    checkpoint = tmp_path / "last.pt"
    kept(record, "trial-001", checkpoint, "weights", FIRST_STEP + 1)
    carry_over_files([result("trial-001", FIRST_STEP)], record, record / "trial-002")
    assert not handed_on(record, checkpoint).exists()


def test_a_changed_copy_of_a_file_of_the_users_is_not_handed_on(record, tmp_path):
    config = tmp_path / "config.json"
    config.write_text("the user's")
    kept(record, "trial-001", config, "changed", FIRST_STEP - 5)
    carry_over_files([result("trial-001", FIRST_STEP)], record, record / "trial-002")
    assert not handed_on(record, config).exists()


def test_marks_of_removed_files_are_not_handed_on(record, tmp_path):
    mark = record / "trial-001" / KEPT_OUT / ".gone" / "x.gone"
    mark.parent.mkdir(parents=True)
    mark.write_text("")
    os.utime(mark, (1, 1))
    carry_over_files([result("trial-001", FIRST_STEP)], record, record / "trial-002")
    assert not (record / "trial-002").exists()


def test_a_trial_that_never_trained_hands_nothing_on(record, tmp_path):
    kept(record, "trial-001", tmp_path / "half.bin", "half", FIRST_STEP - 5)
    carry_over_files([result("trial-001", None)], record, record / "trial-002")
    assert not (record / "trial-002").exists()


def test_the_files_of_earlier_trials_are_named_the_newest_last_however_they_ended(tmp_path):
    results = [
        dataclasses.replace(trial_result(8, TrialKind.TRACE), folder=f"trial-00{n}", outcome=outcome)
        for n, outcome in enumerate([Outcome.KILLED, Outcome.COMPLETED, Outcome.COMPLETED], 1)
    ]
    names = ["trial-001/scans-9.jsonl", "trial-003/scans-7.jsonl", "trial-003/scans-8.jsonl"]
    for name in [*names, "trial-003/wire-7.jsonl", "trial-004/scans-1.jsonl"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert scan_files(results, tmp_path) == tuple(tmp_path / name for name in names), "a trial without a folder has none"
    assert scan_files([], tmp_path) == ()
