from __future__ import annotations

from brimful.decide.memory.program import program_of
from brimful_inside.simulator.trace import (
    EmptyCache,
    EmptyPool,
    Free,
    Malloc,
    Phase,
    Pool,
    Ready,
    ReleasePool,
    Retire,
    Step,
    Stream,
    Trace,
)


def program(*rows):
    return program_of(Trace({}, list(rows)))


def test_identifiers_do_not_matter():
    one = program(Malloc(7, 100, "a"), Malloc(9, 50, "b"), Free(7), Step(1))
    other = program(Malloc(1, 200, "a"), Malloc(2, 60, "b"), Free(1), Step(1))
    assert one.same_events(other)
    assert one.difference(other) is None
    assert (one.sizes, other.sizes) == ((100, 50), (200, 60))


def test_another_order_of_ends_is_another_program_and_says_where():
    one = program(Malloc(1, 1, "a"), Malloc(2, 1, "a"), Free(1), Free(2))
    other = program(Malloc(1, 1, "a"), Malloc(2, 1, "a"), Free(2), Free(1))
    assert not one.same_events(other)
    assert one.difference(other) == "row 2: free against free 1"


def test_a_longer_program_is_another_one():
    assert program(Malloc(1, 1, "a")).difference(program(Malloc(1, 1, "a"), Step(1))) == "1 rows against 2"


def test_an_identifier_can_be_used_again_after_its_end():
    seen = program(Malloc(1, 10, "a"), Free(1), Malloc(1, 20, "b"), Free(1))
    assert [event for event in seen.events if event[0] == "free"] == [("free", 0), ("free", 1)]


def test_ends_of_storages_older_than_the_trace_are_left_out():
    assert program(Free(3), Phase("train"), EmptyCache()).events == (("phase", "train"), ("empty_cache",))


def test_a_workspace_law_that_does_not_give_the_recorded_bytes_is_not_used():
    known = program(Malloc(1, 32 << 20, "mm", "cublas", (9, 0, 213)))
    assert known.args == ((9, 0, 213),)
    assert program(Malloc(1, 77, "mm", "cublas", (9, 0, 213))).args == ((),)
    assert program(Malloc(1, 77, "mm", "a law of the future", (1,))).events == (("malloc", "mm", None, 0),)


def test_streams_and_retired_blocks_belong_to_the_program():
    rows = [Stream(1), Malloc(5, 10, "a"), Retire(5), Stream(0), Ready(5), Ready(99), Retire(99)]
    program = program_of(Trace({}, rows))
    assert program.events == (("stream", 1), ("malloc", "a", None, 0), ("retire", 0), ("stream", 0), ("ready", 0))
    assert program.code == (("stream", 1), 0, ("retire", 1), ("stream", 0), ("ready", 1))
    assert not program.same_events(program_of(Trace({}, rows[1:])))


def test_private_pools_belong_to_the_program():
    rows = [Pool(1), Malloc(5, 10, "a"), Pool(0), Free(5), ReleasePool(1), EmptyPool(1)]
    program = program_of(Trace({}, rows))
    assert program.code == (("pool", 1), 0, ("pool", 0), 1, ("release_pool", 1), ("empty_pool", 1))
    assert not program.same_events(program_of(Trace({}, rows[1:])))
