from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.decide.memory.program import Program
from brimful.decide.replays import play_cards, play_cards_up_to
from brimful_inside.simulator.allocator import CachingAllocator, settings_from
from brimful_inside.simulator.replay import play_code
from tests.brimful_inside.simulator.codes import any_program, plain_program

MIB = 1 << 20
CONFIGURATIONS = ["", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4"]


def program_from(code: list, sizes: list[int]) -> Program:
    """The program whose code this is."""
    events: list[tuple] = []
    for what in code:
        if what == 0:
            events.append(("malloc", "op", None, 0))
        elif isinstance(what, int):
            events.append(("free", what - 1))
        elif what is None or isinstance(what, str):
            events.append(("empty_cache",) if what is None else ("phase", what))
        else:
            events.append((what[0], what[1] - 1) if what[0] in ("retire", "ready") else what)
    program = Program(tuple(events), tuple(sizes), ((),) * len(sizes))
    assert program.code == tuple(code)
    return program


@pytest.mark.parametrize("conf", CONFIGURATIONS)
@pytest.mark.parametrize("drawn", [plain_program, any_program])
@given(seed=st.integers(0, 1 << 40), capacity=st.sampled_from([None, 200 * MIB]), most=st.integers(0, 400 * MIB))
@settings(max_examples=40, deadline=None)
def test_every_program_under_all_settings_shows_what_the_allocator_shows(conf, drawn, seed, capacity, most):
    code, sizes = drawn(random.Random(seed), 150)
    program, chosen = program_from(code, sizes), settings_from(conf)
    seen = play_code(code, sizes, CachingAllocator(capacity, chosen))
    (played,) = play_cards(program, sizes, chosen, capacity)
    assert (played[:2], played.rows_played) == (seen[:2], seen.rows_played)
    assert (played.full is None) == (seen.full is None)
    up_to = play_cards_up_to(most, program, sizes, chosen, capacity)
    assert (up_to is None) == (seen.peak.reserved > most)
    assert up_to is None or up_to[0].phases == seen.phases


def test_programs_are_plain_or_not_and_the_way_is_chosen_by_that(monkeypatch):
    import brimful.decide.replays as room

    ways = []
    for name in ("play_plain", "play_code"):
        monkeypatch.setattr(room, name, lambda *args, name=name: ways.append(name))
    plain, other = program_from([0, 1], [MIB]), program_from([("stream", 1), 0, 1], [MIB])
    assert [one is None for one in (*plain.plain, *other.plain)] == [False, True]
    play_cards(plain, plain.sizes)
    play_cards(other, other.sizes)
    play_cards(plain, plain.sizes, settings_from("expandable_segments:True"))
    assert ways == ["play_plain", "play_code", "play_code"]
