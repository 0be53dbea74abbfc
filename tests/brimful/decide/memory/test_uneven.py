"""An epoch of uneven batches, put together from the steps of a trial."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.decide.memory import uneven
from brimful.decide.memory.bracket import run_search
from brimful.decide.memory.fit import Card
from brimful.decide.memory.intervals import RelativeInterval
from brimful.decide.memory.uneven import (
    CEILING,
    MEMORY,
    MOST_SIZES,
    SCRIPT,
    are_uneven,
    drawn_steps,
    epochs_of,
    largest_over_an_epoch,
    vary_by_batch,
)
from brimful_inside.simulator.program import Program
from brimful_inside.simulator.replay import replay_cards

MIB = 1 << 20
WEIGHTS = 40 * MIB


@pytest.fixture(autouse=True, scope="module")
def short_epochs():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uneven, "MOST_STEPS", 60)
        yield


def training(lengths, batch_size=1, leaks=0):
    """Steps that hold three activations of a batch, gradients, and the batch until the next one."""
    events, sizes = [], []

    def malloc(nbytes):
        events.append(("malloc", "op", None, 0))
        sizes.append(nbytes)
        return len(sizes) - 1

    malloc(WEIGHTS)
    batch, gradients = None, None
    for step, length in enumerate(lengths):
        new = malloc(length * batch_size * 64 * 1024)
        if batch is not None:
            events.append(("free", batch))
        batch = new
        activations = [malloc(part * length * batch_size * MIB // 4) for part in (1, 2, 3)]
        if gradients is not None:
            events.append(("free", gradients))
        gradients = malloc(WEIGHTS)
        if step == 0:
            malloc(2 * WEIGHTS)  # the optimizer's states
        events.extend(("free", number) for number in reversed(activations))
        for _ in range(leaks):
            malloc(2 * MIB)
        events.append(("step", step + 1))
    events.append(("free", batch))
    return Program(tuple(events), tuple(sizes), tuple(() for _ in sizes))


def reserved(program):
    return replay_cards(program, program.sizes)[0].peak.reserved


def card(budget_bytes):
    return Card(budget_bytes, 0, interval=RelativeInterval(0.0, 0.0, ""))


@settings(max_examples=40)
@given(st.lists(st.integers(4, 60), min_size=4, max_size=14), st.integers(0, 1))
def test_an_epoch_frees_each_allocation_at_most_once_and_after_it_was_made(lengths, leaks):
    for program in epochs_of(training(lengths, leaks=leaks), training([60] * 4)):
        made, gone = 0, Counter()
        for event in program.events:
            if event[0] == "malloc":
                made += 1
            elif event[0] == "free":
                assert event[1] < made
                gone[event[1]] += 1
        assert max(gone.values()) == 1
        assert made == len(program.sizes) == len(program.args)


@settings(max_examples=40)
@given(st.lists(st.integers(4, 60), min_size=4, max_size=14))
def test_what_is_alive_does_not_grow_from_step_to_step(lengths):
    for program in epochs_of(training(lengths), None):
        alive = 0
        for event in program.events:
            alive += {"malloc": 1, "free": -1}.get(event[0], 0)
            if event[0] == "step":
                assert alive == 4  # weights, states, gradients and the batch


@st.composite
def tangled(draw):
    """Steps that differ in what they do: allocations that outlive a step or two, or are retired for
    another stream before they are ready."""
    events, sizes, alive, retired = [], [], [], []
    for step in range(draw(st.integers(4, 9))):
        for _ in range(draw(st.integers(0, 6))):
            action = draw(st.sampled_from(["malloc", "malloc", "free", "retire", "ready"]))
            if action == "malloc":
                alive.append(len(sizes))
                sizes.append(draw(st.sampled_from([512, 3 * MIB, 5 * MIB, 21 * MIB])))
                events.append(("malloc", "op", None, 0))
            elif action == "ready" and retired:
                events.append(("ready", retired.pop(draw(st.integers(0, len(retired) - 1)))))
            elif action in ("free", "retire") and alive:
                number = alive.pop(draw(st.integers(0, len(alive) - 1)))
                events.append((action, number))
                if action == "retire":
                    retired.append(number)
        events.append(("step", step + 1))
    return Program(tuple(events), tuple(sizes), tuple(() for _ in sizes))


@settings(max_examples=40)
@given(tangled(), st.one_of(st.none(), tangled()))
def test_an_epoch_of_any_steps_can_be_replayed(drawn, worst):
    for program in epochs_of(drawn, worst):
        replayed = replay_cards(program, program.sizes)[0]
        assert replayed.full is None and replayed.steps >= 4


def test_an_epoch_reserves_more_than_batches_of_its_largest_samples():
    source = random.Random(3)
    drawn = training([source.randint(10, 60) for _ in range(24)])
    worst = training([60] * 4)
    assert max(map(reserved, epochs_of(drawn, worst))) > 1.1 * reserved(worst)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 8), min_size=4, max_size=12), st.booleans())
def test_the_scripts_own_order_has_no_less_alive_than_the_trial_with_small_tensors_too(rest, large):
    drawn = training([2, 1, *rest], batch_size=4 if large else 1)
    own = epochs_of(drawn, None)[0]
    alive = [replay_cards(of, of.sizes)[0].peak.allocated for of in (own, drawn)]
    # A block counts whole where at most 1 MiB of it remains, and which block is taken depends on
    # what was freed before.
    assert alive[0] >= alive[1] - MIB


def test_steps_that_are_alike_are_not_uneven():
    each = ([30] * 6, [30, 30, 31, 30, 32, 30], [30, 30, 30, 12, 30, 30])
    assert [are_uneven(training(lengths)) for lengths in each] == [False, True, True]
    assert not are_uneven(training(each[2]), [True, True, True, False, True, True])
    alike = training([30] * 5)
    counter = Program(
        (*alike.events[:-2], ("malloc", "op", None, 0), *alike.events[-2:]),
        (*alike.sizes, 4),
        (*alike.args, ()),
    )
    assert not are_uneven(counter)


def taking(*steps):
    """A program whose steps allocate so much in phases."""
    events, sizes = [], []
    for number, allocations in enumerate(steps, 1):
        for phase, mib in allocations:
            events += [("phase", phase), ("malloc", "op", None, 0)]
            sizes.append(mib * MIB)
        events += [("phase", "train"), ("step", number)]
    return Program(tuple(events), tuple(sizes), tuple(() for _ in sizes))


def test_an_evaluation_between_steps_and_a_last_step_that_loads_no_batch_are_not_uneven():
    steps = [[("train", 9), ("eval", 20 * (step % 2)), ("train", 0)] for step in range(4)]
    assert not are_uneven(taking(*steps, []))


def test_a_step_after_a_sampling_loop_is_not_compared_with_others_unless_there_are_too_few():
    step = [("train", 9)]
    samples = [("train", 24), ("eval", 60), ("train", 9)]  # its noise comes before its first pass
    assert not are_uneven(taking(step, step, step, samples, step, step, step))
    assert are_uneven(taking(step, step, step, samples))
    assert are_uneven(taking(step, step, step, samples, [("train", 10)], step, step))


@pytest.mark.parametrize(
    ("each", "by_batch"),
    [
        ([5, 5, 5, 9, 9, 9, 9], False),  # layers were frozen before
        ([5, 5, 7, 7, 7, 9, 9, 9], False),
        ([5, 5, 5, 9, 5, 5, 5], True),
        ([5, 9], True),
        ([5, 9, 9, 5, 6, 6], True),
        ([5, 5, 5, 5], False),
        ([5], False),
    ],
)
def test_a_change_that_lasts_does_not_come_from_batches(each, by_batch):
    program = taking(*[[("train", mib)] for mib in (1, 2, *each, *each[-1:] * (len(each) > 2))])
    assert vary_by_batch(program) is by_batch
    assert are_uneven(program) is (len(set(each)) > 1)


def test_the_steps_that_capture_a_graph_are_not_repeated():
    drawn = training([10, 20, 30, 10, 20, 30])
    captured = Program((("capture", 1), *drawn.events), drawn.sizes, drawn.args)
    assert are_uneven(drawn) and not are_uneven(captured)
    assert epochs_of(captured, None) == [captured]


@pytest.mark.parametrize("room", [600, 900, 2000])
def test_the_largest_batch_size_over_an_epoch_fits_in_every_order_and_was_traced(room):
    source = random.Random(5)
    lengths = [source.randint(4, 12) for _ in range(24)]
    traced = {}

    def programs(size):
        traced[size] = epochs_of(training(lengths, size), training([12] * 4, size))
        return traced[size]

    largest_alone = max(
        size for size in range(1, 400) if reserved(training([12] * 4, size)) <= room * MIB
    )
    fixed = frozenset({WEIGHTS, 2 * WEIGHTS})
    end = run_search(
        largest_over_an_epoch(card(room * MIB), largest_alone, largest_alone, 1, fixed), programs
    )
    size = end.largest
    assert end.ended_by == (CEILING if size == largest_alone else MEMORY)
    assert size in traced and len(traced) <= MOST_SIZES
    for program in traced[size]:
        assert replay_cards(program, program.sizes, capacity_bytes=room * MIB)[0].full is None
    assert size == largest_alone or any(
        replay_cards(program, program.sizes, capacity_bytes=room * MIB)[0].full
        for program in programs(size + max(2, size // 8))
    )


def test_only_multiples_are_looked_at_whatever_the_data_sets_length():
    looked_at = []

    def programs(size):
        looked_at.append(size)
        return epochs_of(training([5, 7, 6, 7, 6, 5], size), None)

    search = largest_over_an_epoch(card(1 << 40), 40, 91, 8, frozenset({WEIGHTS}))
    assert run_search(search, programs)[:2] == (88, CEILING)
    assert all(size % 8 == 0 for size in looked_at)


@pytest.mark.parametrize("fails_from", [None, 46, 54])
@pytest.mark.parametrize("ceiling", [45, 2000])
def test_where_no_batch_is_made_of_the_largest_samples_alone_the_batch_size_rises(
    ceiling, fails_from
):
    room, looked_at = 900, []

    def programs(size):
        looked_at.append(size)
        if fails_from is not None and size >= fails_from:
            return ()
        return epochs_of(training([5, 7, 6, 7, 6, 5], size), None)

    search = largest_over_an_epoch(card(room * MIB), 40, ceiling, 1, frozenset({WEIGHTS}), 6)
    size, ended_by, at, _ = run_search(search, programs)
    assert 40 < size <= max(looked_at) <= ceiling and size in looked_at
    assert fails_from is None or size < fails_from
    fails = fails_from == 46 and ceiling > 46  # the memory ends at 48
    assert ended_by == (CEILING if size == ceiling else SCRIPT if fails else MEMORY)
    assert not fails or (at in looked_at and at - size <= 2)
    fits = [
        all(
            replay_cards(program, program.sizes, capacity_bytes=room * MIB)[0].full is None
            for program in programs(at)
        )
        for at in (size, int(1.1 * size))
    ]
    assert fits[0] and (not fits[1] or fails_from or size == ceiling)


# --- other batches than the loader's own ---


def lengths_drawn(seed=3):
    source = random.Random(seed)
    return [*source.choices(range(25, 61), k=4), 60, 60, *source.choices(range(25, 61), k=18)]


def batches_of(program):
    """The lengths of all batches of steps that repeat: gradients are as large as the weights."""
    unit = 64 * 1024
    sizes = [size for size in program.sizes if size not in (WEIGHTS, 2 * WEIGHTS)]
    return [size / unit for size in sizes[::4]]


@pytest.mark.parametrize(
    ("batches_per_step", "events_of_a_step", "steps"),
    [(1, 100, 24), (1, 50_000, 10), (2, 100, 12), (2, 50_000, 7), (16, 100, 7), (0.5, 50_000, 20)],
)
def test_a_trial_shows_fewer_steps_where_each_has_several_batches_or_many_events(
    batches_per_step, events_of_a_step, steps
):
    four_steps = Program((("step", 0),) * 4 * events_of_a_step, (), ())
    assert drawn_steps([four_steps], batches_per_step) == steps
