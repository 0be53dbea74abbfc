import random
import weakref

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brimful_inside.simulator import replay as module
from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.allocator_settings import settings_from
from brimful_inside.simulator.program import joined
from brimful_inside.simulator.replay import Peaks, Replayed, replay, replay_cards, worst_of
from brimful_inside.simulator.workspaces import bytes_of
from tests.brimful_inside.simulator.random_programs import (
    ANY,
    CONFIGURATIONS,
    PLAIN,
    NaiveAllocator,
    program,
    program_from,
    random_program,
)

MIB = 1 << 20
SEEDS = st.integers(0, 1 << 40)
CAPACITIES = st.sampled_from([None, 64 * MIB, 200 * MIB, 1000 * MIB])


def replayed(rows: str, capacity: int | None = None) -> Replayed:
    """`rows` as simulator/trace.py lists them, with sizes in MiB and without operations."""
    split = [
        [int(word) if word.isdigit() else word for word in row.split()] for row in rows.split(", ")
    ]
    parsed = program(
        *([*row[:2], row[2] * MIB, "op"] if row[0] == "malloc" else row for row in split)
    )
    return replay(parsed, parsed.sizes, CachingAllocator(capacity, detailed=False))


def comparable(result: Replayed) -> tuple:
    """With what the exception says in place of the exception."""
    return (
        *result[:2],
        list(result.phases),
        None if result.full is None else vars(result.full),
        result.retries,
    )


@pytest.mark.parametrize(
    ("workspace", "args", "fits"),
    [("cudnn_forward", [1, 90 * MIB, 0], True), ("cublas", [8, 0, 213], False)],
)
def test_a_workspace_without_room_is_left_out_where_cudnn_has_another_plan(workspace, args, fits):
    nbytes = bytes_of(workspace, args)
    taken = program(
        ["malloc", 1, 40 * MIB, "op"],
        ["malloc", 2, nbytes, "op", workspace, args],
        ["free", 2],
        ["malloc", 3, 20 * MIB, "op"],
    )
    capacity = 60 * MIB if fits else 40 * MIB
    result = replay(taken, taken.sizes, CachingAllocator(capacity))
    assert (result.full is None) is fits
    assert result.peak.allocated == (60 if fits else 40) * MIB
    assert replay(taken, taken.sizes, CachingAllocator()).peak.allocated == max(
        60 * MIB, 40 * MIB + nbytes
    )


def test_a_phase_has_the_peak_of_its_own_stretch():
    result = replayed(
        "malloc 1 30, phase train, malloc 2 40, free 2, empty_cache, phase eval, step 1"
    )
    assert result.phases == {
        "start": Peaks(30 * MIB, 30 * MIB),
        "train": Peaks(70 * MIB, 70 * MIB),
        "eval": Peaks(30 * MIB, 30 * MIB),
    }
    assert (result.peak.reserved, result.full, result.retries, result.steps) == (
        70 * MIB,
        None,
        0,
        1,
    )


def test_the_worst_visit_of_a_phase_counts():
    visits = [("a", 10), ("b", 0), ("a", 30), ("b", 0)]
    result = replayed(
        ", ".join(f"phase {phase}, malloc 1 {size}, free 1" for phase, size in visits)
    )
    assert {name: peaks.allocated for name, peaks in result.phases.items()} == {
        "a": 30 * MIB,
        "b": 0,
    }
    assert list(result.phases) == ["a", "b"]


def test_a_replay_ends_where_the_card_is_full():
    result = replayed("malloc 1 30, malloc 2 30, free 1, malloc 3 20", 40 * MIB)
    assert result.full is not None and result.full.requested == 30 * MIB
    assert result.peak.allocated == 30 * MIB


def test_a_replay_that_ended_at_a_full_card_keeps_nothing_of_its_allocator_alive():
    """A search knows thousands of them; the exception's traceback would hold each one's blocks."""
    allocator, too_large = (
        CachingAllocator(40 * MIB, detailed=False),
        program(("malloc", 1, 60 * MIB, "mm")),
    )
    gone = weakref.ref(allocator)
    result = replay(too_large, too_large.sizes, allocator)
    del allocator
    assert result.full is not None and gone() is None


@given(seed=SEEDS, length=st.sampled_from([10, 60, 200]))
@settings(max_examples=100, deadline=None)
def test_the_peaks_are_those_of_the_plainest_writing_of_the_rules(seed, length):
    program, naive = random_program(random.Random(seed), length, PLAIN), NaiveAllocator()
    number, phase, peaks = 0, "start", {}
    for event in (*program.events, ("end",)):
        highest = peaks.setdefault(phase, [0, 0])
        highest[:] = max(highest[0], naive.allocated), max(highest[1], naive.reserved)
        if event[0] == "malloc":
            if program.sizes[number]:
                naive.malloc(str(number), program.sizes[number])
            number += 1
        elif event[0] == "free":
            naive.free(str(event[1]))
        elif event[0] == "empty_cache":
            naive.empty_cache()
        elif event[0] == "phase":
            phase = event[1]
    peaks = {
        name: tuple(highest) for name, highest in peaks.items() if name != "start" or any(highest)
    }
    result = replay(program, program.sizes, CachingAllocator(detailed=False))
    assert result.phases == peaks


@pytest.mark.parametrize("conf", [conf for conf in CONFIGURATIONS if "fraction" not in conf])
@given(seed=SEEDS)
@example(seed=496878413)
@settings(max_examples=60, deadline=None)
def test_the_reserved_peak_is_room_enough_and_less_than_the_allocated_peak_is_not(conf, seed):
    program, chosen = random_program(random.Random(seed), 200), settings_from(conf)
    whole = replay(program, program.sizes, CachingAllocator(None, chosen))
    again = replay(
        program, program.sizes, CachingAllocator(whole.peak.reserved, chosen, detailed=False)
    )
    assert again.full is None
    # where a smaller card has fewer addresses, blocks may lie elsewhere
    if not chosen.expandable_segments:
        assert comparable(again) == comparable(whole)
    smaller = replay(program, program.sizes, CachingAllocator(whole.peak.allocated - 1, chosen))
    assert smaller.full is not None or not whole.peak.allocated


def test_an_observer_is_called_after_each_event():
    program = program_from(
        [("malloc", "a", None, 0), ("phase", "train"), ("free", 0), ("step", 1)], [MIB]
    )
    observed = []
    replay(
        program,
        program.sizes,
        CachingAllocator(),
        observe=lambda event, _, card: observed.append((event, card.allocated)),
    )
    assert observed == list(zip(program.events, [MIB, MIB, 0, 0], strict=True))


@pytest.mark.parametrize(
    ("rows", "allocated", "reserved"),
    [
        # the end of a storage older than the trace is passed over
        ("free 99, malloc 1 0, free 1", 0, 0),
        # a stream does not use what another one freed
        ("stream 1, malloc 1 30, free 1, stream 0, malloc 2 30, stream 1, malloc 3 30", 60, 60),
        # a retired block is used again only when it is ready
        ("malloc 1 30, retire 1, malloc 2 30, ready 1, malloc 3 30", 60, 60),
        ("malloc 1 30, free 1, malloc 2 30, malloc 3 30", 60, 60),
        ("malloc 1 30, retire 1, malloc 2 30, malloc 3 30", 60, 90),
        # it is another one than the block at the same address that a full card has waited for
        (
            "malloc 1 4, malloc 2 9, retire 2, empty_cache, "
            "malloc 3 9, retire 3, ready 2, malloc 4 9",
            13,
            40,
        ),
    ],
)
def test_blocks_serve_whom_they_are_free_for(rows, allocated, reserved):
    assert replayed(rows).peak == (allocated * MIB, reserved * MIB)


def test_a_full_card_waits_for_retired_blocks():
    result = replayed("malloc 1 30, retire 1, malloc 2 36, ready 1, malloc 3 1", 40 * MIB)
    assert result.full is None and result.peak.reserved == 38 * MIB


def test_a_private_pool_is_served_apart_and_kept_while_a_graph_of_it_lives():
    rows = "pool 1, malloc 1 30, free 1, malloc 2 20, pool 0, malloc 3 30, free 3"
    rows += (
        ", free 2, empty_cache, phase then, release_pool 1, phase released, empty_cache, phase "
        "emptied"
    )
    reserved = {name: peaks.reserved for name, peaks in replayed(rows).phases.items()}
    assert reserved == {"start": 60 * MIB, "then": 30 * MIB, "released": 30 * MIB, "emptied": 0}


def test_an_emptied_pool_gives_back_what_is_free_of_it_alone():
    rows = "pool 1, malloc 1 30, malloc 2 20, pool 0, malloc 3 5, free 3, free 1"
    result = replayed(rows + ", empty_pool 1, phase then")
    assert (result.phases["start"].reserved, result.phases["then"].reserved) == (70 * MIB, 40 * MIB)
    waits = replayed(rows.replace("free 1", "retire 1") + ", empty_pool 1, phase then")
    assert waits.phases == result.phases


def test_nothing_is_given_back_for_a_request_during_a_capture():
    rows = "malloc 1 30, free 1, capture 1, pool 1, malloc 2 34"
    full = replayed(rows, 40 * MIB).full
    assert full is not None and (full.free, full.private) == (10 * MIB, 0)
    for other in (rows.replace("capture 1, ", ""), rows.replace("pool", "capture 0, pool")):
        assert replayed(other, 40 * MIB).full is None
    assert (
        replayed("malloc 1 30, free 1, capture 1, empty_cache", 40 * MIB).peak.reserved == 30 * MIB
    )
    assert replayed(rows.replace("pool 1, ", ""), 40 * MIB).full is not None
    full = replayed("pool 1, malloc 1 30, free 1, pool 0, malloc 2 34", 40 * MIB).full
    assert full is not None and (full.reserved, full.private) == (30 * MIB, 30 * MIB)


@given(seeds=st.lists(st.integers(0, 3), min_size=1, max_size=4), capacity=CAPACITIES)
@settings(max_examples=30, deadline=None)
def test_each_card_of_a_joined_program_shows_what_it_shows_alone(seeds, capacity):
    cards = [random_program(random.Random(seed), 80) for seed in seeds]
    program = joined(cards)
    alone = [replay(card, card.sizes, CachingAllocator(capacity)) for card in cards]
    results = replay_cards(program, program.sizes, capacity_bytes=capacity)
    assert list(map(comparable, results)) == list(map(comparable, alone))


@given(
    seed=st.integers(0, 10**9),
    configuration=st.sampled_from(CONFIGURATIONS),
    kinds=st.sampled_from([PLAIN, ANY]),
)
@example(seed=115957, configuration="expandable_segments:True", kinds=PLAIN)
@settings(max_examples=60, deadline=None)
def test_what_was_replayed_before_in_other_rooms_changes_no_replay(seed, configuration, kinds):
    rng = random.Random(seed)
    program, of = random_program(rng, 120, kinds), settings_from(configuration)
    middle = rng.randrange(400 * MIB)
    near = [max(0, middle + rng.randrange(-30 * MIB, 30 * MIB)) for _ in range(6)]
    for room in rng.choices(
        [None, middle, *near, *(rng.randrange(400 * MIB) for _ in range(3))], k=14
    ):
        (result,) = replay_cards(program, program.sizes, of, room)
        assert comparable(result) == comparable(
            replay(program, program.sizes, CachingAllocator(room, of, detailed=False))
        )


def counted(monkeypatch) -> list:
    """The arguments of all replays from here on, which are not done."""
    calls = []
    monkeypatch.setattr(
        module, "replay", lambda *args: calls.append(args) or Replayed({}, Peaks(1, 2))
    )
    return calls


def test_a_replay_that_had_room_is_known_wherever_there_is_as_much(monkeypatch):
    program = random_program(random.Random(1), 20, PLAIN)
    (whole,) = replay_cards(program, program.sizes)
    calls = counted(monkeypatch)
    (there,) = replay_cards(
        program.of_sizes(program.sizes, program.args),
        program.sizes,
        capacity_bytes=whole.peak.reserved,
    )
    assert there is whole and not calls
    replay_cards(program, program.sizes, capacity_bytes=whole.peak.reserved - 1)
    assert len(calls) == 1


@pytest.mark.parametrize("other", [100 * MIB, 60 * MIB - 1])
def test_a_replay_that_was_short_of_room_is_known_in_every_room_that_refuses_it_the_same(
    other, monkeypatch
):
    rows = [
        ("malloc", 1, 40 * MIB, "mm"),
        ("free", 1),
        ("malloc", 2, 60 * MIB, "mm"),
        ("malloc", 3, 100 * MIB, "mm"),
    ]
    refused = program(*rows)
    (short,) = replay_cards(refused, refused.sizes, capacity_bytes=90 * MIB)
    assert (short.retries, short.full is None, short.peak.reserved) == (2, False, 60 * MIB)
    calls = counted(monkeypatch)
    # with 100 MiB the first two segments would be there together
    for room in (
        60 * MIB,
        99 * MIB,
        100 * MIB - 1,
    ):
        (result,) = replay_cards(refused, refused.sizes, capacity_bytes=room)
        assert result.peak == short.peak and result.full.capacity == room and not calls
    replay_cards(refused, refused.sizes, capacity_bytes=other)
    assert len(calls) == 1


def test_cards_that_do_the_same_are_replayed_once(monkeypatch):
    calls = counted(monkeypatch)
    program = joined([random_program(random.Random(1), 20)] * 8)
    assert len(replay_cards(program, program.sizes)) == 8
    assert len(calls) == 1


def test_the_worst_of_each_value_is_kept():
    first = Replayed({"train": Peaks(1, 9)}, Peaks(1, 9))
    other = Replayed({"train": Peaks(5, 2), "eval": Peaks(0, 1)}, Peaks(5, 2))
    assert worst_of([first, other]) == Replayed(
        {"train": Peaks(5, 9), "eval": Peaks(0, 1)}, Peaks(5, 9)
    )
    assert worst_of([first, other._replace(retries=3)]).retries == 3
