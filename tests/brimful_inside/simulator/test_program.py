from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.program import joined
from brimful_inside.simulator.replay import replay
from tests.brimful_inside.simulator.random_programs import PLAIN, program, random_program


def test_identifiers_do_not_matter():
    first = program(("malloc", 7, 100, "a"), ("malloc", 9, 50, "b"), ("free", 7), ("step", 1))
    other = program(("malloc", 1, 200, "a"), ("malloc", 2, 60, "b"), ("free", 1), ("step", 1))
    assert first.same_events(other)
    assert first.difference(other) is None
    assert (first.sizes, other.sizes) == ((100, 50), (200, 60))


def test_another_order_of_ends_is_another_program_and_says_where():
    first = program(("malloc", 1, 1, "a"), ("malloc", 2, 1, "a"), ("free", 1), ("free", 2))
    other = program(("malloc", 1, 1, "a"), ("malloc", 2, 1, "a"), ("free", 2), ("free", 1))
    assert not first.same_events(other)
    assert first.difference(other) == "row 2: free against free 1"
    assert (
        program(("malloc", 1, 1, "a")).difference(program(("malloc", 1, 1, "a"), ("step", 1)))
        == "1 rows against 2"
    )


def test_an_identifier_can_be_used_again_after_its_end():
    made = program(("malloc", 1, 10, "a"), ("free", 1), ("malloc", 1, 20, "b"), ("free", 1))
    assert [event for event in made.events if event[0] == "free"] == [("free", 0), ("free", 1)]


def test_ends_of_storages_older_than_the_trace_are_left_out():
    assert program(("free", 3), ("phase", "train"), ("empty_cache",)).events == (
        ("phase", "train"),
        ("empty_cache",),
    )


def test_a_workspace_that_is_computed_otherwise_than_recorded_is_fitted_as_it_is():
    known = program(("malloc", 1, 32 << 20, "mm", "cublas", (9, 0, 213)))
    assert known.args == ((9, 0, 213),)
    assert program(("malloc", 1, 77, "mm", "cublas", (9, 0, 213))).args == ((),)
    assert program(("malloc", 1, 77, "mm", "of the future", (1,))).events == (
        ("malloc", "mm", None, 0),
    )


def test_streams_retired_blocks_and_private_pools_belong_to_the_program():
    rows = [
        ("stream", 1),
        ("malloc", 5, 10, "a"),
        ("retire", 5),
        ("stream", 0),
        ("ready", 5),
        ("ready", 99),
        ("retire", 99),
    ]
    made = program(*rows)
    assert made.events == (
        ("stream", 1),
        ("malloc", "a", None, 0),
        ("retire", 0),
        ("stream", 0),
        ("ready", 0),
    )
    assert not made.same_events(program(*rows[1:]))
    rows = [
        ("pool", 1),
        ("pool", 0),
        ("release_pool", 1),
        ("empty_pool", 1),
        ("settings", "max_split_size_mb:32"),
    ]
    kinds = [
        ("pool", 1),
        ("pool", 0),
        ("release_pool", 1),
        ("empty_pool", 1),
        ("settings", "max_split_size_mb:32"),
    ]
    assert program(*rows).events == tuple(kinds)


def test_programs_of_several_cards_are_joined_and_taken_apart_again():
    card, other = (
        program(("malloc", 1, 10, "a"), ("free", 1)),
        program(("malloc", 7, 20, "b"), ("malloc", 8, 30, "b")),
    )
    both = joined([card, other, card])
    assert both.cards == (card, other, card) and both.sizes == (10, 20, 30, 10)
    assert both.cards[0].events is both.cards[2].events
    assert joined([card]) is card and card.cards == (card,)
    assert both.difference(joined([card, other, other])) == "row 6: malloc a against malloc b"


def test_what_is_retired_is_alive_until_it_is_ready():
    rows = [
        ("malloc", 1, 1000, "a"),
        ("retire", 1),
        ("malloc", 2, 500, "b"),
        ("ready", 1),
        ("malloc", 3, 900, "c"),
    ]
    made = program(*rows)
    assert made.largest_live_set(made.sizes) == [0, 1] and made.peak_live_bytes(made.sizes) == 1500


def requested_bytes(allocator: CachingAllocator) -> int:
    return allocator.memory_stats()["requested_bytes.all.current"]


@given(seed=st.integers(0, 1 << 40), scale=st.integers(1, 5))
def test_the_largest_live_set_holds_what_a_replay_has_at_its_highest_and_never_more(seed, scale):
    rng = random.Random(seed)
    cards = [random_program(rng, 100, PLAIN) for _ in range(2)]
    live = joined(cards)
    requested: list[int] = []
    for card in cards:
        replay(
            card,
            card.sizes,
            CachingAllocator(),
            observe=lambda *moment: requested.append(requested_bytes(moment[2])),
        )
    assert live.peak_live_bytes(live.sizes) == max(requested)
    others = [rng.randrange(scale * 1000) for _ in live.sizes]
    assert sum(
        others[number] for number in live.largest_live_set(live.sizes)
    ) <= live.peak_live_bytes(others)
