"""The moments and live blocks that an observer keeps, against ones read off the allocator while it replays."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.decide.memory.live_blocks import LiveBlocks
from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.allocator_settings import settings_from
from brimful_inside.simulator.replay import replay
from tests.brimful_inside.simulator.random_programs import program_from, random_program

MIB = 1 << 20
CONFIGURATIONS = ["", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4"]


@pytest.mark.parametrize("conf", CONFIGURATIONS)
@given(seed=st.integers(0, 1 << 40))
@settings(max_examples=40, deadline=None)
def test_live_blocks_are_those_that_the_allocator_holds_at_that_event(conf, seed):
    program, live, held = random_program(random.Random(seed), 120), LiveBlocks(), [{}]

    def observe(event, addresses, allocator):
        live(event, addresses, allocator)
        numbers = {address: number for number, address in enumerate(addresses) if address}
        held.append({numbers[address]: block[0] for address, block in allocator._live.items()})

    replay(program, program.sizes, CachingAllocator(None, settings_from(conf), detailed=False), observe=observe)
    assert [live.at(moment) for moment in range(len(held))] == held


@pytest.mark.parametrize("conf", CONFIGURATIONS)
@given(seed=st.integers(0, 1 << 40))
@settings(max_examples=40, deadline=None)
def test_each_visit_of_a_phase_is_as_high_as_the_replay_shows(conf, seed):
    program, live = random_program(random.Random(seed), 120), LiveBlocks()
    played = replay(program, program.sizes, CachingAllocator(None, settings_from(conf)), observe=live)
    for name, peaks in played.phases.items():
        visits = [visit for visit in live.visits if visit.phase == name]
        assert max(visit.allocated for visit in visits) == peaks.allocated
        assert max(visit.reserved for visit in visits) == peaks.reserved
        assert all(sum(live.at(visit.allocated_at).values()) == visit.allocated for visit in visits)


def test_a_moment_before_everything_shows_nothing_and_a_phase_begins_at_no_allocation():
    program, live = (
        program_from([("malloc", "a", None, 0), ("phase", "train"), ("malloc", "b", None, 0)], [MIB, 0]),
        LiveBlocks(),
    )
    replay(program, program.sizes, CachingAllocator(), observe=live)
    assert [live.at(moment) for moment in range(4)] == [{}, {0: MIB}, {0: MIB}, {0: MIB}]
    assert [live.allocation_at(moment) for moment in range(4)] == [None, 0, None, 1]
