from __future__ import annotations

import pytest

from bench import replay_cost as bench
from brimful_inside.simulator.replay import Peaks, Played
from brimful_inside.simulator.trace import Malloc, Trace, encode_row
from tests.decide.programs import GIB, network


def text(trace: Trace) -> str:
    return "\n".join(['{"trace_version": 1}', *map(encode_row, trace.rows)])


def test_both_ways_are_timed_and_the_search_is_counted():
    cost = bench.cost_of(bench.laws_of([text(network(3).trace(size)) for size in (5, 12)], [5, 12]), 20 * GIB, turns=2)
    assert cost.allocator_s > 0 and cost.plain_s is not None and cost.plain_s > 0 and cost.search_s > 0
    assert cost.largest is not None and cost.replayed_whole > 3 and cost.too_large > 3


def test_a_quick_replay_that_shows_something_else_is_an_error(monkeypatch):
    laws = bench.laws_of([text(network(3).trace(size)) for size in (5, 12)], [5, 12])
    monkeypatch.setattr(bench, "play_plain", lambda *args, **kwargs: Played({"train": Peaks(1, 2)}, Peaks(1, 2)))
    with pytest.raises(ValueError, match="other peaks"):
        bench.cost_of(laws, 20 * GIB, turns=1)


def test_traces_without_laws_are_refused():
    with pytest.raises(ValueError, match="no laws"):
        bench.laws_of([text(Trace({}, [Malloc(1, 5, "a")])), text(Trace({}, [Malloc(1, 5, "b")]))], [5, 12])
