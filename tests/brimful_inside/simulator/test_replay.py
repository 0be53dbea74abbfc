from __future__ import annotations

from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.replay import Peaks, play, play_code
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
    decode,
    encode_row,
)

MIB = 1 << 20


def test_a_phase_has_the_peak_of_its_own_stretch():
    rows = [Malloc(1, 30 * MIB, "a"), Phase("train"), Malloc(2, 40 * MIB, "b"), Free(2), EmptyCache(), Phase("eval"), Step(1)]
    played = play(rows, CachingAllocator())
    assert played.phases == {
        "start": Peaks(30 * MIB, 30 * MIB, 30 * MIB),
        "train": Peaks(70 * MIB, 70 * MIB, 70 * MIB),
        "eval": Peaks(30 * MIB, 30 * MIB, 30 * MIB),
    }
    assert played.peak.reserved == 70 * MIB
    assert (played.full, played.rows_played) == (None, 7)


def test_the_worst_visit_of_a_phase_counts():
    rows = [
        Phase("a"),
        Malloc(1, 10 * MIB, "x"),
        Free(1),
        Phase("b"),
        Phase("a"),
        Malloc(2, 30 * MIB, "x"),
        Free(2),
        Phase("b"),
    ]
    played = play(rows, CachingAllocator())
    assert played.phases["a"].allocated == 30 * MIB
    assert played.phases["b"].allocated == 0
    assert list(played.phases) == ["a", "b"]


def test_a_replay_ends_where_the_card_is_full():
    rows = [Malloc(1, 30 * MIB, "a"), Malloc(2, 30 * MIB, "b"), Free(1)]
    played = play(rows, CachingAllocator(40 * MIB))
    assert played.full is not None and played.full.requested == 30 * MIB
    assert played.rows_played == 1
    assert played.peak.allocated == 30 * MIB


def test_the_end_of_a_storage_older_than_the_trace_is_passed_over():
    assert play([Free(99), Malloc(1, 0, "empty"), Free(1)], CachingAllocator()).peak == Peaks(0, 0, 0)


def test_a_program_replayed_as_code_shows_what_its_rows_show():
    rows = [Malloc(7, 30 * MIB, "a"), Phase("train"), Malloc(9, 3 * MIB, "b"), Free(7), EmptyCache(), Phase("eval")]
    rows.append(Malloc(7, 1, "c"))
    by_rows = play(rows, CachingAllocator())
    by_code = play_code((0, "train", 0, 1, None, "eval", 0), [30 * MIB, 3 * MIB, 1], CachingAllocator(detailed=False))
    assert by_code == by_rows
    full = play_code((0, 0), [30 * MIB, 30 * MIB], CachingAllocator(40 * MIB))
    assert full.full is not None and full.rows_played == 1


def test_a_stream_does_not_use_what_another_one_freed():
    rows = [
        Stream(1),
        Malloc(1, 30 * MIB, "a"),
        Free(1),
        Stream(0),
        Malloc(2, 30 * MIB, "b"),
        Stream(1),
        Malloc(3, 30 * MIB, "c"),
    ]
    played = play(rows, CachingAllocator())
    assert played.peak.reserved == 60 * MIB
    code = (("stream", 1), 0, 1, ("stream", 0), 0, ("stream", 1), 0)
    assert play_code(code, [30 * MIB] * 3, CachingAllocator(detailed=False)) == played


def test_a_retired_block_is_used_again_only_when_it_is_ready():
    rows = [Malloc(1, 30 * MIB, "a"), Retire(1), Malloc(2, 30 * MIB, "b"), Ready(1), Malloc(3, 30 * MIB, "c")]
    played = play(rows, CachingAllocator())
    assert (played.peak.allocated, played.peak.reserved) == (60 * MIB, 60 * MIB)
    code = (0, ("retire", 1), 0, ("ready", 1), 0)
    assert play_code(code, [30 * MIB] * 3, CachingAllocator(detailed=False)) == played
    assert play([rows[0], Free(1), *rows[2:3], *rows[4:]], CachingAllocator()).peak.reserved == 60 * MIB


def test_a_full_card_waits_for_retired_blocks():
    rows = [Malloc(1, 30 * MIB, "a"), Retire(1), Malloc(2, 36 * MIB, "b"), Ready(1), Malloc(3, 1 * MIB, "c")]
    played = play(rows, CachingAllocator(40 * MIB))
    assert played.full is None and played.rows_played == 5 and played.peak.reserved == 38 * MIB


def test_rows_of_streams_and_pools_are_read_as_they_were_written():
    rows = [Stream(2), Malloc(1, 30, "a"), Retire(1), Ready(1), Stream(0), Pool(3), Pool(0), ReleasePool(3), EmptyPool(3)]
    assert decode(['{"trace_version": 1}', *map(encode_row, rows)]).rows == rows


def test_a_private_pool_is_served_apart_and_kept_while_a_graph_of_it_lives():
    rows = [Pool(1), Malloc(1, 30 * MIB, "a"), Free(1), Malloc(2, 20 * MIB, "b"), Pool(0), Malloc(3, 30 * MIB, "c"), Free(3)]
    rows += [Free(2), EmptyCache(), Phase("then"), ReleasePool(1), Phase("released"), EmptyCache(), Phase("emptied")]
    played = play(rows, CachingAllocator())
    assert played.phases["start"].reserved == 60 * MIB
    assert [played.phases[name].reserved for name in ("then", "released", "emptied")] == [30 * MIB, 30 * MIB, 0]
    code = (("pool", 1), 0, 1, 0, ("pool", 0), 0, 3, 2, None, "then", ("release_pool", 1), "released", None, "emptied")
    sizes = [30 * MIB, 20 * MIB, 30 * MIB]
    assert play_code(code, sizes, CachingAllocator(detailed=False)).phases == played.phases


def test_an_emptied_pool_gives_back_what_is_free_of_it_alone():
    rows = [Pool(1), Malloc(1, 30 * MIB, "a"), Malloc(2, 20 * MIB, "b"), Pool(0), Malloc(3, 5 * MIB, "c"), Free(3), Free(1)]
    rows += [EmptyPool(1), Phase("then")]
    played = play(rows, CachingAllocator())
    assert (played.phases["start"].reserved, played.phases["then"].reserved) == (70 * MIB, 40 * MIB)
    code = (("pool", 1), 0, 0, ("pool", 0), 0, 3, 1, ("empty_pool", 1), "then")
    assert play_code(code, [30 * MIB, 20 * MIB, 5 * MIB], CachingAllocator(detailed=False)).phases == played.phases


def test_a_request_of_a_private_pool_has_nothing_given_back_for_it():
    cached = [Malloc(1, 30 * MIB, "a"), Free(1)]
    assert play([*cached, Malloc(2, 34 * MIB, "b")], CachingAllocator(40 * MIB)).full is None
    full = play([*cached, Pool(1), Malloc(2, 34 * MIB, "b")], CachingAllocator(40 * MIB)).full
    assert full is not None and (full.free, full.private) == (10 * MIB, 0)
    held = [Pool(1), *cached, Pool(0), Malloc(2, 34 * MIB, "b")]
    full = play(held, CachingAllocator(40 * MIB)).full
    assert full is not None and (full.reserved, full.private) == (30 * MIB, 30 * MIB)
