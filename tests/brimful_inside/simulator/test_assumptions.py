import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.assumptions import (
    ASSUMPTIONS,
    LATER_STEPS,
    PLACEMENT,
    ROUND,
    SCALED,
    SKIPPED_STEPS,
    WORKSPACES,
    Assumption,
    assume,
)
from brimful_inside.simulator.program import Program
from brimful_inside.simulator.replay import replay, replay_cards, worst_of
from brimful_inside.simulator.trace import Scaler, decode_row, encode_row
from tests.brimful_inside.simulator.random_programs import PLAIN, program, random_program

MIB = 1 << 20


def training(rng: random.Random, steps: int, scaled: bool = True, convolves: bool = True):
    """Steps of a network whose optimizer makes its states at the first one; each step computes,
    lets a GradScaler decide, and updates by temporaries, some of which live until the next one."""
    rows: list[tuple] = [("malloc", 1, 3 * MIB, "weights")]
    number, pending = 1, []
    for step in range(steps):
        kept = []
        for _ in range(rng.randint(1, 4)):
            number += 1
            rows.append(("malloc", number, rng.randrange(1, 30 * MIB), "aten.convolution.default"))
            kept.append(number)
            if convolves:
                number += 1
                rows += [("malloc", number, rng.randrange(1, 9 * MIB), "cudnn_forward")]
                rows.append(("free", number))
        rows += [("free", other) for other in (*pending, *kept)]
        rows += [("scaler",)] if scaled else []
        if not step:
            number += 2
            rows += [("malloc", number - 1, 2 * MIB, "state"), ("malloc", number, MIB, "state")]
        number += 2
        rows.append(("malloc", number - 1, rng.randrange(1, 9 * MIB), "temporary"))
        rows += [("free", number - 1), ("malloc", number, 512, "temporary"), ("step", step)]
        pending = [number]
    return program(*rows)


def alive_at_the_end(of: Program) -> Counter:
    """Operations of what is never freed. What an update leaves to the next step is freed at once
    where it comes later than that."""
    ended = {event[1] for event in of.events if event[0] in ("free", "ready")}
    return Counter(
        event[1]
        for number, event in enumerate(of.allocations)
        if number not in ended and event[1] != "temporary"
    )


def assumed_programs(of: Program) -> list[tuple[Assumption, Program, tuple[int, ...]]]:
    others = [(assumption, assume(of, of.sizes, assumption)) for assumption in ASSUMPTIONS]
    return [(assumption, *other) for assumption, other in others if other is not None]


@given(seed=st.integers(0, 10**9), steps=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_an_assumed_program_frees_what_it_allocates_once_and_after_it_was_allocated(seed, steps):
    whole = training(random.Random(seed), steps)
    for assumption, other, sizes in assumed_programs(whole):
        made, ended = 0, set()
        for event in other.events:
            if event[0] == "malloc":
                made += 1
            elif event[0] == "free":
                assert event[1] < made and event[1] not in ended
                ended.add(event[1])
        assert made == len(sizes)
        more = Counter({"spare": 1}) if assumption.spare else Counter()
        assert alive_at_the_end(other) == alive_at_the_end(whole) + more, assumption


@given(seed=st.integers(0, 10**9), steps=st.integers(1, 6), skipped=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_skipped_steps_allocate_nothing_and_the_first_one_made_allocates_the_states(
    seed, steps, skipped
):
    whole = training(random.Random(seed), steps)
    result = assume(whole, whole.sizes, Assumption(SKIPPED_STEPS, skipped=skipped))
    if steps <= skipped:
        assert result is None
        return
    other, sizes = result
    made = zip(other.allocations, sizes, strict=True)
    assert [size for event, size in made if event[1] == "state"] == [2 * MIB, MIB]
    operations: list[Counter] = [Counter()]
    for event in other.events:
        if event[0] == "malloc":
            operations[-1][event[1]] += 1
        elif event[0] == "step":
            operations.append(Counter())
    for step, counts in enumerate(operations[:-1]):
        assert counts["state"] == (2 if step == skipped else 0)
        assert counts["temporary"] == (0 if step < skipped else 2)


@given(seed=st.integers(0, 10**9))
@settings(max_examples=30, deadline=None)
def test_a_program_without_what_an_assumption_speaks_of_is_not_touched(seed):
    plain = random_program(random.Random(seed), 60, PLAIN)
    assert [(one.part, other, sizes) for one, other, sizes in assumed_programs(plain)] == [
        (PLACEMENT, plain, plain.sizes)
    ]
    unscaled = training(random.Random(seed), 2, scaled=False)
    assert {one.part for one, _, _ in assumed_programs(unscaled)} == {PLACEMENT, WORKSPACES}


def rounds(seed: int, steps: int, together: int, evaluates: bool) -> Program:
    """Steps that come round `together`, whose losses live until the next round; then what an
    evaluation takes while the last gradients live, which end after it."""
    rng = random.Random(seed)
    sizes = [
        [rng.randrange(1, 30 * MIB) for _ in range(rng.randint(2, 4))] for _ in range(together)
    ]
    rows: list[tuple] = [("malloc", 1, 3 * MIB, "weights")]
    number, pending = 1, [[] for _ in range(together)]
    for step in range(steps):
        kept = []
        for size in sizes[step % together]:
            number += 1
            rows.append(("malloc", number, size, f"of network {step % together}"))
            kept.append(number)
        rows += [("free", other) for other in pending[step % together]] + [("free", kept.pop(0))]
        pending[step % together] = kept
        rows.append(("step", step))
    if evaluates:
        rows += [("phase", "eval"), ("malloc", number + 1, 99 * MIB, "aten.mm")]
        rows += [("free", other) for kept in pending for other in kept] + [("free", number + 1)]
    return program(*rows)


@given(
    seed=st.integers(0, 10**9),
    together=st.integers(1, 3),
    steps=st.integers(3, 5),
    evaluates=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_round_of_steps_that_is_repeated_makes_the_program_of_more_steps(
    seed, together, steps, evaluates
):
    traced, longer = (
        rounds(seed, count, together, evaluates)
        for count in (steps * together, (steps + 2) * together)
    )
    other, sizes = assume(traced, traced.sizes, Assumption(LATER_STEPS, repeats=2))
    assert sizes == longer.sizes
    without_numbers = [
        [event[:1] if event[0] == "step" else event for event in each.events if event[0] != ROUND]
        for each in (other, longer)
    ]
    assert without_numbers[0] == without_numbers[1]


@given(
    seed=st.integers(0, 10**9),
    together=st.integers(1, 2),
    steps=st.integers(3, 5),
    evaluates=st.booleans(),
    room=st.one_of(st.none(), st.integers(50 * MIB, 1200 * MIB)),
)
@settings(max_examples=80, deadline=None)
def test_repeated_steps_that_change_nothing_end_a_replay_with_the_same_answer(
    seed, together, steps, evaluates, room
):
    traced = rounds(seed, steps * together, together, evaluates)
    other, sizes = assume(traced, traced.sizes, Assumption(LATER_STEPS, repeats=6))
    unmarked = tuple(event for event in other.events if event[0] != ROUND)
    plain, ended, whole = (
        replay(program, of, CachingAllocator(room, detailed=False))
        for program, of in (
            (traced, traced.sizes),
            (other, sizes),
            (Program(unmarked, (), ()), sizes),
        )
    )
    assert (ended.full is None) == (whole.full is None) or plain.full is not None
    if whole.full is None:
        assert worst_of([plain, ended]).peak == worst_of([plain, whole]).peak


def test_steps_that_differ_are_not_repeated():
    rows: list[tuple] = []
    for step in range(5):
        rows += [("malloc", 10 * step + part, MIB, "mm") for part in range(step)]
        rows.append(("step", step))
    whole = program(*rows)
    assert assume(whole, whole.sizes, Assumption(LATER_STEPS, repeats=2)) is None


def test_a_card_that_later_steps_fill_may_be_full():
    rows: list[tuple] = []
    for step in range(4):  # each step leaves a MiB
        rows += [("malloc", step, 22 * MIB, "mm"), ("step", step)]
    whole = program(*rows)
    for room, may_be_full in ((88, True), (219, True), (220, False)):
        (result,) = replay_cards(whole, whole.sizes, capacity_bytes=room * MIB, assumes=True)
        assert result.full is None and result.may_be_full == may_be_full


def test_workspaces_are_as_many_times_as_large_and_other_sizes_stay():
    whole = training(random.Random(1), 2)
    for times in (0.0, 2.0):
        other, sizes = assume(whole, whole.sizes, Assumption(WORKSPACES, workspaces=times))
        assert other.events == whole.events
        for event, before, after in zip(whole.allocations, whole.sizes, sizes, strict=True):
            assert after == (times * before if event[1].startswith("cudnn_") else before)


def test_a_further_workspace_ends_with_the_convolution_that_takes_it():
    rows = [("malloc", 1, 30 * MIB, "aten.convolution.default"), ("malloc", 2, MIB, "aten.relu")]
    whole = program(*rows)
    other, sizes = assume(whole, whole.sizes, Assumption(WORKSPACES, beside=0.5))
    assert sizes == (15 * MIB, 30 * MIB, MIB) and other.events[2] == ("free", 0)


def test_one_more_block_is_as_large_as_the_largest_at_each_batch_size():
    whole = program(
        ("malloc", 1, MIB, "mm"), ("malloc", 2, 5 * MIB, "mm"), ("scaler",), ("step", 1)
    )
    for factor in (1, 7):
        larger = [factor * size for size in whole.sizes]
        _, sizes = assume(whole, larger, Assumption(SCALED, spare=True))
        assert sizes == (5 * factor * MIB, *larger)


def test_the_row_of_a_scaler_is_read_as_it_is_written_and_a_replay_passes_over_it():
    assert encode_row(Scaler()) == '["scaler"]' and decode_row(["scaler"]) == Scaler()
    with_row = program(("malloc", 1, MIB, "mm"), ("scaler",), ("step", 1))
    assert with_row.events[1] == ("scaler",)
    assert replay(with_row, with_row.sizes, CachingAllocator()).steps == 1


# --- replays under assumptions


@given(seed=st.integers(0, 10**9), steps=st.integers(2, 5))
@settings(max_examples=30, deadline=None)
def test_the_spread_is_how_far_replays_under_each_assumption_of_a_part_differ(seed, steps):
    whole = training(random.Random(seed), steps)
    (alone,), (result,) = (
        replay_cards(whole, whole.sizes, assumes=assumes) for assumes in (False, True)
    )
    assert alone.spread == {} and result._replace(spread={}) == alone
    for part, (below, above) in result.spread.items():
        peaks = [
            replay(other, sizes, CachingAllocator(placement=one.placement)).peak.reserved
            for one, other, sizes in assumed_programs(whole)
            if one.part == part
        ]
        assert below == max(0, alone.peak.reserved - min(peaks))
        assert above == max(0, max(peaks) - alone.peak.reserved)
    assert {one.part for one, _, _ in assumed_programs(whole)} == set(result.spread)


def test_a_card_that_is_full_under_one_assumption_alone_may_be_full():
    rows = [("malloc", 1, 20 * MIB, "aten.convolution"), ("malloc", 2, 40 * MIB, "cudnn_forward")]
    whole = program(*rows)
    for room, may_be_full in ((60, True), (99, True), (100, False)):
        (result,) = replay_cards(whole, whole.sizes, capacity_bytes=room * MIB, assumes=True)
        assert result.full is None and result.may_be_full == may_be_full
    (full,) = replay_cards(whole, whole.sizes, capacity_bytes=59 * MIB, assumes=True)
    assert full.full is not None and not full.may_be_full and not full.spread


def test_of_two_equal_free_blocks_the_one_is_cut_whose_segment_lies_lower():
    rows: list[tuple] = [("malloc", 1, 40 * MIB, "a"), ("malloc", 2, 20 * MIB, "b")]
    rows += [("free", 1), ("malloc", 3, 20 * MIB, "half of a"), ("free", 2)]
    rows += [("malloc", 4, 12 * MIB, "cuts"), ("free", 3), ("malloc", 5, 40 * MIB, "a")]
    whole = program(*rows)
    (result,) = replay_cards(whole, whole.sizes, assumes=True)
    assert result.peak.reserved == 60 * MIB, "b, the newer segment, was cut"
    assert result.spread == {PLACEMENT: (0, 40 * MIB)}
