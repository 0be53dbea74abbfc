import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.program import joined
from brimful_inside.simulator.replay import replay
from tests.brimful_inside.simulator.random_programs import PLAIN, program, random_program


def test_identifiers_do_not_matter():
    first = program(("malloc", 7, 100, "a"), ("malloc", 9, 50, "b"), ("free", 7), ("step", 1))
    other = program(("malloc", 1, 200, "a"), ("malloc", 2, 60, "b"), ("free", 1), ("step", 1))
    assert first.same_events(other) and first.difference(other) is None
    assert (first.sizes, other.sizes) == ((100, 50), (200, 60))


def test_another_order_of_ends_is_another_program_and_says_where():
    first_row, second_row = ("malloc", 1, 1, "a"), ("malloc", 2, 1, "a")
    first = program(first_row, second_row, ("free", 1), ("free", 2))
    other = program(first_row, second_row, ("free", 2), ("free", 1))
    assert not first.same_events(other) and first.difference(other) == "row 2: free against free 1"
    shorter, longer = program(first_row), program(first_row, ("step", 1))
    assert shorter.difference(longer) == "1 rows against 2"


A, OF_HOPPER = ("malloc", 5, 10, "a"), ("malloc", 1, 32 << 20, "mm", "cublas", (9, 0, 213))
AS_THEY_ARE = [
    ("pool", 1),
    ("pool", 0),
    ("release_pool", 1),
    ("empty_pool", 1),
    ("settings", "max_split_size_mb:32"),
]


@pytest.mark.parametrize(
    ("rows", "events"),
    [
        # an identifier can be used again after its end
        ([A, ("free", 5), A, ("free", 5)], ["a", ("free", 0), "a", ("free", 1)]),
        # ends of storages older than the trace are left out
        ([("free", 3), ("phase", "train"), ("retire", 9)], [("phase", "train")]),
        ([A, ("retire", 5), ("ready", 5), ("ready", 9)], ["a", ("retire", 0), ("ready", 0)]),
        ([("stream", 1), A, ("stream", 0)], [("stream", 1), "a", ("stream", 0)]),
        (AS_THEY_ARE, AS_THEY_ARE),
        ([OF_HOPPER], [("malloc", "mm", "cublas", 3)]),
        # a workspace that is computed otherwise than recorded is fitted as it is
        ([("malloc", 1, 77, *OF_HOPPER[3:])], [("malloc", "mm", None, 0)]),
        ([("malloc", 1, 77, "mm", "of the future", (1,))], [("malloc", "mm", None, 0)]),
    ],
)
def test_a_program_has_what_happens_and_numbers_its_allocations(rows, events):
    allocation = ("malloc", "a", None, 0)
    assert program(*rows).events == tuple(allocation if e == "a" else e for e in events)


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
@settings(max_examples=30, deadline=None)
def test_the_largest_live_set_holds_what_a_replay_has_at_its_highest_and_never_more(seed, scale):
    rng = random.Random(seed)
    cards = [random_program(rng, 100, PLAIN) for _ in range(2)]
    live, requested = joined(cards), []
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
