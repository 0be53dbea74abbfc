"""The bench of killed trainings sees what is lost, and its smallest runs lose nothing."""

import json

import pytest

from bench import kills as bench
from bench.kills_train import COMPARED, newest

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
    kill = {"whom": "all", "by": "step", "step": 3, "writing": False, "again": "later"}
    row = {"kind": "torch", "refused": 1, "kills": [kill], "state": (120, [1.0]), "wrong": []}
    rows = [
        {**row, "role": "alone", "kills": []},
        {**row, "role": "killed"},
        {**row, "role": "killed", "state": (120, [2.0])},
        {**row, "role": "control", "state": (120, [2.0])},
    ]
    result = bench.summary(rows)
    assert (result["trainings"], result["kills"]) == ({"torch": 2}, {"torch": 2})
    assert result["kills_by_whom"] == {"all": 2} and result["controls_seen"] == 1
    assert result["wrong"] == ["its last state is not that of one left alone"]


@pytest.mark.parametrize("of", [*COMPARED, "files"])
def test_whatever_a_later_step_depends_on_makes_another_state_of_the_engine(tmp_path, of):
    def state(of):
        tree = {name: "other" if name == of else name for name in (*COMPARED, "settings")}
        content = {"step": 4, "tree": tree, "files": {"a": {}}}
        folder = tmp_path / str(of) / "step-0000000004-save-00001"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps(content))
        (folder / "a").write_text("other" if of == "files" else "a")
        return newest(folder.parent)

    assert state(of) != state(None) == state("settings")


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["engine", "without torch"])
def test_killed_trainings_lose_nothing_and_the_control_is_seen_to(kind):
    result = bench.summary(bench.all_rows(2, [kind], seed=3))
    assert (result["kills"], result["wrong"], result["controls_seen"]) == ({kind: 2}, [], 1)
