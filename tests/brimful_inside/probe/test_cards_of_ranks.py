"""Which cards a process sees, and what its traces are called."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from brimful_inside.probe.memory.device_memory import _open_trace, visible_cards
from brimful_inside.probe.process import exit
from brimful_inside.wire import ALONE_VARIABLE


@pytest.mark.parametrize(
    ("named", "seen"), [(None, 4), ("0", 1), ("2,3", 2), ("0,1,2,3,4,5", 4), ("", 1), ("GPU-1f2e", 1)]
)  # fmt: skip
def test_the_environment_leaves_some_of_the_cards(named, seen):
    assert visible_cards(4, {} if named is None else {"CUDA_VISIBLE_DEVICES": named}) == seen


def test_a_ranks_first_card_has_the_ranks_trace_and_others_say_which(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "2")
    context = SimpleNamespace(role="rank", config=SimpleNamespace(folder=str(tmp_path)))
    names = []
    for index in (None, 0, None):
        file, name = _open_trace(context, index)
        file.close()
        names.append(name)
    assert names == ["trace-2.jsonl", "trace-2-cuda0.jsonl", f"trace-2-{os.getpid()}.jsonl"]


def test_a_rank_that_was_started_alone_waits_for_nobody(monkeypatch):
    monkeypatch.setattr(exit, "world", lambda: (3, 64))
    assert exit.others() == 63
    monkeypatch.setenv(ALONE_VARIABLE, "1")
    assert exit.others() == 0
