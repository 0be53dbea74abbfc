from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful_inside.simulator.allocator import CachingAllocator, settings_from
from brimful_inside.simulator.plain_replay import (
    Stretch,
    _Blocks,
    has_plain_rules,
    plain_code,
    play_plain,
)
from brimful_inside.simulator.replay import (
    AllocatorUpTo,
    Played,
    TooMuch,
    play_code,
)
from tests.brimful_inside.simulator.codes import any_program, plain_program

MIB = 1 << 20
PLAIN = [
    "",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "large_segment_size_mb:32",
    "per_process_memory_fraction:0.7",
    "max_non_split_rounding_mb:40",
]
NOT_PLAIN = [
    "expandable_segments:True",
    "max_split_size_mb:32",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
    "backend:cudaMallocAsync",
]
SEEDS = st.integers(0, 1 << 40)
EVENTS = st.sampled_from([10, 60, 200, 600])
CAPACITIES = st.sampled_from([None, 64 * MIB, 200 * MIB, 1000 * MIB])


def plainly(played: Played) -> tuple:
    """A replay's answer, with what its exception says in place of the exception."""
    full = None if played.full is None else (str(played.full), vars(played.full))
    return *played[:2], full, played.rows_played, list(played.phases)


@pytest.mark.parametrize("conf", PLAIN)
@given(seed=SEEDS, events=EVENTS, capacity=CAPACITIES)
@settings(max_examples=150, deadline=None)
def test_a_plain_program_shows_what_the_allocator_itself_shows(conf, seed, events, capacity):
    code, sizes = plain_program(random.Random(seed), events)
    chosen, plain = settings_from(conf), plain_code(code)
    assert plain is not None and has_plain_rules(chosen)
    seen = play_code(code, sizes, CachingAllocator(capacity, chosen))
    assert plainly(play_plain(plain, sizes, chosen, capacity)) == plainly(seen)


def test_random_programs_fill_their_cards_empty_their_caches_and_fit_as_well():
    """The comparison above says something only where all of these are among its programs."""
    found = {"full": 0, "fits": 0, "full after the cache was emptied for it": 0}
    for seed in range(200):
        code, sizes = plain_program(random.Random(seed), 200)
        allocator = CachingAllocator(200 * MIB)
        played = play_code([what for what in code if what is not None], sizes, allocator)
        found["full" if played.full else "fits"] += 1
        found["full after the cache was emptied for it"] += allocator.num_device_free > 0
    assert min(found.values()) > 20, found


@given(seed=SEEDS, events=EVENTS, capacity=CAPACITIES, most=st.integers(0, 600 * MIB))
@settings(max_examples=200, deadline=None)
def test_a_replay_ends_exactly_where_more_is_reserved_than_was_of_interest(seed, events, capacity, most):
    code, sizes = plain_program(random.Random(seed), events)
    plain = plain_code(code)
    assert plain is not None
    seen = play_code(code, sizes, CachingAllocator(capacity))
    for enough in (seen.peak.reserved, seen.peak.reserved + most):
        assert plainly(play_plain(plain, sizes, capacity_bytes=capacity, most_reserved=enough)) == plainly(seen)
    if seen.peak.reserved > most:
        with pytest.raises(TooMuch):
            play_plain(plain, sizes, capacity_bytes=capacity, most_reserved=most)


@pytest.mark.parametrize("conf", [*PLAIN[:2], *NOT_PLAIN[:3]])
@given(seed=SEEDS, events=EVENTS, capacity=CAPACITIES, most=st.integers(0, 600 * MIB))
@settings(max_examples=60, deadline=None)
def test_so_does_one_by_the_allocator_itself(conf, seed, events, capacity, most):
    code, sizes = any_program(random.Random(seed), events)
    chosen = settings_from(conf)
    seen = play_code(code, sizes, CachingAllocator(capacity, chosen))
    for enough in (seen.peak.reserved, seen.peak.reserved + most):
        assert plainly(play_code(code, sizes, AllocatorUpTo(enough, capacity, chosen))) == plainly(seen)
    if seen.peak.reserved > most:
        with pytest.raises(TooMuch):
            play_code(code, sizes, AllocatorUpTo(most, capacity, chosen))


@pytest.mark.parametrize("conf", NOT_PLAIN)
def test_settings_that_ask_for_other_rules_are_not_plain(conf):
    assert not has_plain_rules(settings_from(conf))


@pytest.mark.parametrize(
    "what", [("stream", 1), ("pool", 1), ("release_pool", 1), ("empty_pool", 1), ("retire", 1), ("ready", 1), ("settings", "")]
)
def test_streams_pools_and_changed_settings_are_not_plain(what):
    assert plain_code([0, 1]) is not None
    assert plain_code([0, what, 1]) is None


def test_a_program_is_taken_apart_at_its_phases_and_emptied_caches():
    plain = plain_code([0, "train", 0, 1, None, 2])
    assert plain is not None and (plain.births, plain.length) == (2, 6)
    assert plain.stretches == (
        Stretch(None, False, 0, (0,)),
        Stretch("train", False, 2, (1, -2)),
        Stretch(None, True, 5, (-1,)),
    )


def test_a_request_of_less_than_nothing_is_refused_as_the_allocator_refuses_it():
    plain = plain_code([0, 0])
    assert plain is not None
    for play_it in (lambda: play_plain(plain, [5, -5]), lambda: play_code([0, 0], [5, -5], CachingAllocator())):
        with pytest.raises(ValueError, match="a request of -5 bytes"):
            play_it()


def test_a_rule_forgotten_would_be_seen(monkeypatch):
    """The comparison can fail: where an emptied cache keeps what it held, programs come out otherwise."""
    monkeypatch.setattr(_Blocks, "release_cached", lambda blocks: None)
    differ = 0
    for seed in range(50):
        code, sizes = plain_program(random.Random(seed), 200)
        plain = plain_code(code)
        assert plain is not None
        differ += plainly(play_plain(plain, sizes, capacity_bytes=200 * MIB)) != plainly(
            play_code(code, sizes, CachingAllocator(200 * MIB))
        )
    assert differ > 10
