from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.decide.memory.replay import Live, course_of, live_at, visits
from brimful_inside.simulator.allocator import settings_from
from tests.brimful_inside.simulator.codes import any_program, plain_program
from tests.decide import watched_live
from tests.decide.test_replays import program_from

MIB = 1 << 20
CONFIGURATIONS = ["", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4"]


@pytest.mark.parametrize("conf", CONFIGURATIONS)
@pytest.mark.parametrize("drawn", [plain_program, any_program])
@given(seed=st.integers(0, 1 << 40))
@settings(max_examples=40, deadline=None)
def test_visits_and_what_is_live_are_as_an_allocator_that_is_watched_tells(conf, drawn, seed):
    rng = random.Random(seed)
    code, sizes = drawn(rng, 120)
    program, chosen = program_from(code, sizes), settings_from(conf)
    course = course_of(program, sizes, chosen)
    seen = visits(program.code, course)
    assert seen == watched_live.visits(program, sizes, chosen)
    moments = {rng.randrange(100) for _ in range(6)} | {one.allocated_at for one in seen} | {one.reserved_at for one in seen}
    moments -= {len(sizes) + len(seen)}  # the last stay's end: no event
    live, watched = live_at(program.code, course, moments), watched_live.live_at(program, sizes, moments, chosen)
    assert {at: (list(one.blocks.items()), one.birth) for at, one in live.items()} == {
        at: (list(one.blocks.items()), one.birth) for at, one in watched.items()
    }


def test_a_moment_before_everything_and_one_that_never_comes_show_nothing():
    program = program_from([0, "train", 0, 1], [MIB, 0])
    live = live_at(program.code, course_of(program, program.sizes), [0, 1, 2, 3, 9])
    assert live == {0: Live({}), 1: Live({0: MIB}, 0), 2: Live({0: MIB}), 3: Live({0: MIB}, 1), 9: Live({})}
