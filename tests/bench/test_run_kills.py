"""The bench of killed runs sees what is lost, and its smallest run loses nothing."""

import pytest

from bench import run_kills as bench

FINE = [("began", 1, 0), ("step", 1, 1), ("checkpoint", 1, 4), ("step", 1, 5), ("began", 2, 4)]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ([("step", 2, 5), ("checkpoint", 2, 8)], ""),
        ([("step", 1, 6)], "step 6 of a process after which another one had begun"),
        ([("began", 3, 0)], "a life began at step 0, after a checkpoint of step 4"),
        ([("overwrote", 2, 4)], "the checkpoint of step 4 was written again, after 4"),
    ],
)
def test_a_log_shows_what_was_lost(more, says):
    assert bench.wrong_in([*FINE, *more]) == ([says] if says else [])


def test_a_summary_counts_kills_and_names_what_is_wrong():
    kill = {"whom": "all", "by": "step", "step": 3, "again": "later"}
    row = {"kind": "torch", "refused": 1, "kills": [kill], "state": (120, [1.0]), "wrong": []}
    rows = [
        {**row, "role": "alone", "kills": []},
        {**row, "role": "killed"},
        {**row, "role": "killed", "state": (120, [2.0])},
        {**row, "role": "control", "wrong": ["a life began at step 0"]},
    ]
    result = bench.summary(rows)
    assert (result["trainings"], result["kills"], result["kills_by_whom"]) == (2, 2, {"all": 2})
    assert result["wrong"] == ["its last state is not that of one left alone"]
    assert result["controls_seen"] == "1 of 1"
    assert result["kills_by_script"]["torch"] == 2


@pytest.mark.heavy
def test_runs_without_torch_lose_nothing_and_the_control_is_seen_to():
    result = bench.summary(bench.all_rows(2, ["without torch"], seed=3))
    assert (result["kills"], result["wrong"], result["controls_seen"]) == (2, [], "1 of 1")
