from __future__ import annotations

import os
from collections import namedtuple

import psutil
import pytest

from brimful.measure import other_load
from brimful.measure.other_load import OtherLoad
from brimful.measure.process_tree import ProcessTree

Times = namedtuple("Times", "user system idle iowait steal guest")


@pytest.fixture
def machine(monkeypatch):
    """Two cores, of which each second one process of the command takes 0.5 s and others `others` s."""
    state = {"now": 0.0, "others": 0.0}
    monkeypatch.setattr(other_load.time, "monotonic", lambda: state["now"])
    monkeypatch.setattr(other_load, "_own_s", lambda: 0.0)
    monkeypatch.setattr(other_load, "_cores", lambda: [0, 1])

    def cpu_times(percpu):
        now, others = state["now"], state["others"]
        return [Times(0.5 * now, 0, 0.5 * now, 3.0, 0, 0), Times(0, 0, now - others * now, 0, others * now, 0)]

    monkeypatch.setattr(psutil, "cpu_times", cpu_times)
    tree = ProcessTree(os.getpid(), "/nowhere")
    monkeypatch.setattr(tree, "processor_s", lambda: 0.5 * state["now"])
    return state, tree


@pytest.mark.parametrize(("others", "share"), [(0.0, 0.0), (0.6, 0.3)])
def test_what_others_take_is_all_that_the_cores_do_but_the_commands_own_and_stolen_time_is_others(machine, others, share):
    state, tree = machine
    load = OtherLoad(tree)
    state |= {"now": 10.0, "others": others}
    assert load.share() == pytest.approx(share)


def test_too_short_a_time_says_nothing(machine):
    state, tree = machine
    load = OtherLoad(tree)
    state["now"] = 0.5
    assert load.share() is None


def test_a_process_that_has_ended_counts_as_it_was_last_seen():
    tree = ProcessTree(os.getpid(), "/nowhere")
    tree.members()
    seen = tree.processor_s()
    assert seen > 0
    tree._known = {}
    assert tree.processor_s() >= seen
