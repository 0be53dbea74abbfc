"""Which files of earlier trials are handed on to the next one."""

import dataclasses

from brimful.measure.scanned import files_of

from brimful.values import Outcome, TrialKind
from tests.show.product import trial_result


def test_the_files_of_earlier_trials_are_named_the_newest_last_however_they_ended(tmp_path):
    samples = [
        dataclasses.replace(trial_result(8, TrialKind.TRACE), folder=f"trial-00{n}", outcome=outcome)
        for n, outcome in enumerate([Outcome.KILLED, Outcome.COMPLETED, Outcome.COMPLETED], 1)
    ]
    names = ["trial-001/scans-9.jsonl", "trial-003/scans-7.jsonl", "trial-003/scans-8.jsonl"]
    for name in [*names, "trial-003/wire-7.jsonl", "trial-004/scans-1.jsonl"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert files_of(samples, tmp_path) == tuple(tmp_path / name for name in names), "a trial without a folder has none"
    assert files_of([], tmp_path) == ()
