from __future__ import annotations

import pytest

from bench import replay_cost as bench
from brimful_inside.simulator.trace import Malloc, Trace, encode_row
from tests.brimful.decide.programs import GIB, network


def text(trace: Trace) -> str:
    return "\n".join(['{"trace_version": 1}', *map(encode_row, trace.rows)])


def test_a_replay_is_timed_and_the_search_is_counted():
    cost = bench.cost_of(
        bench.model_of([text(network(3).trace(size)) for size in (5, 12)], [5, 12]),
        20 * GIB,
        turns=2,
    )
    assert cost.replay_s > 0 and cost.search_s > 0
    assert cost.largest is not None and cost.replayed_whole > 3 and cost.too_large > 3


def test_traces_with_different_events_are_refused():
    with pytest.raises(ValueError, match="differ in the order"):
        bench.model_of(
            [text(Trace({}, [Malloc(1, 5, "a")])), text(Trace({}, [Malloc(1, 5, "b")]))], [5, 12]
        )
