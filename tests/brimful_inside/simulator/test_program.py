from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.program import joined, program_of
from brimful_inside.simulator.replay import replay
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
    Settings,
    Step,
    Stream,
    Trace,
)
from tests.brimful_inside.simulator.random_programs import PLAIN, random_program


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
    assert program(Malloc(1, 1, "a")).difference(program(Malloc(1, 1, "a"), Step(1))) == "1 rows against 2"


def test_an_identifier_can_be_used_again_after_its_end():
    seen = program(Malloc(1, 10, "a"), Free(1), Malloc(1, 20, "b"), Free(1))
    assert [event for event in seen.events if event[0] == "free"] == [("free", 0), ("free", 1)]


def test_ends_of_storages_older_than_the_trace_are_left_out():
    assert program(Free(3), Phase("train"), EmptyCache()).events == (("phase", "train"), ("empty_cache",))


def test_a_workspace_that_is_computed_otherwise_than_recorded_is_fitted_as_it_is():
    known = program(Malloc(1, 32 << 20, "mm", "cublas", (9, 0, 213)))
    assert known.args == ((9, 0, 213),)
    assert program(Malloc(1, 77, "mm", "cublas", (9, 0, 213))).args == ((),)
    assert program(Malloc(1, 77, "mm", "of the future", (1,))).events == (("malloc", "mm", None, 0),)


def test_streams_retired_blocks_and_private_pools_belong_to_the_program():
    rows = [Stream(1), Malloc(5, 10, "a"), Retire(5), Stream(0), Ready(5), Ready(99), Retire(99)]
    found = program(*rows)
    assert found.events == (("stream", 1), ("malloc", "a", None, 0), ("retire", 0), ("stream", 0), ("ready", 0))
    assert not found.same_events(program(*rows[1:]))
    rows = [Pool(1), Pool(0), ReleasePool(1), EmptyPool(1), Settings("max_split_size_mb:32")]
    kinds = [("pool", 1), ("pool", 0), ("release_pool", 1), ("empty_pool", 1), ("settings", "max_split_size_mb:32")]
    assert program(*rows).events == tuple(kinds)


def test_programs_of_several_cards_are_joined_and_taken_apart_again():
    one, other = program(Malloc(1, 10, "a"), Free(1)), program(Malloc(7, 20, "b"), Malloc(8, 30, "b"))
    both = joined([one, other, one])
    assert both.cards == (one, other, one) and both.sizes == (10, 20, 30, 10)
    assert both.cards[0].events is both.cards[2].events
    assert joined([one]) is one and one.cards == (one,)
    assert both.difference(joined([one, other, other])) == "row 6: malloc a against malloc b"


def test_what_is_retired_is_alive_until_it_is_ready():
    rows = [Malloc(1, 1000, "a"), Retire(1), Malloc(2, 500, "b"), Ready(1), Malloc(3, 900, "c")]
    found = program(*rows)
    assert found.largest_live_set(found.sizes) == [0, 1] and found.peak_live_bytes(found.sizes) == 1500


def requested_bytes(allocator: CachingAllocator) -> int:
    return allocator.memory_stats()["requested_bytes.all.current"]


@given(seed=st.integers(0, 1 << 40), scale=st.integers(1, 5))
def test_the_largest_live_set_holds_what_a_replay_has_at_its_highest_and_never_more(seed, scale):
    rng = random.Random(seed)
    cards = [random_program(rng, 100, PLAIN) for _ in range(2)]
    found = joined(cards)
    requested: list[int] = []
    for card in cards:
        replay(card, card.sizes, CachingAllocator(), observe=lambda *moment: requested.append(requested_bytes(moment[2])))
    assert found.peak_live_bytes(found.sizes) == max(requested)
    others = [rng.randrange(scale * 1000) for _ in found.sizes]
    assert sum(others[number] for number in found.largest_live_set(found.sizes)) <= found.peak_live_bytes(others)
